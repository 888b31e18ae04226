//! Block verification of sampled chains: the drafts of a window are accepted or refused together.
//!
//! With `reach` = the running product of target / draft, capped at 1 at each step, the longest prefix
//! whose coin comes up is accepted; the coin of a prefix weighs what the target wants after it against
//! what was missed before it. It accepts at least as many drafts as rejection sampling does. (Sun et
//! al., "Block verification accelerates speculative decoding", arXiv 2403.10444, algorithm 2.)

use std::mem;

use super::Walk;
use super::draft_probs::DraftProbs;
use super::law::{Chance, Real, block_accept_prob, residual};
use crate::error::{Error, Result};
use crate::tree::TokenTree;

/// Walks a chain of sampled drafts. `draft_ids` is the draft id of each node, as
/// [`DraftProbs::check`] returns them.
///
/// All rows up to the first draft that the target would never take are read. Errors: drafts that are
/// not a chain.
pub fn walk_block<T: Real>(
    tree: &TokenTree,
    draft: &DraftProbs,
    draft_ids: &[usize],
    chance: &mut impl Chance<T>,
) -> Result<Walk> {
    check_chain(tree)?;
    let len = tree.len();
    let (mut target_probs, mut draft_probs) = (Vec::new(), Vec::new());
    // What follows the longest prefix accepted so far.
    let mut rest = Vec::new();
    let mut accepted = 0;
    let mut reach = T::ONE;
    for row in 0..len {
        chance.target_probs(row, row as i32, &mut target_probs)?;
        draft.law(row, &mut draft_probs);
        let target_prob = target_probs[tree.tokens()[row] as usize];
        let mass = residual(&mut target_probs, reach, &draft_probs, draft.target_ids());
        if row == 0 || chance.accepts(row - 1, block_accept_prob(reach, mass)) {
            accepted = row;
            mem::swap(&mut rest, &mut target_probs);
        }
        let next = reach * target_prob / draft_probs[draft_ids[row]];
        reach = if next < T::ONE { next } else { T::ONE };
        if reach == T::ZERO {
            break; // no longer prefix can be accepted
        }
    }
    if len > 0 && chance.accepts(len - 1, reach) {
        accepted = len;
    }
    let mut found = Walk::default();
    (0..accepted).for_each(|node| found.accept(tree, node));
    let depth = accepted as i32;
    found.emit(if accepted == len {
        chance.bonus(len, depth)?
    } else {
        chance.recovered(depth, &rest)
    });
    Ok(found)
}

fn check_chain(tree: &TokenTree) -> Result<()> {
    let branch = (0..)
        .zip(tree.parents())
        .find(|&(node, &parent)| parent != node - 1);
    match branch {
        Some((node, _)) => Err(Error::InvalidTree {
            node: node as usize,
            reason: "block verification takes chains only",
        }),
        None => Ok(()),
    }
}
