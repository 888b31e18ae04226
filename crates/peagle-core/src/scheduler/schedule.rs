//! `schedule`: choose rows under the token budget, find them blocks, lay out the plan.

use std::mem;

use super::{Scheduler, SchedulerConfig};
use crate::error::{Error, Result};
use crate::ids::RequestId;
use crate::plan::{Batch, Drafts, Plan};
use crate::request::Request;
use crate::verify::Window;

/// One request of the step in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) id: RequestId,
    /// Rows of committed tokens.
    pub(crate) rows: usize,
    /// Rows of draft tokens.
    pub(crate) nodes: usize,
    pub(crate) has_logits: bool,
}

impl Scheduler {
    /// Plans the next step. `drafts` is what the proposer made of the last draft plan; `None` means
    /// that it did not run, and the drafter's rows are asked for again.
    ///
    /// Running requests come first, oldest first; each gets at least one row. A prompt is cut to what
    /// is left of the budget, a window loses the end of its tree. If blocks run out, look-ahead is taken
    /// back, then the newest running requests are preempted: they lose their blocks and drafts and
    /// recompute later. Waiting requests are admitted in order while budget, seats and blocks last.
    ///
    /// Errors, which leave the scheduler as it was: a step is in flight, or drafts that were not asked
    /// for, are too many or malformed.
    pub fn schedule(&mut self, drafts: Option<&Drafts>) -> Result<Plan> {
        if self.in_flight.is_some() {
            let reason = "the last plan has not been updated";
            return Err(Error::StepOrder {
                call: "schedule",
                reason,
            });
        }
        self.attach(drafts)?;
        let mut budget = self.config.max_num_batched_tokens;
        let preemptions = self.stats.preemptions;
        let mut flights = self.pick_running(&mut budget);
        if self.stats.preemptions == preemptions {
            self.admit_waiting(&mut budget, &mut flights);
        }
        self.step += 1;
        let plan = self.lay_out(&flights);
        self.in_flight = Some(flights);
        Ok(plan)
    }

    fn pick_running(&mut self, budget: &mut usize) -> Vec<Flight> {
        let mut flights = Vec::with_capacity(self.running.len());
        let mut index = 0;
        while index < self.running.len() {
            let request = &self.running[index];
            let pending = request.len() - request.computed;
            // A row for each later request is kept back, so that nobody starves.
            let later = self.running.len() - index - 1;
            let rows = pending.min(budget.saturating_sub(later));
            if !self.make_room(index, rows) {
                break;
            }
            *budget -= rows;
            let later = self.running.len() - index - 1;
            let nodes = if rows == pending {
                self.fit_tree(index, budget.saturating_sub(later))
            } else {
                0
            };
            *budget -= nodes;
            let id = self.running[index].id;
            flights.push(Flight {
                id,
                rows,
                nodes,
                has_logits: rows == pending,
            });
            index += 1;
        }
        flights
    }

    /// Finds blocks for the next `rows` rows of a running request; false if it had to be preempted.
    fn make_room(&mut self, index: usize, rows: usize) -> bool {
        let block_size = self.config.block_size;
        loop {
            let request = &mut self.running[index];
            let slots = request.computed + rows;
            let missing = slots
                .div_ceil(block_size)
                .saturating_sub(request.blocks.len());
            if missing <= self.pool.num_free() {
                return request.grow(slots, block_size, &mut self.pool);
            }
            if self.reclaim_look_ahead(index + 1) {
                continue;
            }
            self.preempt_newest();
            if index == self.running.len() {
                return false;
            }
        }
    }

    /// Takes back the look-ahead blocks of one request from `first` on, newest first.
    fn reclaim_look_ahead(&mut self, first: usize) -> bool {
        let free = self.pool.num_free();
        for request in self.running[first..].iter_mut().rev() {
            request.shrink(request.computed + 1, self.config.block_size, &mut self.pool);
            if self.pool.num_free() > free {
                return true;
            }
        }
        false
    }

    fn preempt_newest(&mut self) {
        if let Some(mut request) = self.running.pop() {
            request.reset(&mut self.pool);
            self.waiting.push_front(request);
            self.stats.preemptions += 1;
        }
    }

    /// How many nodes of a request's tree fit into `budget` rows, its context and free blocks.
    fn fit_tree(&mut self, index: usize, budget: usize) -> usize {
        let block_size = self.config.block_size;
        let request = &mut self.running[index];
        let len = request.len();
        let nodes = request
            .tree
            .len()
            .min(budget)
            .min(self.config.max_model_len - len);
        if nodes > 0 && !request.grow(len + nodes, block_size, &mut self.pool) {
            return request.blocks.len() * block_size - len;
        }
        nodes
    }

    fn admit_waiting(&mut self, budget: &mut usize, flights: &mut Vec<Flight>) {
        let block_size = self.config.block_size;
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(front) = self.waiting.front() else {
                return;
            };
            if front.len().div_ceil(block_size) > self.pool.num_free() {
                return;
            }
            let Some(mut request) = self.waiting.pop_front() else {
                return;
            };
            let rows = request.len().min(*budget);
            request.grow(rows, block_size, &mut self.pool);
            let has_logits = rows == request.len();
            flights.push(Flight {
                id: request.id,
                rows,
                nodes: 0,
                has_logits,
            });
            *budget -= rows;
            self.running.push(request);
        }
    }

    fn lay_out(&mut self, flights: &[Flight]) -> Plan {
        let rows = flights
            .iter()
            .map(|flight| flight.rows + flight.nodes)
            .sum();
        let mut plan = Plan {
            step: self.step,
            batch: Batch::with_capacity(rows, flights.len()),
            request_ids: Vec::with_capacity(flights.len()),
            logits_rows: Vec::with_capacity(
                rows.min(flights.len() * (1 + self.config.num_speculative_tokens)),
            ),
            logits_start: Vec::with_capacity(flights.len() + 1),
            windows: Vec::with_capacity(flights.len()),
            wants_hidden: false,
        };
        plan.logits_start.push(0);
        for (flight, request) in flights.iter().zip(&mut self.running) {
            push_rows(&mut plan, flight, request, &self.config);
        }
        plan.batch
            .set_block_tables(self.running.iter().map(|request| request.blocks.as_slice()));
        plan
    }
}

/// Appends a request's rows: committed tokens, then the nodes of its tree.
fn push_rows(plan: &mut Plan, flight: &Flight, request: &mut Request, config: &SchedulerConfig) {
    let block_size = config.block_size;
    let (first, len) = (request.computed, request.len());
    let start = plan.batch.num_rows() as i32;
    for (row, index) in (first..first + flight.rows).enumerate() {
        let slot = request.slot(index, block_size);
        plan.batch
            .push_row(request.tokens[index], index as i32, slot, row as i32 - 1);
    }
    let last = flight.rows as i32 - 1;
    let mut tree = mem::take(&mut request.tree);
    let draft_probs = request.draft_probs.take();
    tree.truncate(flight.nodes);
    if flight.nodes > 0 {
        for (node, depth) in tree.depths().into_iter().enumerate() {
            let slot = request.slot(len + node, block_size);
            let position = len as i32 - 1 + depth;
            let parent = tree.parents()[node] + 1 + last;
            plan.batch
                .push_row(tree.tokens()[node], position, slot, parent);
        }
    }
    plan.batch.end_request(first as i32);
    plan.request_ids.push(request.id);
    plan.wants_hidden |= request.max_k > 0;
    if flight.has_logits {
        let first_row = plan.logits_rows.len();
        plan.logits_rows
            .extend(start + last..plan.batch.num_rows() as i32);
        plan.windows.push(Window {
            request_id: request.id,
            first_row,
            tree,
            position: len as i32,
            sampling: request.params.sampling,
            processing: request.processing(),
            logprobs: request.params.logprobs,
            seed: request.seed,
            method: config.verification,
            draft_probs,
        });
    }
    plan.logits_start.push(plan.logits_rows.len() as i32);
}
