//! Buffers that a thread keeps from call to call.
use std::cell::RefCell;
use std::thread::LocalKey;

/// Memory of one thread for one purpose.
pub(crate) type Buffer = RefCell<Vec<u32>>;

/// Lend the first `len` elements, contents unspecified; not twice at the same time.
pub(crate) fn lend<T: bytemuck::Pod, R>(
    buffer: &'static LocalKey<Buffer>,
    len: usize,
    use_it: impl FnOnce(&mut [T]) -> R,
) -> R {
    buffer.with_borrow_mut(|buffer| {
        let words = (len * size_of::<T>()).div_ceil(4);
        if buffer.len() < words {
            buffer.resize(words, 0);
        }
        use_it(&mut bytemuck::cast_slice_mut(&mut buffer[..words])[..len])
    })
}
