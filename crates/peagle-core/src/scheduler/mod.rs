//! The scheduler: which rows the target computes next, and what became of them.
//!
//! There are no prefill and decode phases. A request has *known* tokens (prompt, output, pending
//! drafts) and *computed* ones (whose KV is in the cache); a step lets computed catch up with known
//! under a token budget. [`Scheduler::schedule`] plans a step, [`Scheduler::update`] commits it.

mod draft;
mod end;
mod schedule;
mod update;

use std::collections::{HashSet, VecDeque};

pub use end::FinishReason;
pub use update::{RequestStep, StepOutput};

use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};
use crate::kv::BlockPool;
use crate::request::{Request, RequestParams};
use crate::stats::Stats;
use crate::verify::Method;

use draft::Grant;
use schedule::Flight;

/// Sizes and limits of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// KV blocks of the pool.
    pub num_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Requests that may hold KV at the same time.
    pub max_num_seqs: usize,
    /// Rows of a step.
    pub max_num_batched_tokens: usize,
    /// Prompt and output tokens of a request.
    pub max_model_len: usize,
    /// Drafts of a request in a step, K.
    pub num_speculative_tokens: usize,
    /// How drafts are verified at temperatures above 0.
    pub verification: Method,
}

impl SchedulerConfig {
    fn validate(&self) -> Result<()> {
        let at_least = |name, value, least, expected| {
            if value < least {
                return Err(Error::InvalidConfig {
                    name,
                    value,
                    expected,
                });
            }
            Ok(())
        };
        at_least("num_blocks", self.num_blocks, 1, "at least 1")?;
        at_least("block_size", self.block_size, 1, "at least 1")?;
        at_least("max_num_seqs", self.max_num_seqs, 1, "at least 1")?;
        at_least(
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
            1,
            "at least 1",
        )?;
        at_least("max_model_len", self.max_model_len, 2, "at least 2")?;
        if self.num_blocks.saturating_mul(self.block_size) > i32::MAX as usize {
            let (name, value) = ("num_blocks", self.num_blocks);
            return Err(Error::InvalidConfig {
                name,
                value,
                expected: "at most 2^31 slots in all",
            });
        }
        Ok(())
    }
}

/// Requests, their KV blocks and the step in flight.
#[derive(Clone, Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    ids: HashSet<RequestId>,
    /// Oldest first. While a step is in flight its requests stand here, in the order of the plan.
    running: Vec<Request>,
    waiting: VecDeque<Request>,
    in_flight: Option<Vec<Flight>>,
    /// What the last draft plan asked for; empty once drafts came or were declined.
    grants: Vec<Grant>,
    step: u64,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler without requests. Errors: a size out of range.
    pub fn new(config: SchedulerConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            config,
            pool: BlockPool::new(config.num_blocks),
            ids: HashSet::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: None,
            grants: Vec::new(),
            step: 0,
            stats: Stats::default(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Puts a request at the end of the queue. An error leaves the scheduler as it was.
    ///
    /// A prompt may have `max_model_len - 1` tokens. `max_tokens` may reach past `max_model_len`: the
    /// request then ends with `length` there.
    pub fn add(&mut self, id: RequestId, prompt: &[TokenId], params: RequestParams) -> Result<()> {
        let cap = self.config.num_speculative_tokens;
        let max_k = params.num_speculative_tokens.unwrap_or(cap);
        if max_k > cap {
            return Err(Error::SpeculationCap {
                id,
                k: max_k as i64,
                cap,
            });
        }
        let request = Request::new(id, prompt, params, max_k)?;
        let limit = self.config.max_model_len - 1;
        if prompt.len() > limit {
            return Err(Error::PromptTooLong {
                id,
                len: prompt.len(),
                limit,
            });
        }
        // The KV of the last token is never computed.
        let slots = prompt.len() + request.remaining(self.config.max_model_len) - 1;
        let needed = slots.div_ceil(self.config.block_size);
        let total = self.config.num_blocks;
        if needed > total {
            return Err(Error::KvCapacity { id, needed, total });
        }
        if !self.ids.insert(id) {
            return Err(Error::DuplicateRequest { id });
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// Forgets a request at once, at any moment, and frees its blocks; whether it was known.
    ///
    /// A step in flight goes on: its verdict for the request is ignored and `update` does not report
    /// it.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if !self.ids.remove(&id) {
            return false;
        }
        if let Some(index) = self.running.iter().position(|request| request.id == id) {
            self.running.remove(index).reset(&mut self.pool);
            if self.running.is_empty() {
                self.in_flight = None;
            }
        } else {
            self.waiting.retain(|request| request.id != id);
        }
        true
    }

    /// Forgets the plan in flight, if there is one, as if it had never been made: its rows are planned
    /// again, its drafts are lost. For a forward pass that failed.
    pub fn cancel_step(&mut self) {
        self.in_flight = None;
    }

    /// Requests that have not ended.
    pub fn num_unfinished(&self) -> usize {
        self.ids.len()
    }

    /// KV blocks nobody holds.
    pub fn free_blocks(&self) -> usize {
        self.pool.num_free()
    }

    /// Counters, and what the scheduler holds now.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            free_blocks: self.pool.num_free(),
            used_blocks: self.pool.num_blocks() - self.pool.num_free(),
            ..self.stats.clone()
        }
    }

    /// Committed and computed tokens and blocks of each unfinished request, for checks.
    pub fn progress(&self) -> impl Iterator<Item = Progress> + '_ {
        let running = self.running.iter().map(|request| (request, true));
        let waiting = self.waiting.iter().map(|request| (request, false));
        running
            .chain(waiting)
            .map(|(request, is_running)| Progress {
                request_id: request.id,
                is_running,
                prompt_len: request.prompt_len,
                committed: request.len(),
                computed: request.computed,
                drafter_computed: request.drafter_computed,
                pending_drafts: request.tree.len(),
                blocks: request.blocks.clone(),
            })
    }
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub request_id: RequestId,
    /// Whether it holds KV or waits.
    pub is_running: bool,
    /// Prompt tokens.
    pub prompt_len: usize,
    /// Prompt and output tokens.
    pub committed: usize,
    /// Tokens whose target KV is in the cache.
    pub computed: usize,
    /// Drafter rows `1..drafter_computed` are in the drafter's cache.
    pub drafter_computed: usize,
    /// Draft tokens that wait for verification.
    pub pending_drafts: usize,
    /// The block table.
    pub blocks: Vec<i32>,
}

#[cfg(test)]
mod tests;
