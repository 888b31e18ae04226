//! How a drafter chooses tokens from its logits, above temperature 0.
//!
//! * *coupled*: the drafter races its own law over the noise that the target will race over
//!   ([`Purpose::Sample`] at the position the token will take). Where the two laws agree the same token
//!   wins, so such drafts are accepted far more often than the likeliest token. Siblings are the next
//!   in the race.
//! * *sampled*: a draw from noise of its own ([`Purpose::Draft`]), siblings without replacement. The
//!   law that drew them travels along, for rejection sampling and block verification.
//!
//! Both are exponential races: the tokens with the smallest `E_i / weight_i`, in that order, are a
//! sample without replacement in draw order (Efraimidis and Spirakis, "Weighted random sampling with a
//! reservoir", 2006).

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::noise::{Purpose, Seed};
use crate::simd::{self, F32, Scale, Smallest};

/// How drafts were chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftMode {
    /// The likeliest tokens.
    #[default]
    Greedy,
    /// By a race over the target's noise.
    Coupled,
    /// Drawn from noise of the drafter's own.
    Sampled,
}

impl DraftMode {
    /// The word in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Coupled => "coupled",
            Self::Sampled => "sampled",
        }
    }
}

/// What the drafts of one request are chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftNoise {
    /// The request's temperature, above 0: drafter and target share it.
    pub temperature: f64,
    /// The request's seed.
    pub seed: Seed,
    /// The absolute position of the first draft: the number of committed tokens.
    pub position: i32,
}

impl DraftNoise {
    /// For the drafts of one depth, counted from 0; `tau` flattens the drafter's law there.
    #[must_use]
    pub fn at_depth(self, depth: usize, tau: f64) -> Self {
        Self {
            temperature: self.temperature * tau,
            position: self.position + depth as i32,
            ..self
        }
    }
}

/// Buffers that are used again from row to row.
#[derive(Debug, Default)]
pub struct DraftScratch {
    maxima: Vec<f32>,
    weights: Vec<f32>,
    smallest: Smallest,
}

/// The candidates of one depth of a coupled draft, best first.
///
/// `logits` is `[draft vocabulary]`, `target_ids` the target id of each draft id, `noise` that
/// [of the depth](DraftNoise::at_depth): candidates are the smallest `E_i / draft_prob_i^(1/tau)`.
/// `draft_ids` and `log_shares` have one length, the number of candidates; a share is the reciprocal score
/// over the sum of those of all candidates, an estimate of how likely the target is to draw the token. A
/// row that has a NaN or no finite largest value gives NaN shares.
pub fn coupled_candidates(
    logits: &[f32],
    target_ids: &[TokenId],
    noise: DraftNoise,
    scratch: &mut DraftScratch,
    draft_ids: &mut [i32],
    log_shares: &mut [f32],
) {
    log_shares.fill(f32::NAN);
    draft_ids.fill(0);
    let DraftScratch {
        maxima,
        weights,
        smallest,
    } = scratch;
    let Some(scale) = usable_scale(logits, noise.temperature, maxima) else {
        return;
    };
    simd::fill_weights(logits, scale, weights);
    let key = noise.seed.key(Purpose::Sample);
    let position = noise.position as u32;
    let best = smallest.run(weights, target_ids, key, position, draft_ids.len());
    let total: f64 = best.iter().map(|&(score, _)| 1.0 / score).sum();
    for ((&(score, index), draft_id), log_share) in best.iter().zip(draft_ids).zip(log_shares) {
        *draft_id = index as i32;
        *log_share = -libm::log(score * total) as f32;
    }
}

/// The drafter's law at one depth: the softmax of `logits / temperature` in f32, into `probs`. False,
/// and NaN for all, if the row has a NaN or no finite largest value.
///
/// Weights end at `exp(-86)`: no probability is 0, so that siblings can always be drawn.
pub fn draft_probs(
    logits: &[f32],
    temperature: f64,
    scratch: &mut DraftScratch,
    probs: &mut [f32],
) -> bool {
    let DraftScratch {
        maxima, weights, ..
    } = scratch;
    let Some(scale) = usable_scale(logits, temperature, maxima) else {
        probs.fill(f32::NAN);
        return false;
    };
    simd::fill_weights(logits, scale, weights);
    let total = simd::weight_sum::<F32>(logits, scale, f32::NEG_INFINITY);
    let factor = (1.0 / total) as f32;
    for (prob, weight) in probs.iter_mut().zip(weights) {
        *prob = *weight * factor;
    }
    true
}

/// Draws the nodes of a tree of a given shape: `parents` as in a
/// [`TokenTree`](crate::tree::TokenTree), `probs` is `[depths, draft vocabulary]`.
///
/// The children of a node are drawn without replacement, in draw order, from the law of their depth and
/// from a stream of their parent's own.
///
/// Errors: parents that are not earlier nodes, a node deeper than `probs`, more siblings than tokens
/// that can be drawn.
pub fn sample_tree(
    probs: &[f32],
    target_ids: &[TokenId],
    parents: &[i32],
    noise: DraftNoise,
    scratch: &mut DraftScratch,
) -> Result<Vec<TokenId>> {
    let width = target_ids.len();
    let key = noise.seed.key(Purpose::Draft);
    let mut tokens = vec![-1; parents.len()];
    let mut depths: Vec<usize> = Vec::with_capacity(parents.len());
    for (node, &parent) in parents.iter().enumerate() {
        let refused = |reason| Err(Error::InvalidTree { node, reason });
        if parent < -1 || parent >= node as i32 {
            return refused("parent is not an earlier node");
        }
        let depth = usize::try_from(parent).map_or(0, |parent| 1 + depths[parent]);
        depths.push(depth);
        if (depth + 1) * width > probs.len() {
            return refused("no draft probabilities at its depth");
        }
        if tokens[node] >= 0 {
            continue; // drawn with an earlier sibling
        }
        let siblings: Vec<usize> = (node..parents.len())
            .filter(|&other| parents[other] == parent)
            .collect();
        let law = &probs[depth * width..(depth + 1) * width];
        let window = noise.position as u32;
        let key = key.fork((parent + 1) as u32, window);
        let position = window + depth as u32;
        let drawn = scratch
            .smallest
            .run(law, target_ids, key, position, siblings.len());
        if drawn.len() < siblings.len() {
            return refused("more siblings than tokens that can be drawn");
        }
        for (&(_, index), sibling) in drawn.iter().zip(siblings) {
            tokens[sibling] = target_ids[index as usize];
        }
    }
    Ok(tokens)
}

fn usable_scale(logits: &[f32], temperature: f64, maxima: &mut Vec<f32>) -> Option<Scale> {
    let scanned = simd::scan::<F32>(logits, maxima);
    let usable = !scanned.has_nan && scanned.max.is_finite();
    usable.then(|| Scale::new(scanned.max, temperature))
}

#[cfg(test)]
mod tests;
