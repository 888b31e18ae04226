//! Scores, softmax and weighted values of the pairs of one tile.
use super::plan::{MAX_DIM, MAX_PAIRS, Request, Tile};
use super::{AttentionInput, AttentionShape};
use crate::element::Element;
use crate::math::{exp, max_lanes, sum_lanes};
use crate::scratch::{Buffer, lend};
use crate::shared::Shared;
use crate::simd::{Simd, Work};

thread_local! {
    /// Scores, then exponentials, of a tile: a row per pair, by path position.
    static SCORES: Buffer = const { Buffer::new(Vec::new()) };
    /// Window rows on the path of one pair's row.
    static PATH: Buffer = const { Buffer::new(Vec::new()) };
}

/// What all tiles of a call read.
pub(super) struct Read<'a, E> {
    pub(super) shape: AttentionShape,
    pub(super) input: &'a AttentionInput<'a, E>,
    pub(super) queries: &'a [f32],
    pub(super) k_cache: &'a [E],
    pub(super) v_cache: &'a [E],
}

/// Attention of one tile.
pub(super) struct OneTile<'a, E> {
    pub(super) read: &'a Read<'a, E>,
    pub(super) tile: Tile,
    pub(super) out: Shared<'a, E>,
}

/// Pairs whose accumulators, `vectors` for each, fit the registers.
const fn most_pairs<S: Simd>(vectors: usize) -> usize {
    let most = S::MAX_ROWS / vectors;
    if most == 0 {
        1
    } else if most > MAX_PAIRS {
        MAX_PAIRS
    } else {
        most
    }
}

/// Weighted values of the pairs, not yet divided by the sums.
type Sums = [[f32; MAX_DIM]; MAX_PAIRS];

impl<E: Element> OneTile<'_, E> {
    /// Borrows scratch, then attends compiled for the level of `s`.
    pub(super) fn run<S: Simd>(self, s: S) {
        let request = self.read.input.request(self.tile.request);
        // Whole vectors, and not a multiple of a page, which would crowd the same cache sets.
        let stride = (request.context + request.rows).next_multiple_of(16) + 16;
        lend::<f32, _>(&SCORES, self.tile.pairs * stride, |scores| {
            lend::<u32, _>(&PATH, request.rows, |path| {
                // Entered here: a closure does not have the level's instructions.
                s.enter(Attend {
                    tile: &self,
                    request,
                    scores: Scores { scores, stride },
                    path,
                });
            });
        });
    }
}

/// The arithmetic of one tile, with its scratch.
struct Attend<'a, E> {
    tile: &'a OneTile<'a, E>,
    request: Request<'a>,
    scores: Scores<'a>,
    path: &'a mut [u32],
}

impl<S: Simd, E: Element> Work<S> for Attend<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, s: S) {
        self.tile.attend(s, self.request, self.scores, self.path);
    }
}

/// `[pairs, stride]`
struct Scores<'a> {
    scores: &'a mut [f32],
    stride: usize,
}

impl<E: Element> OneTile<'_, E> {
    #[inline(always)]
    fn attend<S: Simd>(&self, s: S, request: Request<'_>, mut all: Scores<'_>, path: &mut [u32]) {
        let (shape, tile, context) = (self.read.shape, self.tile, request.context);
        let row_of = |pair: usize| (tile.first + pair) / shape.group();
        let key_start = self.read.input.key_start;
        self.scores(s, request, key_start.min(context), &mut all);
        let mut inverse = [0.0; MAX_PAIRS];
        for pair in 0..tile.pairs {
            let scores = &mut all.scores[pair * all.stride..][..all.stride];
            let path = Path::new(request, tile.chain, row_of(pair), path);
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
        let mut sums: Sums = [[0.0; MAX_DIM]; MAX_PAIRS];
        if key_start < common {
            self.common_values(s, request, key_start..common, &all, &mut sums);
        }
        for pair in 0..tile.pairs {
            let scores = &all.scores[pair * all.stride..][..all.stride];
            let path = Path::new(request, tile.chain, row_of(pair), path);
            let end = context + path.len();
            let from = if key_start < common {
                common
            } else {
                key_start.min(end - 1)
            };
            for position in from..end {
                let slot = context + path.row(position - context);
                self.add_value(s, request, slot, scores[position], &mut sums[pair]);
            }
            self.store(
                request.first + row_of(pair),
                pair,
                inverse[pair],
                &sums[pair],
            );
        }
    }

    /// Scores of all pairs with the slots from `start` to the tile's last row.
    #[inline(always)]
    fn scores<S: Simd>(&self, s: S, request: Request<'_>, start: usize, all: &mut Scores<'_>) {
        let step = most_pairs::<S>(2);
        let mut from = 0;
        while from < self.tile.pairs {
            let pairs = step.min(self.tile.pairs - from);
            macro_rules! by_pairs {
                ($($pairs:literal)*) => {
                    match pairs {
                        $($pairs if $pairs <= most_pairs::<S>(2) => {
                            self.scores_of::<S, $pairs>(s, request, start, from, all);
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
        request: Request<'_>,
        start: usize,
        from: usize,
        all: &mut Scores<'_>,
    ) {
        let (shape, tile) = (self.read.shape, self.tile);
        let (dim, group) = (shape.head_dim, shape.group());
        let mut queries = [[0.0; R]; MAX_DIM];
        let queries = &mut queries[..dim];
        for r in 0..R {
            let pair = tile.first + from + r;
            let row = request.first + pair / group;
            let head = tile.kv_head * group + pair % group;
            let query = &self.read.queries[(row * shape.num_heads + head) * dim..][..dim];
            for (to, &x) in queries.iter_mut().zip(query) {
                to[r] = x;
            }
        }
        let last = (tile.first + tile.pairs - 1) / group;
        let end = (request.context + last + 1).div_ceil(16);
        let mut vector = start / 16;
        while vector < end {
            let out = &mut all.scores[from * all.stride..];
            let (out, at) = (out, vector * 16);
            if vector + 1 < end {
                let keys = [self.keys(request, at), self.keys(request, at + 16)];
                self.dot::<S, R, 2>(s, queries, keys, &mut out[at..], all.stride);
                vector += 2;
            } else {
                let keys = [self.keys(request, at)];
                self.dot::<S, R, 1>(s, queries, keys, &mut out[at..], all.stride);
                vector += 1;
            }
        }
    }

    /// Keys of sixteen slots from `slot` on: number (d, slot) is at d * B + slot.
    #[inline(always)]
    fn keys(&self, request: Request<'_>, slot: usize) -> &[E] {
        let shape = self.read.shape;
        let block = request.blocks[slot / shape.block_size] as usize;
        let tile = (block * shape.num_kv_heads + self.tile.kv_head) * shape.tile();
        &self.read.k_cache[tile..][..shape.tile()][slot % shape.block_size..]
    }

    /// `out[r][c] = scale * sum over d of queries[d][r] * keys[c][d]`, d upwards.
    #[inline(always)]
    fn dot<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        queries: &[[f32; R]],
        keys: [&[E]; C],
        out: &mut [f32],
        stride: usize,
    ) {
        let size = self.read.shape.block_size;
        let mut acc = [[s.splat(0.0); C]; R];
        for (d, query) in queries.iter().enumerate() {
            // A loop: the closure of `map` would not have the level's instructions.
            let mut loaded = [s.splat(0.0); C];
            for c in 0..C {
                loaded[c] = E::load(s, sixteen(&keys[c][d * size..]));
            }
            for r in 0..R {
                let x = s.splat(query[r]);
                for c in 0..C {
                    acc[r][c] = s.mul_add(x, loaded[c], acc[r][c]);
                }
            }
        }
        let scale = s.splat(self.read.input.scale);
        for r in 0..R {
            for c in 0..C {
                let to = out[r * stride + c * 16..]
                    .first_chunk_mut()
                    .expect("sixteen scores");
                s.store(s.mul(acc[r][c], scale), to);
            }
        }
    }

    /// Value of one slot.
    #[inline(always)]
    fn value_at(&self, request: Request<'_>, slot: usize) -> usize {
        let shape = self.read.shape;
        let block = request.blocks[slot / shape.block_size] as usize;
        (block * shape.num_kv_heads + self.tile.kv_head) * shape.tile()
            + slot % shape.block_size * shape.head_dim
    }

    /// `sums[pair] += weight * value`, path positions `range` upwards, which are slots here.
    #[inline(always)]
    fn common_values<S: Simd>(
        &self,
        s: S,
        request: Request<'_>,
        range: std::ops::Range<usize>,
        all: &Scores<'_>,
        sums: &mut Sums,
    ) {
        let step = most_pairs::<S>(4);
        let mut from = 0;
        while from < self.tile.pairs {
            let pairs = step.min(self.tile.pairs - from);
            macro_rules! by_pairs {
                ($($pairs:literal)*) => {
                    match pairs {
                        $($pairs if $pairs <= most_pairs::<S>(4) => {
                            let weights = std::array::from_fn(|r| {
                                &all.scores[(from + r) * all.stride..][..all.stride]
                            });
                            let sums = sums[from..].first_chunk_mut().expect("pairs");
                            self.values_of::<S, $pairs>(s, request, range.clone(), weights, sums);
                        })*
                        _ => unreachable!("{pairs} pairs"),
                    }
                };
            }
            by_pairs!(1 2 3 4 5 6 7);
            from += pairs;
        }
    }

    /// [`Self::common_values`] for R pairs, as many vectors at a time as registers allow.
    #[inline(always)]
    fn values_of<S: Simd, const R: usize>(
        &self,
        s: S,
        request: Request<'_>,
        range: std::ops::Range<usize>,
        weights: [&[f32]; R],
        sums: &mut [[f32; MAX_DIM]; R],
    ) {
        let dim = self.read.shape.head_dim;
        let mut d = 0;
        while d + 64 <= dim {
            self.weigh::<S, R, 4>(s, request, range.clone(), weights, d, sums);
            d += 64;
        }
        while d + 16 <= dim {
            self.weigh::<S, R, 1>(s, request, range.clone(), weights, d, sums);
            d += 16;
        }
        if d < dim {
            for (weights, sums) in weights.iter().zip(sums) {
                for p in range.clone() {
                    let at = self.value_at(request, p) + d;
                    let value = load_part(s, &self.read.v_cache[at..][..dim - d]);
                    add_scaled(s, weights[p], value, &mut sums[d..]);
                }
            }
        }
    }

    /// C vectors of the values from number `d` on.
    #[inline(always)]
    fn weigh<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        request: Request<'_>,
        range: std::ops::Range<usize>,
        weights: [&[f32]; R],
        d: usize,
        sums: &mut [[f32; MAX_DIM]; R],
    ) {
        let (size, dim) = (self.read.shape.block_size, self.read.shape.head_dim);
        let mut acc = [[s.splat(0.0); C]; R];
        let mut p = range.start;
        while p < range.end {
            let end = ((p / size + 1) * size).min(range.end);
            let values = &self.read.v_cache[self.value_at(request, p)..][..(end - p) * dim];
            let weights = weights.map(|weights| &weights[p..end]);
            for (i, value) in values.chunks_exact(dim).enumerate() {
                let mut loaded = [s.splat(0.0); C];
                for c in 0..C {
                    loaded[c] = E::load(s, sixteen(&value[d + c * 16..]));
                }
                for r in 0..R {
                    let x = s.splat(weights[r][i]);
                    for c in 0..C {
                        acc[r][c] = s.mul_add(x, loaded[c], acc[r][c]);
                    }
                }
            }
            p = end;
        }
        for r in 0..R {
            for c in 0..C {
                let to = sums[r][d + c * 16..]
                    .first_chunk_mut()
                    .expect("sixteen sums");
                s.store(acc[r][c], to);
            }
        }
    }

    /// `sums += weight * value(slot)`
    #[inline(always)]
    fn add_value<S: Simd>(
        &self,
        s: S,
        request: Request<'_>,
        slot: usize,
        weight: f32,
        sums: &mut [f32; MAX_DIM],
    ) {
        let value = &self.read.v_cache[self.value_at(request, slot)..][..self.read.shape.head_dim];
        for (value, sums) in value.chunks(16).zip(sums.chunks_exact_mut(16)) {
            add_scaled(s, weight, load_part(s, value), sums);
        }
    }

    /// Divide by the sum of the weights, round, write.
    #[inline(always)]
    fn store(&self, row: usize, pair: usize, inverse: f32, sums: &[f32; MAX_DIM]) {
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

/// The window rows that a row attends to, itself last.
#[derive(Clone, Copy)]
enum Path<'a> {
    /// The rows 0..length.
    Chain(usize),
    Tree(&'a [u32]),
}

impl<'a> Path<'a> {
    /// The path of `row`, written to `buffer` if need be.
    #[inline(always)]
    fn new(request: Request<'_>, chain: bool, row: usize, buffer: &'a mut [u32]) -> Self {
        if chain {
            return Self::Chain(row + 1);
        }
        let mut free = buffer.len();
        let mut next = row as i32;
        while next >= 0 {
            free -= 1;
            buffer[free] = next as u32;
            next = request.parents[next as usize];
        }
        Self::Tree(&buffer[free..])
    }

    #[inline(always)]
    fn len(self) -> usize {
        match self {
            Self::Chain(length) => length,
            Self::Tree(rows) => rows.len(),
        }
    }

    /// The row at a depth.
    #[inline(always)]
    fn row(self, depth: usize) -> usize {
        match self {
            Self::Chain(_) => depth,
            Self::Tree(rows) => rows[depth] as usize,
        }
    }
}

#[inline(always)]
fn sixteen<E>(from: &[E]) -> &[E; 16] {
    from.first_chunk().expect("sixteen numbers")
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

/// `sums[..16] += weight * value`
#[inline(always)]
fn add_scaled<S: Simd>(s: S, weight: f32, value: S::V, sums: &mut [f32]) {
    let sums = sums.first_chunk_mut().expect("sixteen sums");
    let sum = s.mul_add(s.splat(weight), value, s.load(sums));
    s.store(sum, sums);
}

/// Replace the scores of path positions `start..end` by e^(score - maximum); their sum.
///
/// Positions outside, as far as they share a vector with one inside, count as minus infinity.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], start: usize, end: usize) -> f32 {
    let (from, to) = (start / 16, end.div_ceil(16));
    scores[from * 16..start].fill(f32::NEG_INFINITY);
    scores[end..to * 16].fill(f32::NEG_INFINITY);
    let vectors = &mut scores.as_chunks_mut::<16>().0[from..to];
    let mut max = s.splat(f32::NEG_INFINITY);
    for vector in &*vectors {
        max = s.max(s.load(vector), max);
    }
    let mut lanes = [0.0; 16];
    s.store(max, &mut lanes);
    let max = s.splat(max_lanes(lanes));
    let mut sum = s.splat(0.0);
    for vector in vectors {
        let e = exp(s, s.sub(s.load(vector), max));
        s.store(e, vector);
        sum = s.add(sum, e);
    }
    s.store(sum, &mut lanes);
    sum_lanes(lanes)
}
