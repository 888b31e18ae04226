//! Writing one buffer from many tasks.
use std::marker::PhantomData;

/// A mutable slice whose disjoint parts are handed to different tasks.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` cut up by `Shared::part`, whose callers promise disjoint parts.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: PhantomData,
        }
    }

    /// The part `from..from + len`; panics where it leaves the slice.
    ///
    /// # Safety
    ///
    /// While the part lives nobody else may use an element of it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, from: usize, len: usize) -> &'a mut [T] {
        assert!(
            from <= self.len && len <= self.len - from,
            "part outside of the slice"
        );
        // SAFETY: inside the slice (checked); unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}
