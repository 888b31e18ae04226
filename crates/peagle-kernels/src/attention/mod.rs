//! Attention over a paged cache, for chains and token trees alike.
//!
//! A row's keys are visited in *path order*: context slots upwards, then the row's ancestors
//! among the rows of the call, then the row itself. The *path position* of a key is its slot
//! index for context and context length + depth for a row, which is the slot index it would
//! have in a chain. Every step is a fixed sequence over that order:
//!
//! * a score is one accumulator over the head dimension upwards, times `scale`;
//! * the maximum does not depend on an order;
//! * lane p % 16 sums the exponentials of path positions p upwards, lanes meet in fixed pairs;
//! * an output number is one accumulator over the path upwards, times 1 / sum, rounded once.
//!
//! So a row of a tree, of a chunk or of a crowded batch has the bits of the same row computed
//! alone after a plain prefill.
mod path;
mod plan;
mod rotate;
mod softmax;
mod tile;

use crate::element::Element;
use crate::error::KernelError;
use crate::pool;
use crate::scratch::{Buffer, lend};
use crate::shared::Shared;
use crate::simd::{Dispatch, Level, Simd};

pub use plan::{AttentionShape, copy_slots};

/// Rows and index arrays of one call; T rows of R requests.
pub struct AttentionInput<'a, E> {
    /// Queries, keys, values side by side, `[T, (Hq + 2 Hk) * D]`.
    pub qkv: &'a [E],
    /// Position in the sequence, `[T]`: the row of the cosine and sine tables.
    pub positions: &'a [i32],
    /// Where a row's key and value go, `[T]`: what the block table says of its slot index.
    pub slots: &'a [i32],
    /// First row of each request, `[R + 1]`.
    pub query_start: &'a [i32],
    /// Slot index of each request's first row, `[R]`; all slots below are its context.
    pub context_lens: &'a [i32],
    /// Block numbers, `[R, blocks_per_request]`.
    pub block_tables: &'a [i32],
    /// Parent of each row, counted from its request's first row; -1: the last context slot.
    pub parents: &'a [i32],
    /// Cosines, `[P, D / 2]`.
    pub cos: &'a [f32],
    /// Sines, `[P, D / 2]`.
    pub sin: &'a [f32],
    /// Weight `[D]` of an RMS norm over each query head.
    pub q_norm: Option<&'a [E]>,
    /// Weight `[D]` of an RMS norm over each key head.
    pub k_norm: Option<&'a [E]>,
    /// Its epsilon.
    pub eps: f32,
    /// First path position that is a key of other rows than its own.
    pub key_start: usize,
    /// Factor of the scores.
    pub scale: f32,
}

/// Rotate queries and keys, write keys and values to the cache, then attend.
///
/// `out` is `[T, Hq * D]`, `k_cache` is `[num_blocks, Hk, D, B]`, `v_cache` is
/// `[num_blocks, Hk, B, D]`. Normalised and rotated queries and keys are rounded to the dtype
/// after each operation, as Hugging Face does (cosines and sines, too); scores,
/// probabilities and their products with the values are `f32`.
pub fn attention<E: Element>(
    shape: AttentionShape,
    input: &AttentionInput<'_, E>,
    k_cache: &mut [E],
    v_cache: &mut [E],
    out: &mut [E],
) -> Result<(), KernelError> {
    attention_at(Level::best(), shape, input, k_cache, v_cache, out)
}

/// [`attention`] at a chosen CPU level.
pub fn attention_at<E: Element>(
    level: Level,
    shape: AttentionShape,
    input: &AttentionInput<'_, E>,
    k_cache: &mut [E],
    v_cache: &mut [E],
    out: &mut [E],
) -> Result<(), KernelError> {
    plan::check(shape, input, k_cache.len(), v_cache.len(), out.len())?;
    level.run(Call {
        shape,
        input,
        k_cache,
        v_cache,
        out,
    });
    Ok(())
}

/// Query heads of a call from which on rotating them is worth a parallel region.
const ROTATE_ALONE: usize = 128;

thread_local! {
    /// Rotated queries of the call that this thread makes.
    static QUERIES: Buffer = const { Buffer::new(Vec::new()) };
}

struct Call<'a, E> {
    shape: AttentionShape,
    input: &'a AttentionInput<'a, E>,
    k_cache: &'a mut [E],
    v_cache: &'a mut [E],
    out: &'a mut [E],
}

impl<E: Element> Dispatch for Call<'_, E> {
    fn run<S: Simd>(self, s: S) {
        let Self {
            shape,
            input,
            k_cache,
            v_cache,
            out,
        } = self;
        let rows = input.slots.len();
        let width = shape.num_heads * shape.head_dim;
        lend::<E, _>(&QUERIES, rows * width, |queries| {
            let targets = rotate::Targets {
                queries: Shared::new(queries),
                k_cache: Shared::new(k_cache),
                v_cache: Shared::new(v_cache),
            };
            let rotate = |kv_head| {
                s.enter(rotate::KvHead {
                    shape,
                    input,
                    kv_head,
                    targets,
                });
            };
            if rows * shape.num_heads < ROTATE_ALONE {
                (0..shape.num_kv_heads).for_each(rotate);
            } else {
                pool::run(shape.num_kv_heads, rotate);
            }
            let read = tile::Read {
                shape,
                input,
                queries,
                k_cache,
                v_cache,
            };
            plan::lend_tiles(shape, input, |tiles| {
                let out = Shared::new(out);
                pool::run(tiles.len(), |index| {
                    let tile = tiles[index];
                    tile::OneTile {
                        read: &read,
                        tile,
                        request: input.request(tile.request),
                        out,
                    }
                    .run(s);
                });
            });
        });
    }
}
