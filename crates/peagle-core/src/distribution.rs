//! The processed target distribution of one row of logits, and a draw from it.
//!
//! Order: temperature, `min_p`, `top_k`, `top_p` (renormalised over what the earlier ones kept). Ties
//! go to the lowest id, also in what `top_k` and `top_p` keep. All three keep a set that is closed
//! upwards in (logit, lower id), so a row is processed without sorting it.

#![expect(
    clippy::float_cmp,
    reason = "ties and switched-off parameters are exact"
)]

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};
use crate::noise::NoiseKey;
use crate::simd::{self, Format, Race, Scale};

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
    weights: Vec<f32>,
    kept: Kept,
}

/// Tokens that may still be drawn, in id order.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Vec<f32>,
}

/// Where a ranking by (larger logit, lower id) is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    /// The last logit kept.
    logit: f32,
    /// How many of the tokens with exactly that logit are kept.
    ties: usize,
}

impl Kept {
    /// Makes room for at least `len` tokens; their values are arbitrary.
    pub(crate) fn reserve(&mut self, len: usize) {
        if self.tokens.len() < len {
            let len = len.max(2 * self.tokens.len());
            self.tokens.resize(len, 0);
            self.logits.resize(len, 0.0);
        }
    }

    /// Keeps the first `len` tokens.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.logits.truncate(len);
    }

    /// Keeps the logits that pass, in order.
    #[inline]
    fn retain(&mut self, mut passes: impl FnMut(f32) -> bool) {
        let mut len = 0;
        for index in 0..self.logits.len() {
            let logit = self.logits[index];
            self.logits[len] = logit;
            self.tokens[len] = self.tokens[index];
            len += usize::from(passes(logit));
        }
        self.truncate(len);
    }

    fn cut(&mut self, cut: Cut) {
        let mut ties = cut.ties;
        self.retain(|logit| {
            let tied = logit == cut.logit && ties > 0;
            ties -= usize::from(tied);
            tied || logit > cut.logit
        });
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
    let max = check::<F>(row, position, &mut scratch.maxima)?;
    let best = simd::first_max::<F>(row, &scratch.maxima, max);
    if sampling.temperature == 0.0 {
        return Ok(Draw {
            token: best as TokenId,
            near_tie: false,
        });
    }
    let law = Law::<F>::new(row, sampling, max, scratch);
    let (scale, min_logit) = (law.scale, law.min_logit);
    let mut race = Race::new(key, position as u32, scale, sampling.temperature, min_logit);
    race.run(best as u32, max);
    if law.is_listed {
        simd::race_listed(&scratch.kept, &mut race);
    } else {
        simd::race_row::<F>(row, &mut race);
    }
    let (token, near_tie) = race.finish();
    Ok(Draw {
        token: token as TokenId,
        near_tie,
    })
}

/// The law that [`draw`] draws from, `[vocabulary]` in f64, into `probs`: a point mass at temperature
/// 0. The same parameters in the same order, and the same errors.
pub fn processed_probs<F: Format>(
    row: &[F::Bits],
    sampling: &Sampling,
    position: i32,
    scratch: &mut Scratch,
    probs: &mut Vec<f64>,
) -> Result<()> {
    let max = check::<F>(row, position, &mut scratch.maxima)?;
    probs.clear();
    probs.resize(row.len(), 0.0);
    if sampling.temperature == 0.0 {
        probs[simd::first_max::<F>(row, &scratch.maxima, max)] = 1.0;
        return Ok(());
    }
    let law = Law::<F>::new(row, sampling, max, scratch);
    let weight = |logit: f32| libm::exp((f64::from(logit) - f64::from(max)) / sampling.temperature);
    if law.is_listed {
        for (&token, &logit) in scratch.kept.tokens.iter().zip(&scratch.kept.logits) {
            probs[token as usize] = weight(logit);
        }
    } else {
        for (prob, &bits) in probs.iter_mut().zip(row) {
            let logit = F::widen(bits);
            if logit >= law.min_logit {
                *prob = weight(logit);
            }
        }
    }
    let total: f64 = probs.iter().sum();
    for prob in probs.iter_mut() {
        *prob /= total;
    }
    Ok(())
}

/// The largest logit of a row; `maxima` gets that of each chunk.
///
/// Errors: a NaN, positive infinity, or no finite logit in the row.
pub(crate) fn check<F: Format>(
    row: &[F::Bits],
    position: i32,
    maxima: &mut Vec<f32>,
) -> Result<f32> {
    let scanned = simd::scan::<F>(row, maxima);
    if scanned.has_nan {
        return Err(Error::NanLogits { position });
    }
    if scanned.max == f32::INFINITY {
        return Err(Error::InfiniteLogits { position });
    }
    if scanned.max == f32::NEG_INFINITY {
        return Err(Error::MaskedLogits { position });
    }
    Ok(scanned.max)
}

/// The law of a row at a temperature above 0.
///
/// Errors: a NaN, positive infinity, or no finite logit in the row.
pub(crate) fn law<'a, F: Format>(
    row: &'a [F::Bits],
    sampling: &Sampling,
    position: i32,
    scratch: &mut Scratch,
) -> Result<Law<'a, F>> {
    let max = check::<F>(row, position, &mut scratch.maxima)?;
    Ok(Law::new(row, sampling, max, scratch))
}

/// What a row becomes: `exp((logit - max) / temperature)` for each token that may be drawn, not
/// normalised.
pub(crate) struct Law<'a, F: Format> {
    row: &'a [F::Bits],
    temperature: f64,
    scale: Scale,
    /// No token with a lower logit may be drawn.
    min_logit: f32,
    /// Whether `scratch.kept` lists the tokens that may be drawn.
    is_listed: bool,
}

impl<'a, F: Format> Law<'a, F> {
    fn new(row: &'a [F::Bits], sampling: &Sampling, max: f32, scratch: &mut Scratch) -> Self {
        let scale = Scale::new(max, sampling.temperature);
        let min_logit = min_p_logit(max, sampling);
        let top_k = sampling.top_k as usize;
        let is_listed = (top_k > 0 && top_k < row.len()) || sampling.top_p < 1.0;
        if is_listed {
            keep::<F>(row, sampling, scale, min_logit, scratch);
        }
        Self {
            row,
            temperature: sampling.temperature,
            scale,
            min_logit,
            is_listed,
        }
    }

    /// The sum of the weights of all tokens that may be drawn.
    pub(crate) fn total_weight(&self, scratch: &mut Scratch) -> f64 {
        if !self.is_listed {
            return simd::weight_sum::<F>(self.row, self.scale, self.min_logit);
        }
        let Scratch { kept, weights, .. } = scratch;
        simd::fill_weights(&kept.logits, self.scale, weights);
        simd::weight_at_least(&kept.logits, weights, f32::NEG_INFINITY).0
    }

    /// The log probability of a token with this logit.
    pub(crate) fn log_prob(&self, logit: f32, total_weight: f64) -> f64 {
        let exponent = (f64::from(logit) - f64::from(self.scale.max)) / self.temperature;
        exponent - libm::log(total_weight)
    }

    /// The likeliest `count` tokens that may be drawn and their logits, best first, ties by id.
    /// `scratch.kept` lists no others afterwards.
    pub(crate) fn best(&self, count: usize, scratch: &mut Scratch) -> Vec<(TokenId, f32)> {
        if count == 0 {
            return Vec::new();
        }
        let Scratch {
            maxima,
            order,
            kept,
            ..
        } = scratch;
        if !self.is_listed {
            let bound = top_k_bound(maxima, count, order).max(self.min_logit);
            simd::collect::<F>(self.row, bound, maxima, kept);
        }
        if let Some(cut) = top_k_cut(&kept.logits, count, order) {
            kept.cut(cut);
        }
        let tokens = kept.tokens.iter().map(|&token| token as TokenId);
        let mut best: Vec<_> = tokens.zip(kept.logits.iter().copied()).collect();
        best.sort_by(|a, b| descending(&a.1, &b.1));
        best
    }
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

/// Fills `scratch.kept` with the tokens that `min_p`, `top_k` and `top_p` keep.
fn keep<F: Format>(
    row: &[F::Bits],
    sampling: &Sampling,
    scale: Scale,
    min_logit: f32,
    scratch: &mut Scratch,
) {
    let Scratch {
        maxima,
        order,
        weights,
        kept,
    } = scratch;
    let top_k = sampling.top_k as usize;
    let total = if top_k > 0 && top_k < row.len() {
        let bound = top_k_bound(maxima, top_k, order).max(min_logit);
        simd::collect::<F>(row, bound, maxima, kept);
        if let Some(cut) = top_k_cut(&kept.logits, top_k, order) {
            kept.cut(cut);
        }
        if sampling.top_p == 1.0 {
            return;
        }
        simd::fill_weights(&kept.logits, scale, weights);
        simd::weight_at_least(&kept.logits, weights, f32::NEG_INFINITY).0
    } else {
        let total = simd::weight_sum::<F>(row, scale, min_logit);
        // Tokens below this weight cannot reach 1 - top_p together: none of them is kept.
        let lowest_weight = (1.0 - sampling.top_p) * total / row.len() as f64;
        let bound = f64::from(scale.max) + sampling.temperature * (libm::log(lowest_weight) - 1e-3);
        let bound = (bound as f32).max(min_logit).min(scale.max);
        simd::collect::<F>(row, bound, maxima, kept);
        simd::fill_weights(&kept.logits, scale, weights);
        total
    };
    keep_top_p(kept, weights, scale, sampling.top_p * total, order);
}

/// A logit that at least `top_k` elements reach, from the maxima of the chunks.
fn top_k_bound(maxima: &[f32], top_k: usize, order: &mut Vec<f32>) -> f32 {
    if top_k > maxima.len() {
        return f32::NEG_INFINITY;
    }
    order.clear();
    order.extend_from_slice(maxima);
    *order.select_nth_unstable_by(top_k - 1, descending).1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as sorting wants it")]
fn descending(a: &f32, b: &f32) -> Ordering {
    b.partial_cmp(a).unwrap_or(Ordering::Equal)
}

/// Where the `top_k` best of `logits` end; `None` if there are no more than that.
fn top_k_cut(logits: &[f32], top_k: usize, order: &mut Vec<f32>) -> Option<Cut> {
    if logits.len() <= top_k {
        return None;
    }
    order.clear();
    order.extend_from_slice(logits);
    let logit = *order.select_nth_unstable_by(top_k - 1, descending).1;
    let above = logits.iter().filter(|&&other| other > logit).count();
    Some(Cut {
        logit,
        ties: top_k - above,
    })
}

/// Keeps the best tokens, as few as reach the weight `wanted`.
///
/// The edge is bracketed by bisection until a few logits are left, and only those are sorted.
fn keep_top_p(kept: &mut Kept, weights: &[f32], scale: Scale, wanted: f64, edge: &mut Vec<f32>) {
    const FEW: usize = 64;
    // What lies at or above `low` reaches the weight, what lies at or above `high` does not.
    let mut low = f32::NEG_INFINITY;
    let mut high = f32::INFINITY;
    let (mass, mut count_low) = simd::weight_at_least(&kept.logits, weights, low);
    if mass < wanted {
        return; // all are needed
    }
    let (mut mass_high, mut count_high) = (0.0, 0);
    let least = simd::least(&kept.logits);
    while count_low - count_high > FEW {
        let middle = f32::midpoint(low.max(least), high.min(scale.max));
        if middle <= low || middle >= high {
            break; // the rest is tied
        }
        let (mass, count) = simd::weight_at_least(&kept.logits, weights, middle);
        if mass >= wanted {
            (low, count_low) = (middle, count);
        } else {
            (high, mass_high, count_high) = (middle, mass, count);
        }
    }
    kept.retain(|logit| logit >= low);
    edge.clear();
    edge.extend(kept.logits.iter().filter(|&&logit| logit < high));
    edge.sort_unstable_by(descending);
    let mut mass = mass_high;
    let mut cut = Cut {
        logit: high,
        ties: 0,
    };
    for &logit in &*edge {
        if mass >= wanted {
            break;
        }
        mass += f64::from(scale.weight(logit));
        let ties = if logit == cut.logit { cut.ties } else { 0 };
        cut = Cut {
            logit,
            ties: ties + 1,
        };
    }
    kept.cut(cut);
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
