//! The rows and the noise of one window: what the walks ask for.

use std::iter;

use super::law::Chance;
use super::{Method, Walk, Window, walk, walk_block, walk_rejection};
use crate::distribution::{Draw, Scratch, draw, processed_probs};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::logprobs::{LogprobMode, TokenLogprobs, WantedLogprobs};
use crate::noise::{NoiseKey, Purpose};
use crate::processors::ProcessedRows;
use crate::simd::{F32, Format};

/// A window, its rows of logits (`[1 + nodes, vocabulary]`) and buffers.
pub(super) struct Rows<'a, F: Format> {
    pub(super) window: &'a Window,
    pub(super) values: &'a [F::Bits],
    pub(super) vocabulary: usize,
    pub(super) processed: Option<ProcessedRows<'a>>,
    pub(super) scratch: &'a mut Scratch,
}

impl<'a, F: Format> Rows<'a, F> {
    /// Verifies the window by its own method; greedily at temperature 0, whatever the method.
    pub(super) fn walk(&mut self) -> Result<Walk> {
        let window = self.window;
        let tree = &window.tree;
        if window.method == Method::Coupled || window.sampling.temperature == 0.0 {
            return walk(tree, |row, depth| self.draw(row, depth, Purpose::Sample));
        }
        if tree.is_empty() {
            return walk(tree, |row, depth| self.draw(row, depth, Purpose::Bonus));
        }
        let id = window.request_id;
        let missing = Error::MissingDraftProbs { id, depth: 1 };
        let draft = window.draft_probs.as_ref().ok_or(missing)?;
        let draft_ids = draft.check(tree, id, self.vocabulary)?;
        if window.method == Method::Block {
            walk_block(tree, draft, &draft_ids, self)
        } else {
            walk_rejection(tree, draft, &draft_ids, self)
        }
    }

    /// Reports on each token of a walk.
    pub(super) fn report(
        &mut self,
        wanted: WantedLogprobs,
        walk: &Walk,
    ) -> Result<Vec<TokenLogprobs>> {
        let Window { sampling, tree, .. } = self.window;
        let rows = iter::once(0).chain(walk.path.iter().map(|&node| node as usize + 1));
        let mut found = Vec::with_capacity(walk.token_ids.len());
        for ((row, &token), depth) in rows.zip(&walk.token_ids).zip(0..) {
            let (raw, position) = (self.raw(row), self.window.position + depth);
            found.push(match &mut self.processed {
                Some(processed) if wanted.mode == LogprobMode::Processed => {
                    let logits = processed.process::<F>(raw, tree, row, position)?;
                    wanted.report::<F32>(logits, sampling, token, position, self.scratch)?
                }
                _ => wanted.report::<F>(raw, sampling, token, position, self.scratch)?,
            });
        }
        Ok(found)
    }

    /// The target's logits as they came.
    fn raw(&self, row: usize) -> &'a [F::Bits] {
        &self.values[row * self.vocabulary..(row + 1) * self.vocabulary]
    }

    /// Draws the token that follows the node of a row.
    fn draw(&mut self, row: usize, depth: i32, purpose: Purpose) -> Result<Draw> {
        let (raw, window) = (self.raw(row), self.window);
        let (key, position) = (window.seed.key(purpose), window.position + depth);
        match &mut self.processed {
            Some(processed) => {
                let logits = processed.process::<F>(raw, &window.tree, row, position)?;
                draw::<F32>(logits, &window.sampling, key, position, self.scratch)
            }
            None => draw::<F>(raw, &window.sampling, key, position, self.scratch),
        }
    }
}

impl<F: Format> Chance<f64> for Rows<'_, F> {
    fn target_probs(&mut self, row: usize, depth: i32, probs: &mut Vec<f64>) -> Result<()> {
        let Window { sampling, tree, .. } = self.window;
        let (raw, position) = (self.raw(row), self.window.position + depth);
        match &mut self.processed {
            Some(processed) => {
                let logits = processed.process::<F>(raw, tree, row, position)?;
                processed_probs::<F32>(logits, sampling, position, self.scratch, probs)
            }
            None => processed_probs::<F>(raw, sampling, position, self.scratch, probs),
        }
    }

    fn accepts(&mut self, node: usize, prob: f64) -> bool {
        let key = self.window.seed.key(Purpose::Accept);
        prob >= 1.0 || key.uniform(node as u32, self.window.position as u32) < prob
    }

    fn recovered(&mut self, depth: i32, weights: &[f64]) -> Draw {
        let key = self.window.seed.key(Purpose::Residual);
        race(weights, key, (self.window.position + depth) as u32)
    }

    fn bonus(&mut self, row: usize, depth: i32) -> Result<Draw> {
        self.draw(row, depth, Purpose::Bonus)
    }
}

/// An exponential race over weights, `[vocabulary]`: the smallest `exponential / weight` wins.
fn race(weights: &[f64], key: NoiseKey, position: u32) -> Draw {
    const STEP: f64 = 1.0 / 4_294_967_296.0;
    let (mut token, mut best, mut runner_up) = (0, f64::INFINITY, f64::INFINITY);
    for (candidate, &weight) in (0..).zip(weights) {
        // An exponential is never below its uniform: most tokens have lost without a logarithm.
        let floor = f64::from(key.high_bits(candidate, position)) * STEP;
        if weight <= 0.0 || floor > runner_up * weight {
            continue;
        }
        let score = key.exponential(candidate, position) / weight;
        if score < best {
            (token, best, runner_up) = (candidate, score, best);
        } else if score < runner_up {
            runner_up = score;
        }
    }
    Draw {
        token: token as TokenId,
        near_tie: runner_up <= best * (1.0 + 1e-6),
    }
}
