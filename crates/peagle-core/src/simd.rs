//! Loops over a row of logits, compiled for each SIMD level and chosen at run time.
//!
//! The loops are plain Rust over fixed lanes, so every level performs the same operations in the same
//! order and gives the same bits. A row stays in its own format; a chunk at a time is widened to f32.

#![expect(
    clippy::inline_always,
    reason = "loop bodies must be compiled inside each SIMD level"
)]
#![expect(clippy::float_cmp, reason = "ties are exact")]

use std::array;

use pulp::{Arch, Simd, WithSimd};

use crate::distribution::Kept;
use crate::noise::NoiseKey;

/// Elements whose maximum is kept by [`scan`].
pub(crate) const CHUNK: usize = 128;
const LANES: usize = 16;
/// Tokens raced at a time.
pub(crate) const RACE: usize = 64;
/// Below this exponent a weight counts as `exp(LOWEST)` in screens and sums.
const LOWEST: f32 = -86.0;

/// The format of a row of logits.
pub trait Format: Copy + Send + Sync + 'static {
    /// One stored element.
    type Bits: Copy + Send + Sync + 'static;
    /// The element as f32, exactly.
    fn widen(bits: Self::Bits) -> f32;
}

/// IEEE single precision.
#[derive(Clone, Copy, Debug)]
pub struct F32;

/// The upper half of an IEEE single.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

/// IEEE half precision.
#[derive(Clone, Copy, Debug)]
pub struct F16;

impl Format for F32 {
    type Bits = f32;
    #[inline(always)]
    fn widen(bits: f32) -> f32 {
        bits
    }
}

impl Format for Bf16 {
    type Bits = u16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
}

impl Format for F16 {
    type Bits = u16;
    /// Shifting the fields into place leaves the exponent 112 too low; one exact product repairs it
    /// for normal and subnormal numbers, and what lands at 2^16 or above was infinite or NaN.
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
        let magnitude = f32::from_bits((u32::from(bits) & 0x7FFF) << 13) * REBIAS;
        let special = u32::from(magnitude >= 65536.0) * 0x7F80_0000;
        f32::from_bits(magnitude.to_bits() | special | (u32::from(bits) & 0x8000) << 16)
    }
}

/// The SIMD level the loops run at on this machine.
pub fn simd_path() -> &'static str {
    let debug = format!("{:?}", Arch::new());
    match debug.split('(').next().unwrap_or_default() {
        "V4" => "avx512",
        "V3" => "avx2",
        "Neon" | "NeonFcma" => "neon",
        _ => "baseline",
    }
}

/// What one pass over a row finds.
pub(crate) struct Scanned {
    pub(crate) max: f32,
    pub(crate) has_nan: bool,
}

struct Scan<'a, F: Format> {
    row: &'a [F::Bits],
    maxima: &'a mut Vec<f32>,
}

impl<F: Format> WithSimd for Scan<'_, F> {
    type Output = Scanned;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Scanned {
        let mut nan = [0_u32; LANES];
        let mut max = f32::NEG_INFINITY;
        for chunk in self.row.chunks(CHUNK) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            let (whole, rest) = chunk.as_chunks::<LANES>();
            for group in whole {
                for lane in 0..LANES {
                    let value = F::widen(group[lane]);
                    lanes[lane] = if value > lanes[lane] {
                        value
                    } else {
                        lanes[lane]
                    };
                    nan[lane] |= u32::from(value.is_nan());
                }
            }
            for (lane, &bits) in rest.iter().enumerate() {
                let value = F::widen(bits);
                lanes[lane] = if value > lanes[lane] {
                    value
                } else {
                    lanes[lane]
                };
                nan[lane] |= u32::from(value.is_nan());
            }
            let chunk_max = widest(lanes);
            max = if chunk_max > max { chunk_max } else { max };
            self.maxima.push(chunk_max);
        }
        Scanned {
            max,
            has_nan: nan.iter().any(|&lane| lane != 0),
        }
    }
}

#[inline(always)]
fn widest(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            let other = lanes[lane + width];
            lanes[lane] = if other > lanes[lane] {
                other
            } else {
                lanes[lane]
            };
        }
        width /= 2;
    }
    lanes[0]
}

/// One pass: the row's maximum, whether it has a NaN, and the maximum of each chunk in `maxima`.
pub(crate) fn scan<F: Format>(row: &[F::Bits], maxima: &mut Vec<f32>) -> Scanned {
    maxima.clear();
    maxima.reserve(row.len().div_ceil(CHUNK));
    Arch::new().dispatch(Scan::<F> { row, maxima })
}

struct StreamingMax<'a>(&'a [f32]);

impl WithSimd for StreamingMax<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 4 * LANES];
        for group in self.0.as_chunks::<{ 4 * LANES }>().0 {
            for (lane, &value) in lanes.iter_mut().zip(group) {
                *lane = if value > *lane { value } else { *lane };
            }
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// The largest of `values` (a multiple of 64 of them): the floor that benchmarks compare with.
#[doc(hidden)]
pub fn streaming_max(values: &[f32]) -> f32 {
    Arch::new().dispatch(StreamingMax(values))
}

/// The index of the first element equal to the row's maximum.
pub(crate) fn first_max<F: Format>(row: &[F::Bits], maxima: &[f32], max: f32) -> usize {
    let chunk = maxima.iter().position(|&m| m == max).unwrap_or(0);
    let start = chunk * CHUNK;
    let found = row[start..].iter().position(|&bits| F::widen(bits) == max);
    start + found.unwrap_or(0)
}

/// `exp(x)` for `x` in [-86, 0], relative error below 3e-7, the same bits at every SIMD level.
#[inline(always)]
pub(crate) fn exp32(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    let mut value = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        value = value * rest + coefficient;
    }
    f32::from_bits(value.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// How logits become weights: `exp((logit - max) / temperature)`.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) max: f32,
    pub(crate) inverse_temperature: f32,
}

impl Scale {
    /// `(logit - max) / temperature` in f32, at least [`LOWEST`]; monotone in the logit.
    #[inline(always)]
    pub(crate) fn exponent(self, logit: f32) -> f32 {
        let exponent = (logit - self.max) * self.inverse_temperature;
        if exponent > LOWEST { exponent } else { LOWEST }
    }

    /// The weight in f32.
    #[inline(always)]
    pub(crate) fn weight(self, logit: f32) -> f32 {
        exp32(self.exponent(logit))
    }
}

struct WeightSum<'a, F: Format> {
    row: &'a [F::Bits],
    scale: Scale,
    min_logit: f32,
}

impl<F: Format> WithSimd for WeightSum<'_, F> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> f64 {
        let mut total = 0.0;
        for block in self.row.chunks(CHUNK * 8) {
            let mut lanes = [0.0_f32; LANES];
            let (whole, rest) = block.as_chunks::<LANES>();
            for group in whole {
                for lane in 0..LANES {
                    lanes[lane] += self.weight(group[lane]);
                }
            }
            for (lane, &bits) in rest.iter().enumerate() {
                lanes[lane] += self.weight(bits);
            }
            total += lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        }
        total
    }
}

impl<F: Format> WeightSum<'_, F> {
    #[inline(always)]
    fn weight(&self, bits: F::Bits) -> f32 {
        let logit = F::widen(bits);
        let weight = self.scale.weight(logit);
        if logit >= self.min_logit { weight } else { 0.0 }
    }
}

/// The sum of the weights of all logits of at least `min_logit`.
pub(crate) fn weight_sum<F: Format>(row: &[F::Bits], scale: Scale, min_logit: f32) -> f64 {
    Arch::new().dispatch(WeightSum::<F> {
        row,
        scale,
        min_logit,
    })
}

/// A race among tokens: who reaches the smallest `exponential / weight` wins.
///
/// A chunk is screened in f32 with the upper noise bits: since `E >= v`, a token whose
/// `v >= best * weight` (with a margin for f32) cannot win. The few that pass are decided in f64.
pub(crate) struct Race {
    key: NoiseKey,
    position: u32,
    scale: Scale,
    temperature: f64,
    min_logit: f32,
    best: Contender,
    runner_up: f64,
}

#[derive(Clone, Copy)]
struct Contender {
    token: u32,
    score: f64,
}

impl Race {
    /// A race at an absolute position, over tokens whose logit is at least `min_logit`.
    pub(crate) fn new(
        key: NoiseKey,
        position: u32,
        scale: Scale,
        temperature: f64,
        min_logit: f32,
    ) -> Self {
        let best = Contender {
            token: u32::MAX,
            score: f64::INFINITY,
        };
        Self {
            key,
            position,
            scale,
            temperature,
            min_logit,
            best,
            runner_up: f64::INFINITY,
        }
    }

    /// Lets one token run, in f64.
    pub(crate) fn run(&mut self, token: u32, logit: f32) {
        if logit < self.min_logit || token == self.best.token {
            return;
        }
        let exponent = (f64::from(logit) - f64::from(self.scale.max)) / self.temperature;
        let weight = libm::exp(exponent);
        if weight == 0.0 {
            return;
        }
        let score = self.key.exponential(token, self.position) / weight;
        let wins = score < self.best.score || (score == self.best.score && token < self.best.token);
        if wins {
            self.runner_up = self.best.score;
            self.best = Contender { token, score };
        } else if score < self.runner_up {
            self.runner_up = score;
        }
    }

    /// The winner, and whether the runner-up came within 1e-6 of it.
    pub(crate) fn finish(self) -> (u32, bool) {
        let near = self.runner_up <= self.best.score * (1.0 + 1e-6);
        (self.best.token, near)
    }

    #[inline(always)]
    fn run_chunk(&mut self, tokens: &[u32; RACE], logits: &[f32; RACE]) {
        const MARGIN: f64 = 1.0 + 1e-4;
        const STEP: f32 = 1.0 / 16_777_216.0;
        let bound = (self.best.score * MARGIN).min(f64::from(f32::MAX)) as f32;
        let mut passes = [0_u32; RACE];
        for lane in 0..RACE {
            // The upper 24 bits convert exactly and never exceed the noise itself.
            let noise = (self.key.high_bits(tokens[lane], self.position) >> 8) as i32 as f32 * STEP;
            let weight = self.scale.weight(logits[lane]);
            passes[lane] = u32::from(noise <= bound * weight);
        }
        let any = passes.iter().fold(0, |any, pass| any | pass);
        if any != 0 {
            for lane in (0..RACE).filter(|&lane| passes[lane] != 0) {
                self.run(tokens[lane], logits[lane]);
            }
        }
    }
}

struct DenseRace<'a, F: Format> {
    row: &'a [F::Bits],
    race: &'a mut Race,
}

impl<F: Format> WithSimd for DenseRace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let mut tokens: [u32; RACE] = array::from_fn(|lane| lane as u32);
        let mut logits = [0.0_f32; RACE];
        let (whole, rest) = self.row.as_chunks::<RACE>();
        for chunk in whole {
            for lane in 0..RACE {
                logits[lane] = F::widen(chunk[lane]);
            }
            self.race.run_chunk(&tokens, &logits);
            for token in &mut tokens {
                *token += RACE as u32;
            }
        }
        for (lane, &bits) in rest.iter().enumerate() {
            self.race.run(tokens[lane], F::widen(bits));
        }
    }
}

/// Races a whole row, token id = index.
pub(crate) fn race_row<F: Format>(row: &[F::Bits], race: &mut Race) {
    Arch::new().dispatch(DenseRace::<F> { row, race });
}

struct ListedRace<'a> {
    kept: &'a Kept,
    race: &'a mut Race,
}

impl WithSimd for ListedRace<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let (token_chunks, token_rest) = self.kept.tokens.as_chunks::<RACE>();
        let (logit_chunks, logit_rest) = self.kept.logits.as_chunks::<RACE>();
        for (tokens, logits) in token_chunks.iter().zip(logit_chunks) {
            self.race.run_chunk(tokens, logits);
        }
        for (&token, &logit) in token_rest.iter().zip(logit_rest) {
            self.race.run(token, logit);
        }
    }
}

/// Races the listed tokens.
pub(crate) fn race_listed(kept: &Kept, race: &mut Race) {
    Arch::new().dispatch(ListedRace { kept, race });
}

struct Collect<'a, F: Format> {
    row: &'a [F::Bits],
    bound: f32,
    maxima: &'a [f32],
    kept: &'a mut Kept,
}

impl<F: Format> WithSimd for Collect<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self {
            row,
            bound,
            maxima,
            kept,
        } = self;
        let mut len = 0;
        for (chunk, (values, &max)) in row.chunks(CHUNK).zip(maxima).enumerate() {
            if max < bound {
                continue;
            }
            kept.reserve(len + CHUNK);
            let tokens = &mut kept.tokens[len..len + CHUNK];
            let logits = &mut kept.logits[len..len + CHUNK];
            let mut hits = 0;
            // Every value is written, and the place moves on only past those that reach the bound.
            for (token, &bits) in ((chunk * CHUNK) as u32..).zip(values) {
                let logit = F::widen(bits);
                tokens[hits] = token;
                logits[hits] = logit;
                hits += usize::from(logit >= bound);
            }
            len += hits;
        }
        kept.truncate(len);
    }
}

/// Collects the logits of at least `bound`, in id order.
pub(crate) fn collect<F: Format>(row: &[F::Bits], bound: f32, maxima: &[f32], kept: &mut Kept) {
    // Masked tokens are never drawn, whatever the bound.
    let bound = bound.max(f32::MIN);
    Arch::new().dispatch(Collect::<F> {
        row,
        bound,
        maxima,
        kept,
    });
}

struct Least<'a>(&'a [f32]);

impl WithSimd for Least<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> f32 {
        let mut lanes = [f32::INFINITY; LANES];
        let (groups, rest) = self.0.as_chunks::<LANES>();
        for group in groups {
            for lane in 0..LANES {
                lanes[lane] = if group[lane] < lanes[lane] {
                    group[lane]
                } else {
                    lanes[lane]
                };
            }
        }
        lanes
            .iter()
            .chain(rest)
            .copied()
            .fold(f32::INFINITY, f32::min)
    }
}

/// The smallest logit.
pub(crate) fn least(logits: &[f32]) -> f32 {
    Arch::new().dispatch(Least(logits))
}

struct FillWeights<'a> {
    logits: &'a [f32],
    scale: Scale,
    weights: &'a mut Vec<f32>,
}

impl WithSimd for FillWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        self.weights.clear();
        self.weights.resize(self.logits.len(), 0.0);
        for (weight, &logit) in self.weights.iter_mut().zip(self.logits) {
            *weight = self.scale.weight(logit);
        }
    }
}

/// The weight of each logit.
pub(crate) fn fill_weights(logits: &[f32], scale: Scale, weights: &mut Vec<f32>) {
    Arch::new().dispatch(FillWeights {
        logits,
        scale,
        weights,
    });
}

struct WeightAtLeast<'a> {
    logits: &'a [f32],
    weights: &'a [f32],
    bound: f32,
}

impl WithSimd for WeightAtLeast<'_> {
    type Output = (f64, usize);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> (f64, usize) {
        let Self {
            logits,
            weights,
            bound,
        } = self;
        let (mut total, mut hits) = (0.0, 0);
        for (logits, weights) in logits.chunks(CHUNK * 8).zip(weights.chunks(CHUNK * 8)) {
            let mut sums = [0.0_f32; LANES];
            let mut counts = [0_u32; LANES];
            let (logit_groups, logit_rest) = logits.as_chunks::<LANES>();
            let (weight_groups, weight_rest) = weights.as_chunks::<LANES>();
            for (logits, weights) in logit_groups.iter().zip(weight_groups) {
                let reaches: [u32; LANES] = array::from_fn(|lane| u32::from(logits[lane] >= bound));
                for lane in 0..LANES {
                    let masked = weights[lane].to_bits() & reaches[lane].wrapping_neg();
                    sums[lane] += f32::from_bits(masked);
                    counts[lane] += reaches[lane];
                }
            }
            for (lane, (&logit, &weight)) in logit_rest.iter().zip(weight_rest).enumerate() {
                let reaches = u32::from(logit >= bound);
                sums[lane] += f32::from_bits(weight.to_bits() & reaches.wrapping_neg());
                counts[lane] += reaches;
            }
            total += sums.iter().map(|&sum| f64::from(sum)).sum::<f64>();
            hits += counts.iter().sum::<u32>() as usize;
        }
        (total, hits)
    }
}

/// The sum of the weights whose logit is at least `bound`, and how many there are.
pub(crate) fn weight_at_least(logits: &[f32], weights: &[f32], bound: f32) -> (f64, usize) {
    Arch::new().dispatch(WeightAtLeast {
        logits,
        weights,
        bound,
    })
}
