//! What the core hands out and takes back: plain structs of flat arrays.
//!
//! T = rows, R = requests, L = rows with logits, M = the longest block table.

use std::sync::Arc;

use crate::draft::{DraftMode, DraftNoise};
use crate::ids::{RequestId, TokenId};
use crate::verify::Window;

/// The rows of one forward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// `[T]`: token ids; -1 for a drafter's mask row.
    pub input_ids: Vec<i32>,
    /// `[T]`: positions of the rotary embedding.
    pub positions: Vec<i32>,
    /// `[T]`: where each row's KV goes.
    pub slots: Vec<i32>,
    /// `[R + 1]`: rows of request i are `query_start[i]..query_start[i + 1]`.
    pub query_start: Vec<i32>,
    /// `[R]`: slots of the request that come before its first row.
    pub context_lens: Vec<i32>,
    /// `[T]`: the row's parent, counted from the request's first row; -1 = the last context slot.
    pub parents: Vec<i32>,
    /// `[R, M]` row-major, padded with 0.
    pub block_tables: Vec<i32>,
    /// M.
    pub block_table_width: usize,
}

impl Batch {
    /// A batch without rows yet.
    pub(crate) fn with_capacity(rows: usize, requests: usize) -> Self {
        let mut query_start = Vec::with_capacity(requests + 1);
        query_start.push(0);
        Self {
            input_ids: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            slots: Vec::with_capacity(rows),
            query_start,
            context_lens: Vec::with_capacity(requests),
            parents: Vec::with_capacity(rows),
            block_tables: Vec::new(),
            block_table_width: 0,
        }
    }

    /// Number of rows, T.
    pub fn num_rows(&self) -> usize {
        self.input_ids.len()
    }

    /// Number of requests, R.
    pub fn num_requests(&self) -> usize {
        self.context_lens.len()
    }

    pub(crate) fn push_row(&mut self, input_id: i32, position: i32, slot: i32, parent: i32) {
        self.input_ids.push(input_id);
        self.positions.push(position);
        self.slots.push(slot);
        self.parents.push(parent);
    }

    pub(crate) fn end_request(&mut self, context_len: i32) {
        self.query_start.push(self.input_ids.len() as i32);
        self.context_lens.push(context_len);
    }

    /// Fills the block tables, one slice for each request.
    pub(crate) fn set_block_tables<'a>(&mut self, tables: impl Iterator<Item = &'a [i32]> + Clone) {
        let width = tables.clone().map(<[i32]>::len).max().unwrap_or(0);
        self.block_table_width = width;
        self.block_tables.reserve(width * self.num_requests());
        for table in tables {
            self.block_tables.extend_from_slice(table);
            let padded = self.block_tables.len() + width - table.len();
            self.block_tables.resize(padded, 0);
        }
    }
}

/// One step of the target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Number of the step.
    pub step: u64,
    /// The rows.
    pub batch: Batch,
    /// `[R]`
    pub request_ids: Vec<RequestId>,
    /// `[L]`: rows whose logits are wanted, as indices into the batch.
    pub logits_rows: Vec<i32>,
    /// `[R + 1]`: request i has `logits_rows[logits_start[i]..logits_start[i + 1]]`, maybe none.
    pub logits_start: Vec<i32>,
    /// `[R']`: what verification needs, for the requests with logits, in order.
    pub windows: Vec<Window>,
    /// Whether any of the requests may ever have drafts: only then are hidden states worth keeping.
    pub wants_hidden: bool,
}

/// One pass of the drafter: rows to catch up with the target, then mask rows.
///
/// The row of token `t_j` takes the embedding of `t_j` and the hidden state at `hidden_slots`
/// (`slot(j - 1)`), has position `j - 1` and writes its KV to `slot(j)`. Slot 0 of a request is never a
/// key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftPlan {
    /// Number of the step it follows.
    pub step: u64,
    /// The rows.
    pub batch: Batch,
    /// `[R]`
    pub request_ids: Vec<RequestId>,
    /// `[T]`: where the row's hidden state lies; -1 for a mask row.
    pub hidden_slots: Vec<i32>,
    /// `[R]`: how many drafts to make; 0 = only catch up.
    pub k: Vec<i32>,
    /// `[sum k]`: rows whose logits give drafts, request-major, by depth.
    pub draft_rows: Vec<i32>,
    /// `[R + 1]`: request i has `draft_rows[draft_start[i]..draft_start[i + 1]]`.
    pub draft_start: Vec<i32>,
    /// `[R]`: the last committed token.
    pub last_token: Vec<i32>,
    /// `[R]`: what the drafts are chosen by; the temperature may be 0.
    pub noise: Vec<DraftNoise>,
}

/// What a proposer returned for a [`DraftPlan`]: one token tree for each request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafts {
    /// How they were chosen, at temperatures above 0.
    pub mode: DraftMode,
    /// `[R]`
    pub request_ids: Vec<RequestId>,
    /// `[R + 1]`: nodes of request i are `starts[i]..starts[i + 1]`.
    pub starts: Vec<i32>,
    /// `[N]`: node tokens, in topological order.
    pub token_ids: Vec<i32>,
    /// `[N]`: the node's parent, counted from the request's first node; -1 = the last committed token.
    pub parents: Vec<i32>,
    /// What sampled drafts were drawn from.
    pub laws: Option<DraftLaws>,
}

/// The laws of sampled drafts, one for each depth of each request.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftLaws {
    /// `[depths of all requests, draft vocabulary]`, request-major.
    pub probs: Arc<[f32]>,
    /// `[R + 1]`: depths of request i are rows `starts[i]..starts[i + 1]`.
    pub starts: Vec<i32>,
    /// `[draft vocabulary]`: target id of each draft id, increasing.
    pub target_ids: Arc<[TokenId]>,
}
