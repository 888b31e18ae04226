//! CPU kernels of the forward pass whose bits do not depend on what shares a call.
//!
//! Each element of an output is one fixed sequence of operations: over k for a linear, over
//! the keys in path order for an attention row. The number of rows, the tiles they fall into,
//! the threads, the block table and the shape of a token tree have no say in it. Across CPU
//! levels ([`Level`]) results agree only within rounding. `docs/kernels.md` has the layouts
//! and the measurements.
#![deny(unsafe_op_in_unsafe_fn)]
// Kernels are inlined by force into one function per CPU level.
#![allow(clippy::inline_always)]
// Kernels index several arrays by one row, column or position.
#![allow(clippy::needless_range_loop, clippy::struct_field_names)]

mod arena;
mod attention;
mod element;
mod error;
mod linear;
mod math;
mod norm;
mod panel;
mod pool;
mod scratch;
mod shared;
mod simd;
mod tile;
mod top;

pub use attention::{AttentionInput, AttentionShape, attention, attention_at, copy_slots};
pub use element::{Bf16, Element};
pub use error::KernelError;
pub use linear::PackedLinear;
pub use norm::{rms_norm, rms_norm_at};
pub use pool::{Claims, Pool, num_threads, set_num_threads};
pub use simd::Level;
pub use top::top_log_probs;
