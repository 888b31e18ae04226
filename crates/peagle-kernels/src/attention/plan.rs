//! Shapes, checks, and the division of a call into tiles.
use std::cell::RefCell;

use super::AttentionInput;
use crate::element::Element;
use crate::error::{KernelError, check_index, check_len};

/// Greatest head dimension.
pub(super) const MAX_DIM: usize = 256;

/// Heads and cache geometry.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Hq, query heads.
    pub num_heads: usize,
    /// Hk, key and value heads; divides Hq.
    pub num_kv_heads: usize,
    /// D, a multiple of 8.
    pub head_dim: usize,
    /// B, slots of a block; a multiple of 16.
    pub block_size: usize,
    /// Blocks of the cache.
    pub num_blocks: usize,
}

impl AttentionShape {
    /// Query heads per key head.
    pub(super) fn group(self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Numbers of a row of `qkv`.
    pub(super) fn row(self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// Numbers of one head's block of keys, or of values.
    pub(super) fn tile(self) -> usize {
        self.head_dim * self.block_size
    }

    /// Numbers of each cache.
    fn cache(self) -> usize {
        self.num_blocks * self.num_kv_heads * self.tile()
    }

    fn check(self) -> Result<(), KernelError> {
        let size = |what, got: usize, legal, rule| {
            if legal {
                Ok(())
            } else {
                Err(KernelError::Size {
                    what,
                    got: got as i64,
                    rule,
                })
            }
        };
        let Self {
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            ..
        } = self;
        size("num_kv_heads", num_kv_heads, num_kv_heads > 0, "at least 1")?;
        let divides = num_heads > 0 && num_heads % num_kv_heads == 0;
        size(
            "num_heads",
            num_heads,
            divides,
            "a multiple of num_kv_heads",
        )?;
        let fits = (8..=MAX_DIM).contains(&head_dim) && head_dim % 8 == 0;
        size("head_dim", head_dim, fits, "a multiple of 8 up to 256")?;
        let whole = block_size > 0 && block_size % 16 == 0;
        size("block_size", block_size, whole, "a multiple of 16")
    }
}

/// One request's part of a call.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// First row.
    pub(super) first: usize,
    /// Slot index of the first row.
    pub(super) context: usize,
    /// Rows.
    pub(super) rows: usize,
    /// Its blocks.
    pub(super) blocks: &'a [i32],
    /// Parents of its rows.
    pub(super) parents: &'a [i32],
}

impl<'a, E: Element> AttentionInput<'a, E> {
    pub(super) fn requests(&self) -> usize {
        self.context_lens.len()
    }

    #[inline(always)]
    pub(super) fn request(&self, index: usize) -> Request<'a> {
        let width = self.block_tables.len() / self.requests();
        let first = self.query_start[index] as usize;
        let end = self.query_start[index + 1] as usize;
        Request {
            first,
            context: self.context_lens[index] as usize,
            rows: end - first,
            blocks: &self.block_tables[index * width..][..width],
            parents: &self.parents[first..end],
        }
    }
}

/// Everything the kernels index with is checked here, once.
pub(super) fn check<E: Element>(
    shape: AttentionShape,
    input: &AttentionInput<'_, E>,
    k_cache: usize,
    v_cache: usize,
    out: usize,
) -> Result<(), KernelError> {
    shape.check()?;
    let (rows, requests) = (input.slots.len(), input.requests());
    check_len("qkv", input.qkv.len(), rows * shape.row())?;
    check_len("out", out, rows * shape.num_heads * shape.head_dim)?;
    check_len("k_cache", k_cache, shape.cache())?;
    check_len("v_cache", v_cache, shape.cache())?;
    check_len("positions", input.positions.len(), rows)?;
    check_len("parents", input.parents.len(), rows)?;
    check_len("query_start", input.query_start.len(), requests + 1)?;
    check_len("sin", input.sin.len(), input.cos.len())?;
    let table_rows = input.cos.len() / (shape.head_dim / 2);
    check_len("cos", input.cos.len(), table_rows * (shape.head_dim / 2))?;
    for (what, norm) in [("q_norm", input.q_norm), ("k_norm", input.k_norm)] {
        check_len(
            what,
            norm.map_or(shape.head_dim, <[E]>::len),
            shape.head_dim,
        )?;
    }
    for (row, &position) in input.positions.iter().enumerate() {
        check_index("positions", row, position, 0, table_rows)?;
    }
    check_index("query_start", 0, input.query_start[0], 0, 1)?;
    check_index(
        "query_start",
        requests,
        input.query_start[requests],
        rows as i64,
        rows + 1,
    )?;
    if let Some(width) = input.block_tables.len().checked_div(requests) {
        check_len("block_tables", input.block_tables.len(), requests * width)?;
    }
    for index in 0..requests {
        let (from, to) = (input.query_start[index], input.query_start[index + 1]);
        check_index("query_start", index + 1, to, i64::from(from), rows + 1)?;
        check_index(
            "context_lens",
            index,
            input.context_lens[index],
            0,
            i32::MAX as usize,
        )?;
        check_request(shape, input, input.request(index))?;
    }
    Ok(())
}

fn check_request<E: Element>(
    shape: AttentionShape,
    input: &AttentionInput<'_, E>,
    request: Request<'_>,
) -> Result<(), KernelError> {
    let size = shape.block_size;
    let used = (request.context + request.rows).div_ceil(size);
    if request.rows > 0 && used > request.blocks.len() {
        let (got, expected) = (request.blocks.len(), used);
        return Err(KernelError::Length {
            what: "a row of block_tables",
            got,
            expected,
        });
    }
    let used = if request.rows > 0 { used } else { 0 };
    for (at, &block) in request.blocks[..used].iter().enumerate() {
        check_index("block_tables", at, block, 0, shape.num_blocks)?;
    }
    for i in 0..request.rows {
        let (row, slot) = (request.first + i, request.context + i);
        check_index("parents", row, request.parents[i], -1, i)?;
        let expected = request.blocks[slot / size] as usize * size + slot % size;
        let got = i64::from(input.slots[row]);
        if got != expected as i64 {
            return Err(KernelError::Slot {
                row,
                got,
                expected: expected as i64,
            });
        }
    }
    Ok(())
}

/// Most pairs of a tile: they share what is loaded of keys and values.
pub(super) const MAX_PAIRS: usize = 12;

/// Some (row, query head) pairs of one request that share a key head.
///
/// Pairs are numbered row * group + head inside the group.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) request: usize,
    /// Whether each row's parent is the row before.
    pub(super) chain: bool,
    pub(super) kv_head: usize,
    pub(super) first: usize,
    pub(super) pairs: usize,
}

thread_local! {
    static TILES: RefCell<Vec<Tile>> = const { RefCell::new(Vec::new()) };
}

/// Cut a call into tiles, the longest ones first.
pub(super) fn lend_tiles(
    shape: AttentionShape,
    input: &AttentionInput<'_, impl Element>,
    use_it: impl FnOnce(&[Tile]),
) {
    TILES.with_borrow_mut(|tiles| {
        tiles.clear();
        for request in 0..input.requests() {
            let Request { rows, parents, .. } = input.request(request);
            let chain = parents
                .iter()
                .zip(-1..)
                .all(|(&parent, before)| parent == before);
            let pairs = rows * shape.group();
            let count = pairs.div_ceil(MAX_PAIRS);
            for index in (0..count).rev() {
                let (first, end) = (pairs * index / count, pairs * (index + 1) / count);
                tiles.extend((0..shape.num_kv_heads).map(|kv_head| Tile {
                    request,
                    chain,
                    kv_head,
                    first,
                    pairs: end - first,
                }));
            }
        }
        use_it(tiles);
    });
}

/// Copy keys and values of slot `src[i]` to `dst[i]`, one pair after the other.
///
/// Caches as in [`super::attention`].
pub fn copy_slots<E: Element>(
    shape: AttentionShape,
    k_cache: &mut [E],
    v_cache: &mut [E],
    src: &[i32],
    dst: &[i32],
) -> Result<(), KernelError> {
    shape.check()?;
    check_len("k_cache", k_cache.len(), shape.cache())?;
    check_len("v_cache", v_cache.len(), shape.cache())?;
    check_len("dst", dst.len(), src.len())?;
    let slots = shape.num_blocks * shape.block_size;
    for (at, (&from, &to)) in src.iter().zip(dst).enumerate() {
        check_index("src", at, from, 0, slots)?;
        check_index("dst", at, to, 0, slots)?;
    }
    let (size, dim) = (shape.block_size, shape.head_dim);
    for (&from, &to) in src.iter().zip(dst) {
        let (from, to) = (from as usize, to as usize);
        for head in 0..shape.num_kv_heads {
            let tile = |slot| (slot / size * shape.num_kv_heads + head) * shape.tile();
            for d in 0..dim {
                k_cache[tile(to) + d * size + to % size] =
                    k_cache[tile(from) + d * size + from % size];
            }
            let start = tile(from) + from % size * dim;
            v_cache.copy_within(start..start + dim, tile(to) + to % size * dim);
        }
    }
    Ok(())
}
