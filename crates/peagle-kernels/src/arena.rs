//! Memory for weights in huge pages.
//!
//! Weights are read from memory once per call. The hardware's prefetcher stops at the end of
//! a page, and prefetch instructions do little where the page is not in the TLB: with pages
//! of 4 KiB one core read 26 GB/s of weights here, with pages of 2 MiB 33 GB/s, and only then
//! did the arithmetic of 8 and more rows overlap with the reading. A weight matrix may be
//! smaller than a huge page, so matrices share them.
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

/// Size and alignment of a huge page.
const PAGE: usize = 2 << 20;

/// Memory mapped at a time; untouched pages cost nothing.
const CHUNK: usize = 32 * PAGE;

/// Alignment of what is handed out.
const ALIGN: usize = 128;

/// A mapping whose parts belong to the [`Block`]s that point into it.
struct Chunk {
    start: *mut u8,
    len: usize,
    /// Unmapped with the last block.
    _map: MmapMut,
}

// SAFETY: `start` is used by blocks only, each for its own part.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// Zeroed memory, aligned to 128 bytes.
pub(crate) struct Block {
    chunk: Arc<Chunk>,
    from: usize,
    len: usize,
}

/// The chunk in use and how much of it is taken.
static OPEN: Mutex<Option<(Arc<Chunk>, usize)>> = Mutex::new(None);

impl Chunk {
    /// At least `len` bytes that begin at a huge page.
    fn new(len: usize) -> Arc<Self> {
        let mut map = MmapMut::map_anon(len + PAGE).expect("no memory for the weights");
        // A system without huge pages may refuse, which is fine.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = map.as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(PAGE));
        Arc::new(Self {
            start,
            len,
            _map: map,
        })
    }
}

impl Block {
    /// `len` bytes, zero.
    pub(crate) fn new(len: usize) -> Self {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (chunk, from) = match open.take() {
            Some((chunk, used)) if len <= chunk.len - used => (chunk, used),
            _ => (Chunk::new(len.max(CHUNK)), 0),
        };
        let used = (from + len).next_multiple_of(ALIGN).min(chunk.len);
        *open = Some((chunk.clone(), used));
        Self { chunk, from, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping, which lives as long as `chunk`, and inside this block's
        // own part, which only `bytes_mut` of this block writes.
        unsafe { std::slice::from_raw_parts(self.chunk.start.add(self.from), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; no other block has a byte of this part.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.start.add(self.from), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zero_aligned_and_apart() {
        let mut blocks: Vec<Block> = [1, 127, 129, 3 << 20, CHUNK + 1, 5].map(Block::new).into();
        for (i, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.bytes().as_ptr().align_offset(ALIGN), 0);
            assert!(block.bytes().iter().all(|&byte| byte == 0));
            block.bytes_mut().fill(i as u8 + 1);
        }
        for (i, block) in blocks.iter().enumerate() {
            assert!(block.bytes().iter().all(|&byte| byte == i as u8 + 1));
        }
    }
}
