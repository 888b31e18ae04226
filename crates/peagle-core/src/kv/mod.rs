//! Paged KV bookkeeping: who holds which block.

mod pool;

pub use pool::BlockPool;
