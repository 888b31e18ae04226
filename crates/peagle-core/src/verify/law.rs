//! The arithmetic of accepting and recovering, over any float.
//!
//! `verify` uses it in f64. The tests enumerate the very same functions in f64 and f32.

use std::iter::Sum;
use std::ops::{Add, Div, Mul, Sub};

use crate::distribution::Draw;
use crate::error::Result;
use crate::ids::TokenId;

/// A float.
pub trait Real:
    Copy
    + PartialOrd
    + From<f32>
    + Sum
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

/// What a walk asks of its window: the target's laws, and chance.
pub trait Chance<T> {
    /// The processed target law after the node of a row (row 0 = the last committed token, row `i + 1`
    /// = node i), `[vocabulary]`, into `probs`; `depth` is the node's.
    fn target_probs(&mut self, row: usize, depth: i32, probs: &mut Vec<T>) -> Result<()>;

    /// Tosses the coin of a node: true with probability `prob`.
    fn accepts(&mut self, node: usize, prob: T) -> bool;

    /// Draws the token after a refusal, in proportion to `weights`, `[vocabulary]`.
    fn recovered(&mut self, depth: i32, weights: &[T]) -> Draw;

    /// Draws the token after a leaf from the target law of its row.
    fn bonus(&mut self, row: usize, depth: i32) -> Result<Draw>;
}

/// The probability with which a drawn token is accepted: `min(1, target / draft)`. (Leviathan, Kalman,
/// Matias, arXiv 2211.17192; Chen et al., arXiv 2302.01318.)
pub fn accept_prob<T: Real>(target_prob: T, draft_prob: T) -> T {
    if target_prob >= draft_prob {
        return T::ONE;
    }
    target_prob / draft_prob
}

/// Turns a target law into what the draft law leaves of it, `max(scale * target - draft, 0)`, and
/// returns the mass of that.
///
/// `target_probs` is `[vocabulary]`, `draft_probs` and `target_ids` are `[draft vocabulary]`. If nothing
/// is left the two laws are the same one; only rounding can then ask for a token, and it is given one of
/// them.
pub fn residual<T: Real>(
    target_probs: &mut [T],
    scale: T,
    draft_probs: &[T],
    target_ids: &[TokenId],
) -> T {
    for prob in target_probs.iter_mut() {
        *prob = *prob * scale;
    }
    for (&token, &draft_prob) in target_ids.iter().zip(draft_probs) {
        let left = target_probs[token as usize] - draft_prob;
        target_probs[token as usize] = if left > T::ZERO { left } else { T::ZERO };
    }
    let mass = target_probs.iter().copied().sum::<T>();
    if mass > T::ZERO {
        return mass;
    }
    for (&token, &draft_prob) in target_ids.iter().zip(draft_probs) {
        target_probs[token as usize] = draft_prob;
    }
    T::ZERO
}

/// Makes the law of the next sibling: drawing is without replacement, so the refused token goes and
/// the rest is renormalised.
pub fn next_sibling<T: Real>(draft_probs: &mut [T], refused: usize) {
    draft_probs[refused] = T::ZERO;
    normalise(draft_probs);
}

/// Divides by the sum; a law without mass stays as it is.
pub fn normalise<T: Real>(probs: &mut [T]) {
    let total = probs.iter().copied().sum::<T>();
    if total > T::ZERO {
        for prob in probs {
            *prob = *prob / total;
        }
    }
}

/// The probability with which a block of drafts is accepted up to a node that is not the last.
///
/// `reach` is the joint ratio of the drafts up to there, `residual_mass` what [`residual`] with this
/// scale leaves after it. (Sun et al., "Block verification accelerates speculative decoding", arXiv
/// 2403.10444, algorithm 2.)
pub fn block_accept_prob<T: Real>(reach: T, residual_mass: T) -> T {
    let rest = residual_mass + (T::ONE - reach);
    if rest > T::ZERO {
        return residual_mass / rest;
    }
    // The target follows the drafter here and after: a later node is accepted for certain.
    T::ONE
}
