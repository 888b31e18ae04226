//! The scheduler against a naive model, under random requests, drafts, budgets, blocks and aborts.
//!
//! The model keeps, for each slot, what the caches of target and drafter would hold, so a wrong slot,
//! block, parent or move shows at once; and it knows what each request must produce by decoding it
//! alone, one token at a time.

mod common;

use std::collections::{HashMap, HashSet};

use common::{Choices, VOCABULARY, naive_decode, prefix_hash, target_logits, target_token};
use peagle_core::verify::verify;
use peagle_core::{
    Batch, DraftPlan, Drafts, Logits, Method, Plan, RequestId, RequestParams, Sampling, Scheduler,
    SchedulerConfig, StepOutput,
};
use proptest::prelude::*;

/// What a test does to the scheduler.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a few actions of a test")]
enum Action {
    Add {
        prompt_len: usize,
        params: RequestParams,
    },
    Step(Drafter),
    /// Aborts the i-th unfinished request between schedule and update of a step.
    AbortInFlight(usize),
    Abort(usize),
    /// A step whose forward pass fails after it wrote the caches.
    Failed(Drafter),
}

/// How drafts are made.
#[derive(Clone, Copy, Debug)]
enum Drafter {
    /// It does not run; the scheduler must ask again.
    Off,
    /// It runs and drafts nothing.
    Empty,
    /// A chain of the target's own tokens.
    Perfect,
    /// A chain that is wrong from this depth on.
    WrongFrom(usize),
    /// A random tree.
    Tree(u64),
}

struct Live {
    prompt: Vec<i32>,
    params: RequestParams,
    /// Prompt and committed output.
    tokens: Vec<i32>,
}

/// What a slot holds: a hash of the tokens up to its own, and the position.
type Content = (u64, usize);

struct Model {
    scheduler: Scheduler,
    config: SchedulerConfig,
    live: HashMap<RequestId, Live>,
    target_cache: HashMap<i32, Content>,
    hidden_pool: HashMap<i32, Content>,
    drafter_cache: HashMap<i32, Content>,
    draft: Option<DraftPlan>,
    next_id: i64,
    committed: u64,
    finished: usize,
}

impl Model {
    fn new(config: SchedulerConfig) -> Self {
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            config,
            live: HashMap::new(),
            target_cache: HashMap::new(),
            hidden_pool: HashMap::new(),
            drafter_cache: HashMap::new(),
            draft: None,
            next_id: 0,
            committed: 0,
            finished: 0,
        }
    }

    fn run(&mut self, action: &Action) {
        match action {
            Action::Add { prompt_len, params } => self.add(*prompt_len, params),
            Action::Step(drafter) => self.step(*drafter, None),
            Action::AbortInFlight(pick) => self.step(Drafter::Perfect, Some(*pick)),
            Action::Abort(pick) => self.abort(*pick),
            Action::Failed(drafter) => {
                let drafts = self
                    .draft
                    .take()
                    .and_then(|plan| self.propose(&plan, *drafter));
                let plan = self.scheduler.schedule(drafts.as_ref()).unwrap();
                self.check_plan(&plan);
                self.forward(&plan);
                self.scheduler.cancel_step();
            }
        }
        self.check_blocks();
    }

    fn add(&mut self, prompt_len: usize, params: &RequestParams) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let prompt: Vec<i32> = (0..prompt_len)
            .map(|i| ((i * 5 + id.0 as usize) % VOCABULARY) as i32)
            .collect();
        let before = self.scheduler.num_unfinished();
        match self.scheduler.add(id, &prompt, params.clone()) {
            Ok(()) => {
                let (params, tokens) = (params.clone(), prompt.clone());
                self.live.insert(
                    id,
                    Live {
                        prompt,
                        params,
                        tokens,
                    },
                );
            }
            Err(_) => assert_eq!(self.scheduler.num_unfinished(), before),
        }
    }

    fn pick(&self, pick: usize) -> Option<RequestId> {
        let mut ids: Vec<RequestId> = self.live.keys().copied().collect();
        ids.sort_unstable();
        (!ids.is_empty()).then(|| ids[pick % ids.len()])
    }

    fn abort(&mut self, pick: usize) {
        if let Some(id) = self.pick(pick) {
            assert!(self.scheduler.abort(id));
            assert!(!self.scheduler.abort(id));
            self.live.remove(&id);
        }
    }

    fn step(&mut self, drafter: Drafter, abort: Option<usize>) {
        let drafts = self
            .draft
            .take()
            .and_then(|plan| self.propose(&plan, drafter));
        let plan = self.scheduler.schedule(drafts.as_ref()).unwrap();
        self.check_plan(&plan);
        let logits = self.forward(&plan);
        let rows = plan.logits_rows.len();
        let verdicts = verify(plan.step, &plan.windows, Logits::F32(&logits), rows, 1).unwrap();
        if let Some(pick) = abort {
            self.abort(pick);
            if plan.batch.num_rows() > 0 && self.scheduler.stats().running == 0 {
                return; // the step went with its last request
            }
        }
        let output = self.scheduler.update(&verdicts, None).unwrap();
        self.take(output);
    }

    /// Rows, budget, slots and shapes of a plan.
    fn check_plan(&self, plan: &Plan) {
        let batch = &plan.batch;
        assert!(batch.num_rows() <= self.config.max_num_batched_tokens);
        assert!(batch.num_requests() <= self.config.max_num_seqs);
        assert_eq!(plan.request_ids.len(), batch.num_requests());
        assert!(
            self.live.is_empty() || batch.num_rows() > 0,
            "nothing would ever happen"
        );
        assert_eq!(batch.num_requests(), self.scheduler.stats().running);
        assert!(
            batch.query_start.is_sorted_by(|a, b| a < b),
            "a running request got no row"
        );
        let written: HashSet<i32> = batch.slots.iter().copied().collect();
        assert_eq!(written.len(), batch.num_rows(), "a slot is written twice");
        for (index, window) in plan.windows.iter().enumerate() {
            assert!(window.tree.len() <= self.config.num_speculative_tokens);
            let rows = 1 + window.tree.len();
            let next = plan
                .windows
                .get(index + 1)
                .map_or(plan.logits_rows.len(), |w| w.first_row);
            assert_eq!(window.first_row + rows, next);
        }
        for progress in self.scheduler.progress() {
            assert!(progress.computed <= progress.committed + progress.pending_drafts);
        }
    }

    fn slot(&self, batch: &Batch, request: usize, index: usize) -> i32 {
        let size = self.config.block_size;
        let table = &batch.block_tables[request * batch.block_table_width..];
        table[index / size] * size as i32 + (index % size) as i32
    }

    fn forward(&mut self, plan: &Plan) -> Vec<f32> {
        let mut logits = Vec::new();
        for (request, id) in plan.request_ids.iter().enumerate() {
            let batch = &plan.batch;
            let known = self.live[id].tokens.clone();
            let context = batch.context_lens[request] as usize;
            for index in 0..context {
                let content = self.target_cache[&self.slot(batch, request, index)];
                assert_eq!(
                    content,
                    (prefix_hash(&known[..=index]), index),
                    "stale target KV"
                );
            }
            let paths = paths(batch, request, &known);
            let start = batch.query_start[request] as usize;
            for (row, path) in paths.iter().enumerate() {
                let shared = path.len().min(known.len());
                assert_eq!(path[..shared], known[..shared]);
                assert_eq!(batch.positions[start + row] as usize, path.len() - 1);
                let slot = batch.slots[start + row];
                assert_eq!(slot, self.slot(batch, request, context + row));
                self.target_cache
                    .insert(slot, (prefix_hash(path), path.len() - 1));
                self.hidden_pool
                    .insert(slot, (prefix_hash(path), path.len() - 1));
            }
            let wanted =
                plan.logits_start[request] as usize..plan.logits_start[request + 1] as usize;
            for &row in &plan.logits_rows[wanted] {
                logits.extend(target_logits(&paths[row as usize - start]));
            }
        }
        logits
    }

    fn take(&mut self, output: StepOutput) {
        for (source, target) in output.moves_src.iter().zip(&output.moves_dst) {
            for cache in [&mut self.target_cache, &mut self.hidden_pool] {
                let content = cache[source];
                cache.insert(*target, content);
            }
        }
        for step in output.outputs {
            let live = self
                .live
                .get_mut(&step.request_id)
                .expect("an aborted request spoke");
            assert!(step.num_accepted <= step.num_drafted);
            live.tokens.extend(&step.token_ids);
            self.committed += step.token_ids.len() as u64;
            let output = &live.tokens[live.prompt.len()..];
            let limit = self.config.max_model_len;
            let (expected, reason) = naive_decode(&live.prompt, &live.params, limit);
            match step.finish_reason {
                None => assert!(output.len() < expected.len() && expected.starts_with(output)),
                Some(found) => {
                    assert_eq!(output, expected);
                    assert_eq!(found.as_str(), reason);
                    self.live.remove(&step.request_id);
                    self.finished += 1;
                }
            }
        }
        for progress in self.scheduler.progress() {
            let live = &self.live[&progress.request_id];
            assert_eq!(progress.committed, live.tokens.len());
            let prompt_unfinished = progress.computed + 1 < progress.committed;
            assert!(prompt_unfinished || progress.computed + 1 == progress.committed);
            assert_eq!(progress.pending_drafts, 0);
        }
        self.draft = Some(output.draft);
    }

    /// Runs the drafter on a plan, checking what it reads, and makes drafts.
    fn propose(&mut self, plan: &DraftPlan, drafter: Drafter) -> Option<Drafts> {
        if matches!(drafter, Drafter::Off) {
            return None;
        }
        let mut drafts = Drafts {
            starts: vec![0],
            ..Drafts::default()
        };
        for (request, &id) in plan.request_ids.iter().enumerate() {
            let Some(live) = self.live.get(&id) else {
                continue; // aborted between update and propose
            };
            let (known, params) = (live.tokens.clone(), live.params.clone());
            self.run_drafter(plan, request, &known);
            let k = plan.k[request] as usize;
            let cap = params.num_speculative_tokens.unwrap_or(usize::MAX);
            assert!(k <= cap.min(self.config.num_speculative_tokens));
            assert_eq!(plan.last_token[request], known[known.len() - 1]);
            if k > 0 {
                let (tokens, parents) = make_tree(drafter, &known, &params, k);
                drafts.token_ids.extend(tokens);
                drafts.parents.extend(parents);
            }
            drafts.request_ids.push(id);
            drafts.starts.push(drafts.token_ids.len() as i32);
        }
        Some(drafts)
    }

    fn run_drafter(&mut self, plan: &DraftPlan, request: usize, known: &[i32]) {
        let batch = &plan.batch;
        let first = batch.context_lens[request] as usize;
        for index in 1..first {
            let content = self.drafter_cache[&self.slot(batch, request, index)];
            assert_eq!(
                content,
                (prefix_hash(&known[..=index]), index),
                "stale drafter KV"
            );
        }
        let rows = batch.query_start[request] as usize..batch.query_start[request + 1] as usize;
        for (index, row) in (first..).zip(rows.clone()) {
            assert_eq!(batch.parents[row], (index - first) as i32 - 1);
            assert_eq!(batch.positions[row], index as i32 - 1);
            assert_eq!(batch.slots[row], self.slot(batch, request, index));
            if plan.hidden_slots[row] < 0 {
                assert!(index >= known.len() && batch.input_ids[row] == -1);
                self.drafter_cache.remove(&batch.slots[row]);
                continue;
            }
            assert_eq!(batch.input_ids[row], known[index]);
            let hidden = self.hidden_pool[&plan.hidden_slots[row]];
            assert_eq!(
                hidden,
                (prefix_hash(&known[..index]), index - 1),
                "stale hidden state"
            );
            self.drafter_cache
                .insert(batch.slots[row], (prefix_hash(&known[..=index]), index));
        }
        let k = plan.k[request] as usize;
        let draft_rows = plan.draft_start[request] as usize..plan.draft_start[request + 1] as usize;
        let expected: Vec<i32> = (rows.end - k..rows.end).map(|row| row as i32).collect();
        assert_eq!(plan.draft_rows[draft_rows], expected);
        if k > 0 {
            assert_eq!(first + rows.len(), known.len() + k - 1);
        }
    }

    /// Blocks add up, and no block has two holders.
    fn check_blocks(&self) {
        let mut held = HashSet::new();
        for progress in self.scheduler.progress() {
            assert!(progress.is_running || progress.blocks.is_empty());
            let limit = self.config.max_model_len.div_ceil(self.config.block_size);
            assert!(progress.blocks.len() <= limit);
            for block in progress.blocks {
                assert!(held.insert(block), "block {block} has two holders");
            }
        }
        let stats = self.scheduler.stats();
        assert_eq!(stats.used_blocks, held.len());
        assert_eq!(
            stats.free_blocks + stats.used_blocks,
            self.config.num_blocks
        );
        assert_eq!(stats.committed, self.committed);
        assert!(stats.accepted <= stats.drafted);
        assert!(stats.accepted_by_position.is_sorted_by(|a, b| a >= b));
        assert!(
            stats
                .accepted_by_position
                .first()
                .is_none_or(|&first| first <= stats.windows)
        );
        assert_eq!(
            stats.accepted_by_position.iter().sum::<u64>(),
            stats.accepted
        );
    }

    /// Runs until nothing is left; every step must bring some request forward.
    fn drain(&mut self) {
        let limit = 10_000;
        for _ in 0..limit {
            if self.scheduler.num_unfinished() == 0 {
                assert!(self.live.is_empty());
                assert_eq!(self.scheduler.free_blocks(), self.config.num_blocks);
                return;
            }
            self.run(&Action::Step(Drafter::Perfect));
        }
        panic!("no end after {limit} steps");
    }
}

/// The tokens of each row's path, read through parents.
fn paths(batch: &Batch, request: usize, known: &[i32]) -> Vec<Vec<i32>> {
    let rows = batch.query_start[request] as usize..batch.query_start[request + 1] as usize;
    let context = batch.context_lens[request] as usize;
    let mut paths: Vec<Vec<i32>> = Vec::new();
    for row in rows {
        let mut path = match batch.parents[row] {
            -1 => known[..context].to_vec(),
            parent => paths[parent as usize].clone(),
        };
        path.push(batch.input_ids[row]);
        paths.push(path);
    }
    paths
}

/// Drafts of at most `k` nodes after a history.
fn make_tree(
    drafter: Drafter,
    known: &[i32],
    params: &RequestParams,
    k: usize,
) -> (Vec<i32>, Vec<i32>) {
    let chain = |wrong_from: usize| {
        let mut path = known.to_vec();
        for depth in 0..k {
            let token = target_token(&path, params);
            let wrong = (token + 1) % VOCABULARY as i32;
            path.push(if depth < wrong_from { token } else { wrong });
        }
        (path.split_off(known.len()), (-1..k as i32 - 1).collect())
    };
    match drafter {
        Drafter::Off | Drafter::Empty => (vec![], vec![]),
        Drafter::Perfect => chain(usize::MAX),
        Drafter::WrongFrom(depth) => chain(depth),
        Drafter::Tree(seed) => {
            let mut choices = Choices::new(seed ^ prefix_hash(known));
            let mut paths = vec![known.to_vec()];
            let (mut tokens, mut parents): (Vec<i32>, Vec<i32>) = (vec![], vec![]);
            for _ in 0..k {
                let parent = choices.below(paths.len());
                let right = target_token(&paths[parent], params);
                let token = if choices.below(3) > 0 {
                    right
                } else {
                    choices.below(7) as i32
                };
                let taken = tokens.iter().zip(&parents);
                if taken
                    .into_iter()
                    .any(|(&t, &p)| t == token && p == parent as i32 - 1)
                {
                    continue;
                }
                let path = [paths[parent].as_slice(), &[token]].concat();
                paths.push(path);
                tokens.push(token);
                parents.push(parent as i32 - 1);
            }
            (tokens, parents)
        }
    }
}

fn a_drafter() -> impl Strategy<Value = Drafter> {
    prop_oneof![
        1 => Just(Drafter::Off),
        1 => Just(Drafter::Empty),
        2 => Just(Drafter::Perfect),
        2 => (0_usize..4).prop_map(Drafter::WrongFrom),
        4 => any::<u64>().prop_map(Drafter::Tree),
    ]
}

prop_compose! {
    fn some_params()(
        max_tokens in 1_usize..24,
        temperature in prop_oneof![Just(0.0), Just(0.7), Just(1.5)],
        top_k in 0_u32..5,
        top_p in prop_oneof![Just(1.0), Just(0.8)],
        seed in any::<u64>(),
        ignore_eos in any::<bool>(),
        has_eos in any::<bool>(),
        has_stop in prop::bool::weighted(0.2),
        num_speculative_tokens in prop::option::of(0_usize..7),
    ) -> RequestParams {
        RequestParams {
            max_tokens,
            sampling: Sampling { temperature, top_k, top_p, min_p: 0.0 },
            seed,
            ignore_eos,
            eos_token_ids: if has_eos { vec![0] } else { vec![] },
            stop_token_ids: if has_stop { vec![1, 2] } else { vec![] },
            num_speculative_tokens,
            ..RequestParams::default()
        }
    }
}

fn an_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (1_usize..24, some_params())
            .prop_map(|(prompt_len, params)| Action::Add { prompt_len, params }),
        8 => a_drafter().prop_map(Action::Step),
        1 => (0_usize..8).prop_map(Action::Abort),
        1 => (0_usize..8).prop_map(Action::AbortInFlight),
        1 => a_drafter().prop_map(Action::Failed),
    ]
}

prop_compose! {
    fn a_config()(
        block_size in 1_usize..6,
        spare_blocks in 0_usize..12,
        max_num_seqs in 1_usize..7,
        max_num_batched_tokens in 1_usize..40,
        max_model_len in 8_usize..40,
        num_speculative_tokens in 0_usize..8,
    ) -> SchedulerConfig {
        SchedulerConfig {
            num_blocks: max_model_len.div_ceil(block_size) / 2 + 1 + spare_blocks,
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            num_speculative_tokens,
            verification: Method::Coupled,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_its_own_text_whatever_happens_around_it(
        config in a_config(),
        actions in prop::collection::vec(an_action(), 1..60),
    ) {
        let mut model = Model::new(config);
        for action in &actions {
            model.run(action);
        }
        model.drain();
    }
}

#[test]
fn small_pools_preempt_and_still_finish() {
    let config = SchedulerConfig {
        num_blocks: 9,
        block_size: 4,
        max_num_seqs: 6,
        max_num_batched_tokens: 32,
        max_model_len: 36,
        num_speculative_tokens: 4,
        verification: Method::Coupled,
    };
    let mut model = Model::new(config);
    for seed in 0..6 {
        let sampling = Sampling {
            temperature: 0.9,
            ..Sampling::default()
        };
        let params = RequestParams {
            max_tokens: 24,
            sampling,
            seed,
            ..RequestParams::default()
        };
        model.run(&Action::Add {
            prompt_len: 6,
            params,
        });
    }
    model.drain();
    let stats = model.scheduler.stats();
    assert_eq!(model.finished, 6);
    assert!(stats.preemptions > 0);
    assert!(stats.windows > 0 && stats.accepted > 0);
    assert_eq!(stats.committed, 6 * 24);
}
