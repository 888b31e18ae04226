//! Requests through the real scheduler and `verify`, over the fake target and drafters that know what
//! comes.

use peagle_core::scheduler::FinishReason;
use peagle_core::verify::{Method, verify};
use peagle_core::{
    DraftPlan, Drafts, Logits, Plan, RequestId, RequestParams, Scheduler, SchedulerConfig,
    TokenLogprobs, Verdicts,
};

use super::{VOCABULARY, target_logits};

pub const PROMPT: [i32; 3] = [1, 4, 2];
pub const LENGTH: usize = 14;
pub const SEED: u64 = 3;

/// What a drafter that knows the coming tokens makes of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    Off,
    /// All right.
    Perfect,
    /// None right.
    Wrong,
    /// The third token wrong.
    Chain,
    /// Every right token with a wrong sibling before it and one after it.
    Tree,
}

/// Tokens and parents of at most `k` nodes.
pub fn nodes(shape: Shape, coming: &[i32], k: usize) -> Vec<(i32, i32)> {
    let chain = |tokens: Vec<i32>| tokens.into_iter().zip(-1..).take(k).collect();
    let other = |token: i32, by: i32| (token + by) % VOCABULARY as i32;
    match shape {
        Shape::Off => Vec::new(),
        Shape::Perfect => chain(coming.to_vec()),
        Shape::Wrong => chain(coming.iter().map(|&token| other(token, 1)).collect()),
        Shape::Chain => {
            let turn = |(place, &token): (usize, &i32)| other(token, i32::from(place % 3 == 2));
            chain(coming.iter().enumerate().map(turn).collect())
        }
        Shape::Tree => {
            let (mut tree, mut parent) = (Vec::new(), -1);
            for &token in coming {
                tree.push((other(token, 1), parent));
                tree.push((token, parent));
                tree.push((other(token, 2), parent));
                parent = tree.len() as i32 - 2;
            }
            tree.truncate(k);
            tree
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    pub tokens: Vec<i32>,
    pub reason: Option<FinishReason>,
    pub error: Option<String>,
    pub logprobs: Vec<TokenLogprobs>,
}

/// Room for everything.
pub const SIZES: SchedulerConfig = SchedulerConfig {
    num_blocks: 2048,
    block_size: 4,
    max_num_seqs: 8,
    max_num_batched_tokens: 256,
    max_model_len: 2000,
    num_speculative_tokens: 6,
    verification: Method::Coupled,
};

/// Runs requests together; request i drafts from `coming[i]`.
pub fn run(requests: &[RequestParams], shape: Shape, coming: &[Vec<i32>]) -> Vec<Output> {
    run_sized(requests, shape, coming, SIZES)
}

/// [`run`] in a scheduler of some size.
pub fn run_sized(
    requests: &[RequestParams],
    shape: Shape,
    coming: &[Vec<i32>],
    mut sizes: SchedulerConfig,
) -> Vec<Output> {
    if shape == Shape::Off {
        sizes.num_speculative_tokens = 0;
    }
    let mut scheduler = Scheduler::new(sizes).unwrap();
    for (id, params) in requests.iter().enumerate() {
        let mut params = params.clone();
        params.num_speculative_tokens = params
            .num_speculative_tokens
            .filter(|_| shape != Shape::Off);
        scheduler
            .add(RequestId(id as i64), &PROMPT, params)
            .unwrap();
    }
    let mut outputs = vec![Output::default(); requests.len()];
    let mut drafts = None;
    while scheduler.num_unfinished() > 0 {
        let plan = scheduler.schedule(drafts.as_ref()).unwrap();
        let verdicts = verify_plan(&plan, &outputs);
        let update = scheduler.update(&verdicts, None).unwrap();
        for step in update.outputs {
            let output = &mut outputs[step.request_id.0 as usize];
            output.tokens.extend(step.token_ids);
            output.logprobs.extend(step.logprobs);
            output.reason = step.finish_reason;
            output.error = step.error.map(|error| error.to_string());
        }
        drafts = Some(draft(&update.draft, shape, coming, &outputs));
    }
    assert_eq!(scheduler.free_blocks(), sizes.num_blocks);
    outputs
}

/// Verdicts over the fake target's rows, each with the history of its node.
fn verify_plan(plan: &Plan, outputs: &[Output]) -> Verdicts {
    let mut logits = Vec::new();
    for window in &plan.windows {
        let known = [&PROMPT[..], &outputs[window.request_id.0 as usize].tokens].concat();
        for node in -1..window.tree.len() as i32 {
            let path: Vec<i32> = window.tree.path(node).collect();
            logits.extend(target_logits(&[&known[..], &path].concat()));
        }
    }
    let rows = plan.logits_rows.len();
    verify(plan.step, &plan.windows, Logits::F32(&logits), rows, 1).unwrap()
}

fn draft(plan: &DraftPlan, shape: Shape, coming: &[Vec<i32>], outputs: &[Output]) -> Drafts {
    let mut drafts = Drafts {
        starts: vec![0],
        ..Drafts::default()
    };
    for (&id, &k) in plan.request_ids.iter().zip(&plan.k) {
        let done = outputs[id.0 as usize].tokens.len();
        let coming = coming[id.0 as usize].get(done..).unwrap_or_default();
        let (tokens, parents): (Vec<_>, Vec<_>) =
            nodes(shape, coming, k as usize).into_iter().unzip();
        drafts.request_ids.push(id);
        drafts.token_ids.extend(tokens);
        drafts.parents.extend(parents);
        drafts.starts.push(drafts.token_ids.len() as i32);
    }
    drafts
}

pub fn run_one(params: &RequestParams, shape: Shape, coming: &[i32]) -> Output {
    run(std::slice::from_ref(params), shape, &[coming.to_vec()]).remove(0)
}

/// What a request gives without drafts, after all shapes were seen to give the same.
pub fn alike(params: &RequestParams, name: &str) -> Output {
    let plain = run_one(params, Shape::Off, &[]);
    for shape in [Shape::Perfect, Shape::Wrong, Shape::Chain, Shape::Tree] {
        let found = run_one(params, shape, &plain.tokens);
        assert_alike(&found, &plain, &format!("{name}, {shape:?}"));
    }
    plain
}

/// Equal; of a request that fails, a window that meets the failure brings no tokens.
pub fn assert_alike(found: &Output, plain: &Output, what: &str) {
    if plain.error.is_none() {
        assert_eq!(found, plain, "{what}");
        return;
    }
    assert_eq!(found.error, plain.error, "{what}");
    assert_eq!(found.reason, plain.reason, "{what}");
    assert!(plain.tokens.starts_with(&found.tokens), "{what}");
}

pub fn params(temperature: f64) -> RequestParams {
    let mut params = RequestParams {
        max_tokens: LENGTH,
        seed: SEED,
        ..RequestParams::default()
    };
    params.sampling.temperature = temperature;
    params
}
