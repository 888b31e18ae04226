//! Rejection sampling over sampled drafts, on chains and trees.
//!
//! A node's children were drawn without replacement from the law of their depth and stand in draw
//! order. They are tried in that order: the first is accepted with min(1, target / draft); a refusal
//! leaves the residual as the new target law, and the draft law without the refused token, renormalised,
//! as that of the next sibling. If all are refused the residual gives the recovered token. (Leviathan,
//! Kalman, Matias, arXiv 2211.17192; Chen et al., arXiv 2302.01318; siblings without replacement: Jeon
//! et al., arXiv 2402.14160.)
//!
//! Sorting siblings, or leaving some out by their value, would change the law of the text.

use super::Walk;
use super::draft_probs::DraftProbs;
use super::law::{Chance, Real, accept_prob, next_sibling, normalise, residual};
use crate::error::Result;
use crate::tree::TokenTree;

/// Walks a tree of sampled drafts. `draft_ids` is the draft id of each node, as
/// [`DraftProbs::check`] returns them.
pub fn walk_rejection<T: Real>(
    tree: &TokenTree,
    draft: &DraftProbs,
    draft_ids: &[usize],
    chance: &mut impl Chance<T>,
) -> Result<Walk> {
    let (mut target_probs, mut draft_probs) = (Vec::new(), Vec::new());
    let mut found = Walk::default();
    let mut node = -1;
    loop {
        let (row, depth) = ((node + 1) as usize, found.path.len() as i32);
        let mut children = tree.children(node).peekable();
        if children.peek().is_none() {
            found.emit(chance.bonus(row, depth)?);
            return Ok(found);
        }
        chance.target_probs(row, depth, &mut target_probs)?;
        draft.law(depth as usize, &mut draft_probs);
        let accepted = children.find(|&child| {
            let (token, draft_id) = (tree.tokens()[child] as usize, draft_ids[child]);
            if chance.accepts(
                child,
                accept_prob(target_probs[token], draft_probs[draft_id]),
            ) {
                return true;
            }
            residual(&mut target_probs, T::ONE, &draft_probs, draft.target_ids());
            normalise(&mut target_probs);
            next_sibling(&mut draft_probs, draft_id);
            false
        });
        let Some(child) = accepted else {
            found.emit(chance.recovered(depth, &target_probs));
            return Ok(found);
        };
        node = child as i32;
        found.accept(tree, child);
    }
}
