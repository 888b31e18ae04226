//! The pool of KV blocks: reference counts and a free list threaded through the blocks.
//!
//! Taking, sharing and returning a block are O(1). A block is taken right after its predecessor where
//! that one is free, so that tables tend to be contiguous runs; else the block that has been free for
//! longest is taken.

use crate::ids::BlockId;

/// "No block" in the links.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

/// All blocks of the KV cache.
#[derive(Clone, Debug)]
pub struct BlockPool {
    holders: Vec<u32>,
    links: Vec<Links>,
    first_free: u32,
    last_free: u32,
    num_free: usize,
}

impl BlockPool {
    /// A pool of free blocks.
    pub fn new(num_blocks: usize) -> Self {
        let mut pool = Self {
            holders: vec![0; num_blocks],
            links: vec![
                Links {
                    previous: NONE,
                    next: NONE
                };
                num_blocks
            ],
            first_free: NONE,
            last_free: NONE,
            num_free: 0,
        };
        for block in 0..num_blocks as u32 {
            pool.append_free(block);
        }
        pool
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.holders.len()
    }

    /// Number of blocks nobody holds.
    pub fn num_free(&self) -> usize {
        self.num_free
    }

    /// How many hold a block.
    pub fn holders(&self, block: BlockId) -> u32 {
        self.holders[block.0 as usize]
    }

    /// Takes a free block, the one after `after` if it can be had.
    pub fn take(&mut self, after: Option<BlockId>) -> Option<BlockId> {
        let wanted = after.map_or(NONE, |block| block.0 + 1);
        let neighbour = self.holders.get(wanted as usize) == Some(&0);
        let block = if neighbour { wanted } else { self.first_free };
        if block == NONE {
            return None;
        }
        self.unlink(block);
        self.holders[block as usize] = 1;
        Some(BlockId(block))
    }

    /// Adds a holder to a block that is in use.
    pub fn share(&mut self, block: BlockId) {
        let count = &mut self.holders[block.0 as usize];
        assert!(*count > 0, "block {block} is free and cannot be shared");
        *count += 1;
    }

    /// Drops one holder; the block is free once nobody holds it.
    pub fn release(&mut self, block: BlockId) {
        let count = &mut self.holders[block.0 as usize];
        assert!(*count > 0, "block {block} is free already");
        *count -= 1;
        if *count == 0 {
            self.append_free(block.0);
        }
    }

    fn append_free(&mut self, block: u32) {
        self.links[block as usize] = Links {
            previous: self.last_free,
            next: NONE,
        };
        match self.last_free {
            NONE => self.first_free = block,
            last => self.links[last as usize].next = block,
        }
        self.last_free = block;
        self.num_free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Links { previous, next } = self.links[block as usize];
        match previous {
            NONE => self.first_free = next,
            _ => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.last_free = previous,
            _ => self.links[next as usize].previous = previous,
        }
        self.num_free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blocks_come_in_runs() {
        let mut pool = BlockPool::new(8);
        let first = pool.take(None).unwrap();
        let second = pool.take(Some(first)).unwrap();
        assert_eq!((first, second), (BlockId(0), BlockId(1)));
        let other = pool.take(None).unwrap();
        assert_eq!(other, BlockId(2));
        // Block 2 is taken, so the run breaks at the block that has been free for longest.
        assert_eq!(pool.take(Some(second)), Some(BlockId(3)));
        assert_eq!(pool.take(Some(BlockId(7))), Some(BlockId(4)));
    }

    #[test]
    fn a_shared_block_is_free_after_its_last_holder() {
        let mut pool = BlockPool::new(1);
        let block = pool.take(None).unwrap();
        pool.share(block);
        assert_eq!(pool.take(None), None);
        pool.release(block);
        assert_eq!((pool.num_free(), pool.holders(block)), (0, 1));
        pool.release(block);
        assert_eq!((pool.num_free(), pool.holders(block)), (1, 0));
        assert_eq!(pool.take(None), Some(block));
    }

    proptest! {
        #[test]
        fn free_and_used_add_up_and_counts_are_holders(
            actions in prop::collection::vec((0_u8..3, 0_usize..64), 1..200),
            num_blocks in 1_usize..24,
        ) {
            let mut pool = BlockPool::new(num_blocks);
            let mut held: Vec<BlockId> = Vec::new();
            for (action, pick) in actions {
                let chosen = (!held.is_empty()).then(|| held[pick % held.len().max(1)]);
                match (action, chosen) {
                    (0, after) => {
                        let was_free = pool.num_free();
                        let taken = pool.take(after);
                        prop_assert_eq!(taken.is_some(), was_free > 0);
                        prop_assert!(taken.is_none_or(|block| !held.contains(&block)));
                        held.extend(taken);
                    }
                    (1, Some(block)) => {
                        pool.share(block);
                        held.push(block);
                    }
                    (_, Some(block)) => {
                        pool.release(block);
                        held.remove(held.iter().position(|&b| b == block).unwrap());
                    }
                    _ => {}
                }
                let mut used = 0;
                for block in (0..num_blocks as u32).map(BlockId) {
                    let holders = held.iter().filter(|&&b| b == block).count();
                    prop_assert_eq!(pool.holders(block) as usize, holders);
                    used += usize::from(holders > 0);
                }
                prop_assert_eq!(pool.num_free() + used, num_blocks);
            }
        }
    }
}
