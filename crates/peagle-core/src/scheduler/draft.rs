//! The drafter's side: look-ahead, the draft plan, and drafts coming back.

use super::Scheduler;
use crate::draft::{DraftMode, DraftNoise};
use crate::error::{Error, Result};
use crate::ids::RequestId;
use crate::plan::{Batch, DraftLaws, DraftPlan, Drafts};
use crate::request::Request;
use crate::tree::TokenTree;
use crate::verify::{DraftProbs, Method};

/// What a draft plan asked of the drafter for one request.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    id: RequestId,
    /// Tree nodes that may come back.
    max_nodes: usize,
    /// The drafter's counter once the plan was run.
    drafter_computed: usize,
}

impl Scheduler {
    /// Gives pending trees to their requests and advances the drafter's counters.
    pub(super) fn attach(&mut self, drafts: Option<&Drafts>) -> Result<()> {
        let Some(drafts) = drafts else {
            self.grants.clear();
            return Ok(());
        };
        let trees = self.checked_trees(drafts)?;
        let mut next = 0;
        for grant in self.grants.drain(..) {
            if let Some(request) = find_from(&mut self.running, grant.id, &mut next) {
                request.drafter_computed = grant.drafter_computed;
            }
        }
        for (id, tree, draft_probs) in trees {
            if let Some(request) = find_from(&mut self.running, id, &mut next) {
                request.tree = tree;
                request.draft_probs = draft_probs;
            }
        }
        Ok(())
    }

    fn checked_trees(&self, drafts: &Drafts) -> Result<Vec<CheckedDrafts>> {
        self.check_mode(drafts)?;
        let mismatch = |name, got, expected| {
            Err(Error::ShapeMismatch {
                name,
                got,
                expected,
            })
        };
        let requests = drafts.request_ids.len();
        let nodes = drafts.token_ids.len() as i32;
        if drafts.starts.len() != requests + 1 {
            let got = drafts.starts.len() as i64;
            return mismatch("length of draft starts", got, requests as i64 + 1);
        }
        if drafts.starts[0] != 0 {
            return mismatch("first draft start", i64::from(drafts.starts[0]), 0);
        }
        if drafts.starts[requests] != nodes {
            return mismatch(
                "last draft start",
                i64::from(drafts.starts[requests]),
                nodes.into(),
            );
        }
        if drafts.parents.len() != drafts.token_ids.len() {
            return mismatch(
                "length of draft parents",
                drafts.parents.len() as i64,
                nodes.into(),
            );
        }
        let mut trees = Vec::with_capacity(requests);
        let mut hint = 0;
        for (index, &id) in drafts.request_ids.iter().enumerate() {
            let (start, end) = (drafts.starts[index], drafts.starts[index + 1]);
            if end < start || end > nodes {
                return mismatch("draft start", end.into(), start.into());
            }
            let grant = self.find_grant(id, &mut hint)?;
            let range = start as usize..end as usize;
            if range.len() > grant.max_nodes {
                let (count, limit) = (range.len(), grant.max_nodes);
                return Err(Error::TooManyDrafts { id, count, limit });
            }
            let tokens = drafts.token_ids[range.clone()].to_vec();
            let tree = TokenTree::new(tokens, drafts.parents[range].to_vec())?;
            let laws = drafts.laws.as_ref().map(|laws| laws_of(laws, index));
            trees.push((id, tree, laws.transpose()?));
        }
        Ok(trees)
    }

    /// Rejection and block verification take drafts from noise of the drafter's own alone.
    fn check_mode(&self, drafts: &Drafts) -> Result<()> {
        let method = self.config.verification;
        let sampling = |id: &RequestId| {
            let request = self.running.iter().find(|request| request.id == *id);
            request.is_some_and(|request| request.params.sampling.temperature > 0.0)
        };
        let legal = method == Method::Coupled || drafts.mode == DraftMode::Sampled;
        if legal || !drafts.request_ids.iter().any(sampling) {
            return Ok(());
        }
        let (method, drafts) = (method.as_str(), drafts.mode.as_str());
        Err(Error::IllegalDrafts { method, drafts })
    }

    fn find_grant(&self, id: RequestId, hint: &mut usize) -> Result<&Grant> {
        let (before, after) = self.grants.split_at((*hint).min(self.grants.len()));
        let found = after.iter().chain(before).position(|grant| grant.id == id);
        let index = found.ok_or(Error::UnknownRequest { id })? + *hint;
        let index = index % self.grants.len();
        *hint = index + 1;
        Ok(&self.grants[index])
    }

    /// Reserves look-ahead and lays out the drafter's next pass.
    pub(super) fn plan_drafts(&mut self) -> DraftPlan {
        let (block_size, max_model_len) = (self.config.block_size, self.config.max_model_len);
        let requests = self.running.len();
        let rows = requests * (1 + 2 * self.config.num_speculative_tokens);
        let mut plan = DraftPlan {
            step: self.step,
            batch: Batch::with_capacity(rows, requests),
            hidden_slots: Vec::with_capacity(rows),
            draft_start: vec![0],
            ..DraftPlan::default()
        };
        self.grants.clear();
        let mut drafting = Vec::new();
        for (index, request) in self.running.iter_mut().enumerate() {
            let remaining = request.remaining(max_model_len);
            let unfinished = request.computed + 1 < request.len();
            // A window of k drafts commits up to k + 1 tokens.
            let spare = remaining.saturating_sub(1 + usize::from(unfinished));
            let mut k = request.max_k.min(spare);
            if unfinished {
                if k == 0 {
                    continue;
                }
                k = 0;
            } else {
                let len = request.len();
                request.shrink(len + k, block_size, &mut self.pool);
                if k > 0 && !request.grow(len + k, block_size, &mut self.pool) {
                    k = (request.blocks.len() * block_size).saturating_sub(len);
                }
                if k == 0 {
                    continue;
                }
            }
            if let Some(grant) = push_draft_rows(&mut plan, request, k, block_size) {
                self.grants.push(grant);
                drafting.push(index);
            }
        }
        let tables = drafting
            .iter()
            .map(|&index| self.running[index].blocks.as_slice());
        plan.batch.set_block_tables(tables);
        plan
    }
}

/// A request's drafts, and what they were drawn from.
type CheckedDrafts = (RequestId, TokenTree, Option<DraftProbs>);

/// The laws of the drafts at `index`; whether they are usable is for verification to say.
fn laws_of(laws: &DraftLaws, index: usize) -> Result<DraftProbs> {
    let width = laws.target_ids.len();
    let bound = |index: usize| {
        let start = laws.starts.get(index).copied();
        start.and_then(|start| usize::try_from(start).ok())
    };
    let (Some(start), Some(end)) = (bound(index), bound(index + 1)) else {
        return Err(Error::ShapeMismatch {
            name: "number of draft law starts",
            got: laws.starts.len() as i64,
            expected: index as i64 + 2,
        });
    };
    let range = start.saturating_mul(width)..end.saturating_mul(width);
    DraftProbs::new(laws.probs.clone(), range, laws.target_ids.clone())
}

/// Appends the drafter's rows of one request; none if there is nothing to do.
fn push_draft_rows(
    plan: &mut DraftPlan,
    request: &Request,
    k: usize,
    block_size: usize,
) -> Option<Grant> {
    let len = request.len();
    let first = request.drafter_computed;
    // Row j needs token j, the hidden state of token j - 1 and its own slot.
    let allocated = request.blocks.len() * block_size;
    let end = (request.computed + 1).min(len).min(allocated);
    if first >= end && k == 0 {
        return None;
    }
    for index in first..end {
        let slot = request.slot(index, block_size);
        let parent = (index - first) as i32 - 1;
        plan.batch
            .push_row(request.tokens[index], index as i32 - 1, slot, parent);
        plan.hidden_slots.push(request.slot(index - 1, block_size));
    }
    let last_row = plan.batch.num_rows() as i32 - 1;
    for index in end..(end + k).saturating_sub(1) {
        let slot = request.slot(index, block_size);
        let parent = (index - first) as i32 - 1;
        plan.batch.push_row(-1, index as i32 - 1, slot, parent);
        plan.hidden_slots.push(-1);
    }
    plan.draft_rows.extend(last_row..last_row + k as i32);
    plan.draft_start.push(plan.draft_rows.len() as i32);
    plan.batch.end_request(first as i32);
    plan.request_ids.push(request.id);
    plan.k.push(k as i32);
    plan.last_token.push(request.tokens[len - 1]);
    plan.noise.push(DraftNoise {
        temperature: request.params.sampling.temperature,
        seed: request.seed,
        position: len as i32,
    });
    let max_nodes = if k == 0 { 0 } else { request.max_k };
    Some(Grant {
        id: request.id,
        max_nodes,
        drafter_computed: end,
    })
}

/// The request with this id, looked for from `next` on and round: in order that is one comparison.
fn find_from<'a>(
    running: &'a mut [Request],
    id: RequestId,
    next: &mut usize,
) -> Option<&'a mut Request> {
    let start = (*next).min(running.len());
    let (before, after) = running.split_at(start);
    let ahead = after
        .iter()
        .chain(before)
        .position(|request| request.id == id)?;
    let index = (start + ahead) % running.len();
    *next = index + 1;
    Some(&mut running[index])
}
