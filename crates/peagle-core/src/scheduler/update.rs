//! `update`: commit what was verified, end what ended, plan the drafter.

use super::Scheduler;
use super::end::{End, FinishReason, earliest_end};
use super::schedule::Flight;
use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};
use crate::logprobs::TokenLogprobs;
use crate::plan::DraftPlan;
use crate::request::Request;
use crate::stats::Stats;
use crate::verify::Verdicts;

/// What a step brought one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestStep {
    /// The request.
    pub request_id: RequestId,
    /// Tokens committed, cut at the end of the request; an end token is among them.
    pub token_ids: Vec<TokenId>,
    /// Of each committed token, if the request asked for them.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why it ended, if it did.
    pub finish_reason: Option<FinishReason>,
    /// What went wrong, if it ended with an error.
    pub error: Option<Error>,
    /// Draft tokens verified.
    pub num_drafted: usize,
    /// Draft tokens accepted and committed.
    pub num_accepted: usize,
}

/// What a step brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One entry for each request that had a verdict and was not aborted meanwhile.
    pub outputs: Vec<RequestStep>,
    /// Slots to copy the target's KV and hidden rows from, in order: they make the accepted path of a
    /// tree contiguous.
    pub moves_src: Vec<i32>,
    /// Slots to copy them to.
    pub moves_dst: Vec<i32>,
    /// The drafter's next pass.
    pub draft: DraftPlan,
}

/// One request's part of the verdicts.
struct Verdict<'a> {
    tokens: &'a [TokenId],
    path: &'a [i32],
    logprobs: &'a [TokenLogprobs],
    error: Option<&'a Error>,
    cut: Option<usize>,
}

impl Scheduler {
    /// Commits the verdicts of the plan in flight.
    ///
    /// `cuts[i]` is how many tokens of the i-th verdict the stop-string check keeps, -1 if it found
    /// none. A request is cut at the earliest of its ends; its blocks are freed at once.
    ///
    /// Errors, which leave the scheduler as it was: no plan is in flight, the verdicts are of another
    /// one, or the lengths do not fit.
    pub fn update(&mut self, verdicts: &Verdicts, cuts: Option<&[i32]>) -> Result<StepOutput> {
        let flights = self.check_verdicts(verdicts, cuts)?;
        let mut output = StepOutput::default();
        let mut finished = Vec::new();
        let mut verdict = VerdictCursor {
            verdicts,
            cuts,
            index: 0,
            path_start: 0,
        };
        let mut index = 0;
        for flight in flights {
            let verdict = flight.has_logits.then(|| verdict.next());
            let Some(request) = self.running.get_mut(index).filter(|r| r.id == flight.id) else {
                continue; // aborted meanwhile
            };
            index += 1;
            let Some(verdict) = verdict else {
                request.computed += flight.rows;
                continue;
            };
            let limits = (self.config.max_model_len, self.config.block_size);
            let step = commit(
                request,
                &flight,
                &verdict,
                limits,
                &mut self.stats,
                &mut output,
            );
            if step.finish_reason.is_some() {
                request.reset(&mut self.pool);
                finished.push(flight.id);
            }
            output.outputs.push(step);
        }
        if !finished.is_empty() {
            // Both lists stand in the same order.
            let mut ended = finished.iter().peekable();
            self.running
                .retain(|request| ended.next_if(|&&id| id == request.id).is_none());
            for id in &finished {
                self.ids.remove(id);
            }
        }
        self.stats.steps += 1;
        self.stats.near_ties += verdicts.near_ties;
        output.draft = self.plan_drafts();
        Ok(output)
    }

    fn check_verdicts(&mut self, verdicts: &Verdicts, cuts: Option<&[i32]>) -> Result<Vec<Flight>> {
        let out_of_turn = |reason| {
            Err(Error::StepOrder {
                call: "update",
                reason,
            })
        };
        let Some(flights) = &self.in_flight else {
            return out_of_turn("no plan is in flight");
        };
        if verdicts.step != self.step {
            return out_of_turn("the verdicts are of another plan");
        }
        let expected = flights
            .iter()
            .filter(|flight| flight.has_logits)
            .map(|flight| flight.id);
        if !expected.eq(verdicts.request_ids.iter().copied()) {
            return out_of_turn("the verdicts are of other requests");
        }
        if let Some(cuts) = cuts {
            let (got, expected) = (cuts.len() as i64, verdicts.request_ids.len() as i64);
            if got != expected {
                return Err(Error::ShapeMismatch {
                    name: "number of cuts",
                    got,
                    expected,
                });
            }
            for (&cut, bounds) in cuts.iter().zip(verdicts.starts.windows(2)) {
                let len = bounds[1] - bounds[0];
                if cut > len {
                    let (got, expected) = (cut.into(), len.into());
                    return Err(Error::ShapeMismatch {
                        name: "cut of a verdict",
                        got,
                        expected,
                    });
                }
            }
        }
        Ok(self.in_flight.take().unwrap_or_default())
    }
}

/// Walks the flat verdicts.
struct VerdictCursor<'a> {
    verdicts: &'a Verdicts,
    cuts: Option<&'a [i32]>,
    index: usize,
    path_start: usize,
}

impl<'a> VerdictCursor<'a> {
    fn next(&mut self) -> Verdict<'a> {
        let (verdicts, index) = (self.verdicts, self.index);
        let tokens = verdicts.starts[index] as usize..verdicts.starts[index + 1] as usize;
        let path = self.path_start..self.path_start + verdicts.accepted[index] as usize;
        self.index += 1;
        self.path_start = path.end;
        Verdict {
            tokens: &verdicts.token_ids[tokens],
            path: &verdicts.paths[path],
            logprobs: &verdicts.logprobs[index],
            error: verdicts.errors[index].as_ref(),
            cut: self.cuts.and_then(|cuts| usize::try_from(cuts[index]).ok()),
        }
    }
}

/// Commits one verdict: tokens, counters, the slot moves of its path.
fn commit(
    request: &mut Request,
    flight: &Flight,
    verdict: &Verdict<'_>,
    (max_model_len, block_size): (usize, usize),
    stats: &mut Stats,
    output: &mut StepOutput,
) -> RequestStep {
    let mut step = RequestStep {
        request_id: request.id,
        token_ids: Vec::new(),
        logprobs: Vec::new(),
        finish_reason: None,
        error: verdict.error.cloned(),
        num_drafted: flight.nodes,
        num_accepted: 0,
    };
    if verdict.error.is_some() {
        step.finish_reason = Some(FinishReason::Error);
        if flight.nodes > 0 {
            stats.count_window(flight.nodes, 0);
        }
        return step;
    }
    let end = earliest_end(request, verdict.tokens, verdict.cut, max_model_len);
    let kept = end.map_or(verdict.tokens.len(), |End { kept, .. }| kept);
    step.finish_reason = end.map(|end| end.reason);
    step.token_ids = verdict.tokens[..kept].to_vec();
    step.logprobs = verdict.logprobs[..kept.min(verdict.logprobs.len())].to_vec();
    step.num_accepted = verdict.path.len().min(kept);
    if flight.nodes > 0 {
        stats.count_window(flight.nodes, step.num_accepted);
    }
    stats.committed += kept as u64;
    stats.discarded_after_stop += (verdict.tokens.len() - kept) as u64;
    let len = request.len();
    if end.is_none() {
        for (depth, &node) in verdict.path.iter().enumerate() {
            if node as usize != depth {
                output
                    .moves_src
                    .push(request.slot(len + node as usize, block_size));
                output.moves_dst.push(request.slot(len + depth, block_size));
            }
        }
    }
    request.tokens.extend_from_slice(&verdict.tokens[..kept]);
    request.computed = len + verdict.path.len();
    step
}
