//! Weights of logits: sums, and which logits reach a bound.

use std::array;

use pulp::{Arch, Simd, WithSimd};

use super::{CHUNK, Format, LANES, Scale};
use crate::distribution::Kept;

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
