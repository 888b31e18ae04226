//! The laws that sampled drafts were drawn from, as they travel with the drafts.

use std::ops::Range;
use std::sync::Arc;

use super::law::Real;
use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};
use crate::tree::TokenTree;

/// How far the probabilities of a depth may be from a sum of 1.
const SUM_TOLERANCE: f64 = 1e-3;

/// One law for each depth of a window, over the draft vocabulary. All nodes of a depth were drawn from
/// the law of that depth: one pass of the head knows no more.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftProbs {
    /// `[depths, draft vocabulary]` at `range`; shared by the windows of a step.
    probs: Arc<[f32]>,
    range: Range<usize>,
    target_ids: Arc<[TokenId]>,
}

impl DraftProbs {
    /// The laws at `range` of `probs`; `target_ids` is the target id of each draft id.
    ///
    /// Errors: a range that is not whole rows of `probs`.
    pub fn new(probs: Arc<[f32]>, range: Range<usize>, target_ids: Arc<[TokenId]>) -> Result<Self> {
        let width = target_ids.len().max(1);
        let whole = range.start <= range.end && range.end <= probs.len();
        if !whole || !range.len().is_multiple_of(width) {
            return Err(Error::ShapeMismatch {
                name: "number of draft probabilities",
                got: probs.len() as i64,
                expected: range.end.next_multiple_of(width) as i64,
            });
        }
        Ok(Self {
            probs,
            range,
            target_ids,
        })
    }

    /// Target id of each draft id.
    pub(crate) fn target_ids(&self) -> &[TokenId] {
        &self.target_ids
    }

    fn depths(&self) -> usize {
        self.range.len() / self.target_ids.len().max(1)
    }

    fn row(&self, depth: usize) -> &[f32] {
        let width = self.target_ids.len();
        let start = self.range.start + depth * width;
        &self.probs[start..start + width]
    }

    /// The law of the children of a node of this depth, into `probs`. What drew the drafts is the law
    /// in proportion to the float32 numbers, so their sum is divided out.
    pub(crate) fn law<T: Real>(&self, depth: usize, probs: &mut Vec<T>) {
        probs.clear();
        probs.extend(self.row(depth).iter().map(|&prob| T::from(prob)));
        let total = probs.iter().copied().sum::<T>();
        for prob in probs {
            *prob = *prob / total;
        }
    }

    /// Checks the laws that a tree was drawn from; returns the draft id of each node.
    ///
    /// Errors: target ids that do not increase or lie outside the target's vocabulary, a depth without
    /// law, numbers that are not finite or negative or do not sum to 1 within 0.001, a node that its
    /// law could not have drawn.
    pub fn check(&self, tree: &TokenTree, id: RequestId, vocabulary: usize) -> Result<Vec<usize>> {
        self.check_target_ids(vocabulary)?;
        let node_depths = tree.depths();
        let depths = node_depths.iter().max().map_or(0, |&depth| depth as usize);
        if depths > self.depths() {
            let depth = self.depths() + 1;
            return Err(Error::MissingDraftProbs { id, depth });
        }
        for depth in 0..depths {
            self.check_law(id, depth)?;
        }
        let nodes = tree.tokens().iter().zip(node_depths);
        let draft_id = |(&token, depth): (&TokenId, i32)| {
            let depth = depth as usize;
            let found = self.target_ids.binary_search(&token).ok();
            let prob = found.map_or(0.0, |draft_id| self.row(depth - 1)[draft_id]);
            let expected = "more than 0 for a token that was drawn";
            found.filter(|_| prob > 0.0).ok_or(Error::InvalidDraftProb {
                id,
                depth,
                token,
                prob,
                expected,
            })
        };
        nodes.map(draft_id).collect()
    }

    fn check_target_ids(&self, vocabulary: usize) -> Result<()> {
        let mut last = -1;
        for (draft_id, &token) in self.target_ids.iter().enumerate() {
            if token <= last || token as usize >= vocabulary {
                return Err(Error::InvalidDraftVocabulary {
                    draft_id,
                    token,
                    vocabulary,
                });
            }
            last = token;
        }
        Ok(())
    }

    fn check_law(&self, id: RequestId, depth: usize) -> Result<()> {
        let row = self.row(depth);
        let bad = row
            .iter()
            .position(|prob| !(prob.is_finite() && *prob >= 0.0));
        let depth = depth + 1;
        if let Some(draft_id) = bad {
            return Err(Error::InvalidDraftProb {
                id,
                depth,
                token: self.target_ids[draft_id],
                prob: row[draft_id],
                expected: "a finite number of at least 0",
            });
        }
        let sum: f64 = row.iter().map(|&prob| f64::from(prob)).sum();
        if (sum - 1.0).abs() > SUM_TOLERANCE {
            return Err(Error::DraftProbsSum { id, depth, sum });
        }
        Ok(())
    }
}
