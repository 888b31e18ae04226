//! Scores, softmax and weighted values of the pairs of one tile.
use std::ops::Range;

use super::path::Path;
use super::plan::{MAX_DIM, MAX_PAIRS, Request, Tile};
use super::softmax::softmax;
use super::{AttentionInput, AttentionShape};
use crate::element::{Element, sixteen};
use crate::scratch::{Buffer, lend};
use crate::shared::Shared;
use crate::simd::{Simd, Work};

thread_local! {
    /// Scores, then exponentials, of a tile: a row per pair, by path position. Then the sums.
    static SCORES: Buffer = const { Buffer::new(Vec::new()) };
    /// Queries of some pairs, [`MAX_DIM`] apart.
    static PACKED: Buffer = const { Buffer::new(Vec::new()) };
    /// Window rows on the path of one pair's row.
    static PATH: Buffer = const { Buffer::new(Vec::new()) };
}

/// What all tiles of a call read.
pub(super) struct Read<'a, E> {
    pub(super) shape: AttentionShape,
    pub(super) input: &'a AttentionInput<'a, E>,
    pub(super) queries: &'a [E],
    pub(super) k_cache: &'a [E],
    pub(super) v_cache: &'a [E],
}

/// Attention of one tile.
pub(super) struct OneTile<'a, E> {
    pub(super) read: &'a Read<'a, E>,
    pub(super) tile: Tile,
    pub(super) request: Request<'a>,
    pub(super) out: Shared<'a, E>,
}

/// Vectors of keys, or of values, that are multiplied at a time.
const VECTORS: usize = 2;

/// Pairs whose accumulators, [`VECTORS`] for each, fit the registers.
const fn most_pairs<S: Simd>() -> usize {
    match S::MAX_ROWS / VECTORS {
        0 => 1,
        most if most > MAX_PAIRS => MAX_PAIRS,
        most => most,
    }
}

/// Slots ahead of which keys and values are called to the L2 cache.
const AHEAD: usize = 64;

impl<E: Element> OneTile<'_, E> {
    /// Borrows scratch, then attends compiled for the level of `s`.
    pub(super) fn run<S: Simd>(self, s: S) {
        let request = self.request;
        // Whole vectors, and not a multiple of a page, which would crowd the same cache sets.
        let stride = (request.context + request.rows).next_multiple_of(16) + 16;
        let width = self.read.shape.head_dim.next_multiple_of(16);
        let pairs = self.tile.pairs;
        lend::<f32, _>(&SCORES, pairs * (stride + width), |floats| {
            lend::<E::X<S>, _>(&PACKED, pairs * MAX_DIM, |packed| {
                lend::<u32, _>(&PATH, request.rows, |path| {
                    let (scores, sums) = floats.split_at_mut(pairs * stride);
                    sums.fill(0.0);
                    let sums = Rows {
                        data: sums,
                        stride: width,
                    };
                    let scores = Rows {
                        data: scores,
                        stride,
                    };
                    // Entered here: a closure does not have the level's instructions.
                    s.enter(Attend {
                        tile: &self,
                        scores,
                        sums,
                        packed,
                        path,
                    });
                });
            });
        });
    }
}

/// The arithmetic of one tile, with its scratch.
struct Attend<'a, S: Simd, E: Element> {
    tile: &'a OneTile<'a, E>,
    scores: Rows<'a>,
    /// Weighted values of the pairs, not yet divided by the sums of the weights.
    sums: Rows<'a>,
    /// Queries of some pairs, [`MAX_DIM`] apart.
    packed: &'a mut [E::X<S>],
    path: &'a mut [u32],
}

impl<S: Simd, E: Element> Work<S> for Attend<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, s: S) {
        let Self {
            tile,
            mut scores,
            mut sums,
            packed,
            path,
        } = self;
        tile.attend(s, &mut scores, &mut sums, packed, path);
    }
}

/// A row of numbers for each pair.
struct Rows<'a> {
    data: &'a mut [f32],
    stride: usize,
}

impl Rows<'_> {
    #[inline(always)]
    fn row(&mut self, pair: usize) -> &mut [f32] {
        &mut self.data[pair * self.stride..][..self.stride]
    }

    /// Sixteen numbers of a row.
    #[inline(always)]
    fn sixteen(&mut self, pair: usize, at: usize) -> &mut [f32; 16] {
        let part = self.data[pair * self.stride + at..].first_chunk_mut();
        part.expect("sixteen numbers")
    }
}

impl<E: Element> OneTile<'_, E> {
    #[inline(always)]
    fn attend<S: Simd>(
        &self,
        s: S,
        all: &mut Rows<'_>,
        sums: &mut Rows<'_>,
        packed: &mut [E::X<S>],
        path: &mut [u32],
    ) {
        let (shape, tile, context) = (self.read.shape, self.tile, self.request.context);
        let row_of = |pair: usize| (tile.first + pair) / shape.group();
        let key_start = self.read.input.key_start;
        self.scores(s, key_start.min(context), packed, all);
        let mut inverse = [0.0; MAX_PAIRS];
        for pair in 0..tile.pairs {
            let scores = all.row(pair);
            let path = Path::new(self.request, tile.chain, row_of(pair), path);
            if let Path::Tree(rows) = path {
                for (depth, &row) in rows.iter().enumerate() {
                    scores[context + depth] = scores[context + row as usize];
                }
            }
            let end = context + path.len();
            inverse[pair] = 1.0 / softmax(s, scores, key_start.min(end - 1), end);
        }
        // Keys that every pair sees are weighed together, the others pair by pair.
        let common = context + if tile.chain { row_of(0) + 1 } else { 0 };
        if key_start < common {
            self.common_values(s, key_start..common, all, sums);
        }
        for pair in 0..tile.pairs {
            let (weights, sums) = (all.row(pair), sums.row(pair));
            let path = Path::new(self.request, tile.chain, row_of(pair), path);
            let end = context + path.len();
            let from = if key_start < common {
                common
            } else {
                key_start.min(end - 1)
            };
            for position in from..end {
                let slot = context + path.row(position - context);
                self.add_value(s, slot, weights[position], sums);
            }
            self.store(self.request.first + row_of(pair), pair, inverse[pair], sums);
        }
    }

    /// Scores of all pairs with the slots from `start` to the tile's last row.
    #[inline(always)]
    fn scores<S: Simd>(&self, s: S, start: usize, packed: &mut [E::X<S>], all: &mut Rows<'_>) {
        let mut from = 0;
        while from < self.tile.pairs {
            let pairs = most_pairs::<S>().min(self.tile.pairs - from);
            macro_rules! by_pairs {
                ($($pairs:literal)*) => {
                    match pairs {
                        $($pairs if $pairs <= most_pairs::<S>() => {
                            self.scores_of::<S, $pairs>(s, start, from, packed, all);
                        })*
                        _ => unreachable!("{pairs} pairs"),
                    }
                };
            }
            by_pairs!(1 2 3 4 5 6 7 8 9 10 11 12);
            from += pairs;
        }
    }

    /// [`Self::scores`] for the pairs `from..from + R`.
    #[inline(always)]
    fn scores_of<S: Simd, const R: usize>(
        &self,
        s: S,
        start: usize,
        from: usize,
        packed: &mut [E::X<S>],
        all: &mut Rows<'_>,
    ) {
        let (shape, tile) = (self.read.shape, self.tile);
        let (dim, group) = (shape.head_dim, shape.group());
        for r in 0..R {
            let pair = tile.first + from + r;
            let row = self.request.first + pair / group;
            let head = tile.kv_head * group + pair % group;
            let query = &self.read.queries[(row * shape.num_heads + head) * dim..][..dim];
            E::pack_row(s, query, &mut packed[r * MAX_DIM..][..MAX_DIM]);
        }
        // A constant distance apart, so that the products can address them.
        let (queries, _) = packed.as_chunks::<MAX_DIM>();
        let queries = queries.first_chunk::<R>().expect("R queries");
        let last = (tile.first + tile.pairs - 1) / group;
        let end = (self.request.context + last + 1).next_multiple_of(16);
        let mut at = start / 16 * 16;
        while at + 16 * VECTORS <= end {
            self.dot::<S, R, VECTORS>(s, queries, at, end, from, all);
            at += 16 * VECTORS;
        }
        if at < end {
            self.dot::<S, R, 1>(s, queries, at, end, from, all);
        }
    }

    /// Keys of sixteen slots from `slot` on: number (d, slot) is at d * B + slot.
    #[inline(always)]
    fn keys(&self, slot: usize) -> &[E] {
        let shape = self.read.shape;
        let block = self.request.blocks[slot / shape.block_size] as usize;
        let tile = (block * shape.num_kv_heads + self.tile.kv_head) * shape.tile();
        &self.read.k_cache[tile..][..shape.tile()][slot % shape.block_size..]
    }

    /// Scores of the pairs `from..from + R` with the slots `at..at + 16 * C`: the sum over d of
    /// query times key, d upwards, times the scale.
    #[inline(always)]
    fn dot<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        queries: &[[E::X<S>; MAX_DIM]; R],
        at: usize,
        end: usize,
        from: usize,
        all: &mut Rows<'_>,
    ) {
        let size = self.read.shape.block_size;
        let mut keys: [&[E]; C] = [&[]; C];
        let mut ahead: [&[E]; C] = [&[]; C];
        for c in 0..C {
            keys[c] = self.keys(at + c * 16);
            let later = at + c * 16 + AHEAD;
            ahead[c] = if later < end {
                self.keys(later)
            } else {
                keys[c]
            };
        }
        let mut acc = [[s.splat(0.0); C]; R];
        for step in 0..(self.read.shape.head_dim / E::STEP).min(MAX_DIM) {
            let d = step * E::STEP * size;
            for c in 0..C {
                s.prefetch(&ahead[c][d], 0);
                let cells = E::cells_of_rows(s, &keys[c][d..], size);
                for r in 0..R {
                    acc[r][c] = E::dot(s, queries[r][step], cells, acc[r][c]);
                }
            }
        }
        let scale = s.splat(self.read.input.scale);
        for r in 0..R {
            for c in 0..C {
                let to = all.sixteen(from + r, at + c * 16);
                s.store(s.mul(acc[r][c], scale), to);
            }
        }
    }

    /// Value of one slot.
    #[inline(always)]
    fn value_at(&self, slot: usize) -> usize {
        let shape = self.read.shape;
        let block = self.request.blocks[slot / shape.block_size] as usize;
        (block * shape.num_kv_heads + self.tile.kv_head) * shape.tile()
            + slot % shape.block_size * shape.head_dim
    }

    /// `sums[pair] += weight * value`, path positions `range` upwards, which are slots here.
    #[inline(always)]
    fn common_values<S: Simd>(
        &self,
        s: S,
        range: Range<usize>,
        all: &mut Rows<'_>,
        sums: &mut Rows<'_>,
    ) {
        let mut from = 0;
        while from < self.tile.pairs {
            let pairs = most_pairs::<S>().min(self.tile.pairs - from);
            macro_rules! by_pairs {
                ($($pairs:literal)*) => {
                    match pairs {
                        $($pairs if $pairs <= most_pairs::<S>() => {
                            self.values_of::<S, $pairs>(s, range.clone(), from, all, sums);
                        })*
                        _ => unreachable!("{pairs} pairs"),
                    }
                };
            }
            by_pairs!(1 2 3 4 5 6 7 8 9 10 11 12);
            from += pairs;
        }
    }

    /// [`Self::common_values`] for the pairs `from..from + R`.
    #[inline(always)]
    fn values_of<S: Simd, const R: usize>(
        &self,
        s: S,
        range: Range<usize>,
        from: usize,
        all: &mut Rows<'_>,
        sums: &mut Rows<'_>,
    ) {
        let dim = self.read.shape.head_dim;
        let mut d = 0;
        while d + 16 * VECTORS <= dim {
            self.weigh::<S, R, VECTORS>(s, range.clone(), from, d, all, sums);
            d += 16 * VECTORS;
        }
        if d + 16 <= dim {
            self.weigh::<S, R, 1>(s, range.clone(), from, d, all, sums);
            d += 16;
        }
        if d < dim {
            for pair in from..from + R {
                for p in range.clone() {
                    let at = self.value_at(p) + d;
                    let value = load_part(s, &self.read.v_cache[at..][..dim - d]);
                    add_scaled(s, all.row(pair)[p], value, sums.sixteen(pair, d));
                }
            }
        }
    }

    /// C vectors of the values from number `d` on.
    #[inline(always)]
    fn weigh<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        range: Range<usize>,
        from: usize,
        d: usize,
        all: &mut Rows<'_>,
        sums: &mut Rows<'_>,
    ) {
        let (size, dim) = (self.read.shape.block_size, self.read.shape.head_dim);
        let mut acc = [[s.splat(0.0); C]; R];
        let mut p = range.start;
        while p < range.end {
            let end = ((p / size + 1) * size).min(range.end);
            let values = &self.read.v_cache[self.value_at(p)..][..(end - p) * dim];
            let later = if end + AHEAD <= range.end {
                p + AHEAD
            } else {
                p
            };
            let ahead = &self.read.v_cache[self.value_at(later)..];
            let mut weights: [&[f32]; R] = [&[]; R];
            for r in 0..R {
                weights[r] = &all.data[(from + r) * all.stride..][p..end];
            }
            for (i, value) in values.chunks_exact(dim).enumerate() {
                for line in 0..(C * 16 * size_of::<E>()).div_ceil(64) {
                    s.prefetch(&ahead[i * dim + d], 64 * line);
                }
                for c in 0..C {
                    let value = E::load(s, sixteen(&value[d + c * 16..]));
                    for r in 0..R {
                        acc[r][c] = s.mul_add(s.splat(weights[r][i]), value, acc[r][c]);
                    }
                }
            }
            p = end;
        }
        for r in 0..R {
            for c in 0..C {
                s.store(acc[r][c], sums.sixteen(from + r, d + c * 16));
            }
        }
    }

    /// `sums += weight * value(slot)`
    #[inline(always)]
    fn add_value<S: Simd>(&self, s: S, slot: usize, weight: f32, sums: &mut [f32]) {
        let value = &self.read.v_cache[self.value_at(slot)..][..self.read.shape.head_dim];
        for (value, sums) in value.chunks(16).zip(sums.chunks_exact_mut(16)) {
            add_scaled(s, weight, load_part(s, value), sixteen_mut(sums));
        }
    }

    /// Divide by the sum of the weights, round, write.
    #[inline(always)]
    fn store(&self, row: usize, pair: usize, inverse: f32, sums: &[f32]) {
        let shape = self.read.shape;
        let group = shape.group();
        let head = self.tile.kv_head * group + (self.tile.first + pair) % group;
        let at = (row * shape.num_heads + head) * shape.head_dim;
        // SAFETY: each pair has its own part of the output.
        let out = unsafe { self.out.part(at, shape.head_dim) };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = E::from_f32(sum * inverse);
        }
    }
}

#[inline(always)]
fn sixteen_mut(from: &mut [f32]) -> &mut [f32; 16] {
    from.first_chunk_mut().expect("sixteen numbers")
}

/// Up to sixteen numbers, then zeros.
#[inline(always)]
fn load_part<S: Simd, E: Element>(s: S, from: &[E]) -> S::V {
    if let Some(whole) = from.first_chunk() {
        return E::load(s, whole);
    }
    let mut part = [E::default(); 16];
    part[..from.len()].copy_from_slice(from);
    E::load(s, &part)
}

/// `sums += weight * value`
#[inline(always)]
fn add_scaled<S: Simd>(s: S, weight: f32, value: S::V, sums: &mut [f32; 16]) {
    let sum = s.mul_add(s.splat(weight), value, s.load(sums));
    s.store(sum, sums);
}
