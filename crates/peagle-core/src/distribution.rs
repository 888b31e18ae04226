//! The processed target distribution of one row of logits, and a draw from it.
//!
//! Order: temperature, `min_p`, `top_k`, `top_p` (renormalised over what the earlier ones kept). Ties
//! go to the lowest id, also in what `top_k` and `top_p` keep. All three keep a set that is closed
//! upwards in (logit, lower id), so a row is processed without sorting it.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};
use crate::noise::NoiseKey;
use crate::simd::{self, CHUNK, Format, Race, Scale};

/// The sampling parameters of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: f64,
    /// Keep the `top_k` largest logits; 0 = all.
    pub top_k: u32,
    /// Keep the fewest tokens whose probabilities reach `top_p`; 1 = all.
    pub top_p: f64,
    /// Drop tokens below `min_p` times the largest probability; 0 = none.
    pub min_p: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

impl Sampling {
    /// Checks the ranges, naming the request.
    pub fn validate(&self, id: RequestId) -> Result<()> {
        let Self {
            temperature,
            top_p,
            min_p,
            ..
        } = *self;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(Error::InvalidTemperature { id, temperature });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::InvalidTopP { id, top_p });
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(Error::InvalidMinP { id, min_p });
        }
        Ok(())
    }
}

/// A token drawn from a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The token.
    pub token: TokenId,
    /// Whether another token's score came within 1e-6 (relative) of the winner's.
    pub near_tie: bool,
}

/// Buffers that are used again from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    maxima: Vec<f32>,
    order: Vec<f32>,
    candidates: Vec<Candidate>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    token: u32,
}

impl Candidate {
    /// Larger logits first, then lower ids.
    fn rank(&self, other: &Self) -> Ordering {
        let by_logit = other
            .logit
            .partial_cmp(&self.logit)
            .unwrap_or(Ordering::Equal);
        by_logit.then(self.token.cmp(&other.token))
    }
}

/// The token that the target itself draws at `position`.
///
/// Temperature 0 takes the largest logit; above it the noise of `key` decides, so the result is a
/// function of the row, the parameters, the key and the position. `row` is read in place.
///
/// Errors: a NaN, positive infinity, or no finite logit in the row.
pub fn draw<F: Format>(
    row: &[F::Bits],
    sampling: &Sampling,
    key: NoiseKey,
    position: i32,
    scratch: &mut Scratch,
) -> Result<Draw> {
    let scanned = simd::scan::<F>(row, &mut scratch.maxima);
    if scanned.has_nan {
        return Err(Error::NanLogits { position });
    }
    if scanned.max == f32::INFINITY {
        return Err(Error::InfiniteLogits { position });
    }
    if scanned.max == f32::NEG_INFINITY {
        return Err(Error::MaskedLogits { position });
    }
    let best = simd::first_max::<F>(row, &scratch.maxima, scanned.max);
    if sampling.temperature == 0.0 {
        return Ok(Draw {
            token: best as TokenId,
            near_tie: false,
        });
    }
    let scale = Scale {
        max: scanned.max,
        inverse_temperature: (1.0 / sampling.temperature).min(f64::from(f32::MAX)) as f32,
    };
    let min_logit = min_p_logit(scanned.max, sampling);
    let mut race = Race::new(key, position as u32, scale, sampling.temperature, min_logit);
    race.run(best as u32, scanned.max);
    let truncated =
        (sampling.top_k > 0 && (sampling.top_k as usize) < row.len()) || sampling.top_p < 1.0;
    if truncated {
        keep::<F>(row, sampling, scale, min_logit, scratch);
        scratch.tokens.clear();
        scratch.logits.clear();
        scratch
            .tokens
            .extend(scratch.candidates.iter().map(|c| c.token));
        scratch
            .logits
            .extend(scratch.candidates.iter().map(|c| c.logit));
        simd::race_listed(&scratch.tokens, &scratch.logits, &mut race);
    } else {
        simd::race_row::<F>(row, &mut race);
    }
    let (token, near_tie) = race.finish();
    Ok(Draw {
        token: token as TokenId,
        near_tie,
    })
}

/// The lowest logit that `min_p` keeps: `p >= min_p * max p` in logits.
fn min_p_logit(max: f32, sampling: &Sampling) -> f32 {
    if sampling.min_p == 0.0 {
        return f32::NEG_INFINITY;
    }
    let bound = f64::from(max) + sampling.temperature * libm::log(sampling.min_p);
    // The smallest f32 that is not below the bound.
    let rounded = bound as f32;
    let lowest = if f64::from(rounded) < bound {
        rounded.next_up()
    } else {
        rounded
    };
    lowest.min(max)
}

/// Fills `scratch.candidates` with the tokens that `min_p`, `top_k` and `top_p` keep.
fn keep<F: Format>(
    row: &[F::Bits],
    sampling: &Sampling,
    scale: Scale,
    min_logit: f32,
    scratch: &mut Scratch,
) {
    let top_k = sampling.top_k as usize;
    let total = if top_k > 0 && top_k < row.len() {
        let bound = top_k_bound(&scratch.maxima, top_k, &mut scratch.order).max(min_logit);
        collect::<F>(row, bound, &scratch.maxima, &mut scratch.candidates);
        keep_top_k(&mut scratch.candidates, top_k);
        if sampling.top_p == 1.0 {
            return;
        }
        let weights = scratch
            .candidates
            .iter()
            .map(|c| f64::from(scale.weight(c.logit)));
        weights.sum::<f64>()
    } else {
        let total = simd::weight_sum::<F>(row, scale, min_logit);
        // Tokens below this weight cannot reach 1 - top_p together: none of them is kept.
        let lowest_weight = (1.0 - sampling.top_p) * total / row.len() as f64;
        let bound = f64::from(scale.max) + sampling.temperature * (libm::log(lowest_weight) - 1e-3);
        let bound = (bound as f32).max(min_logit).min(scale.max);
        collect::<F>(row, bound, &scratch.maxima, &mut scratch.candidates);
        total
    };
    keep_top_p(&mut scratch.candidates, sampling.top_p * total, scale);
}

/// A logit that at least `top_k` elements reach, from the maxima of the chunks.
fn top_k_bound(maxima: &[f32], top_k: usize, order: &mut Vec<f32>) -> f32 {
    if top_k > maxima.len() {
        return f32::NEG_INFINITY;
    }
    order.clear();
    order.extend_from_slice(maxima);
    let descending = |a: &f32, b: &f32| b.partial_cmp(a).unwrap_or(Ordering::Equal);
    *order.select_nth_unstable_by(top_k - 1, descending).1
}

/// Collects the finite logits of at least `bound`, in id order.
fn collect<F: Format>(
    row: &[F::Bits],
    bound: f32,
    maxima: &[f32],
    candidates: &mut Vec<Candidate>,
) {
    candidates.clear();
    for (chunk, &max) in maxima.iter().enumerate() {
        if max < bound || max == f32::NEG_INFINITY {
            continue;
        }
        let start = chunk * CHUNK;
        let end = (start + CHUNK).min(row.len());
        for (index, &bits) in row[start..end].iter().enumerate() {
            let logit = F::widen(bits);
            if logit >= bound && logit > f32::NEG_INFINITY {
                candidates.push(Candidate {
                    logit,
                    token: (start + index) as u32,
                });
            }
        }
    }
}

fn keep_top_k(candidates: &mut Vec<Candidate>, top_k: usize) {
    if candidates.len() > top_k {
        candidates.select_nth_unstable_by(top_k - 1, Candidate::rank);
        candidates.truncate(top_k);
    }
}

/// Keeps the best candidates until their weights reach `wanted`; at least one.
///
/// Candidates are counted into buckets by exponent, and only the bucket in which `wanted` is reached
/// is sorted. Bucketing is monotone in the logit, so the result is that of a full sort.
fn keep_top_p(candidates: &mut Vec<Candidate>, wanted: f64, scale: Scale) {
    const PER_UNIT: f32 = 32.0;
    const BUCKETS: usize = 2816;
    let bucket_of =
        |c: &Candidate| ((-scale.exponent(c.logit) * PER_UNIT) as usize).min(BUCKETS - 1);
    let weight_of = |c: &Candidate| f64::from(scale.weight(c.logit));
    let mut masses = vec![0.0_f64; BUCKETS];
    for candidate in &*candidates {
        masses[bucket_of(candidate)] += weight_of(candidate);
    }
    let mut mass = 0.0;
    let Some(boundary) = masses.iter().position(|&bucket| {
        let reached = mass + bucket >= wanted;
        if !reached {
            mass += bucket;
        }
        reached
    }) else {
        return;
    };
    let mut edge: Vec<Candidate> = candidates
        .iter()
        .filter(|c| bucket_of(c) == boundary)
        .copied()
        .collect();
    candidates.retain(|c| bucket_of(c) < boundary);
    edge.sort_unstable_by(Candidate::rank);
    for candidate in edge {
        if mass >= wanted && !candidates.is_empty() {
            break;
        }
        mass += weight_of(&candidate);
        candidates.push(candidate);
    }
}

/// The target probabilities of a row after the parameters, `[vocabulary]`: the plain way, by sorting,
/// in f64. It is the reference that the fast draw is tested against.
pub fn target_probs(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal));
    let max = f64::from(logits[order[0]]);
    let mut probs = vec![0.0; logits.len()];
    if sampling.temperature == 0.0 {
        probs[order[0]] = 1.0;
        return probs;
    }
    let weight = |token: usize| ((f64::from(logits[token]) - max) / sampling.temperature).exp();
    order.retain(|&token| weight(token) >= sampling.min_p);
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k as usize);
    }
    let total: f64 = order.iter().map(|&token| weight(token)).sum();
    let mut mass = 0.0;
    if sampling.top_p < 1.0 {
        let kept = order.iter().take_while(|&&token| {
            let wanted = mass < sampling.top_p * total;
            mass += weight(token);
            wanted
        });
        let kept = kept.count().max(1);
        order.truncate(kept);
    }
    let total: f64 = order.iter().map(|&token| weight(token)).sum();
    for &token in &order {
        probs[token] = weight(token) / total;
    }
    probs
}

#[cfg(test)]
mod tests;
