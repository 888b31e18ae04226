//! Rejection and block verification keep the law of processed rows: penalties, bans and biases with the
//! history of each node's path. Texts of real windows are counted and compared by chi-square.

mod common;

use std::sync::Arc;

use common::{VOCABULARY, chi_square_score, target_logits};
use peagle_core::distribution::target_probs;
use peagle_core::draft::{DraftScratch, draft_probs, sample_tree};
use peagle_core::processors::{ProcessedRows, Processing, ProcessorScratch};
use peagle_core::simd::F32;
use peagle_core::verify::verify;
use peagle_core::{
    DraftNoise, DraftProbs, Logits, Method, Processors, RequestParams, Sampling, Seed, TokenTree,
    Window,
};

const PROMPT: [i32; 2] = [1, 4];
const LENGTH: usize = 3;
const TRIALS: u64 = 131_072;
/// Standard normal score: a right sampler exceeds it once in 30,000 cases.
const LIMIT: f64 = 4.0;
/// The drafter's logits, whatever came before.
const DRAFTER: [f32; VOCABULARY] = [0.3, 1.0, 0.2, 0.9, 0.0, 0.7, 0.5];

/// Drawn from in full, and cut.
const PLAIN: Sampling = Sampling {
    temperature: 0.9,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
};
const CUT: Sampling = Sampling {
    top_k: 5,
    top_p: 0.95,
    min_p: 0.01,
    ..PLAIN
};

/// All processors at once: tokens 6 and, early, 5 are out, 0 is lifted, repeats cost, 3 never follows 3
/// or 1, 1.
fn params(sampling: Sampling) -> RequestParams {
    RequestParams {
        min_tokens: 2,
        stop_token_ids: vec![5],
        processors: Processors {
            allowed_token_ids: Some((0..6).collect()),
            bad_words: vec![vec![3, 3], vec![1, 1, 3]],
            logit_bias: vec![(0, 1.5)],
            repetition_penalty: 1.4,
            frequency_penalty: 0.6,
            presence_penalty: 0.8,
            ..Processors::default()
        },
        sampling,
        ..RequestParams::default()
    }
}

/// The law of the token after a history, which is processed without drafts.
fn next(params: &Arc<RequestParams>, history: &[i32]) -> Vec<f64> {
    let processing = Processing::new(params, history, PROMPT.len()).unwrap();
    let mut scratch = ProcessorScratch::default();
    let mut rows = ProcessedRows::new(&processing, VOCABULARY, &mut scratch);
    let logits = target_logits(history);
    let row = rows.process::<F32>(&logits, &TokenTree::default(), 0, 0);
    target_probs(row.unwrap(), &params.sampling)
}

/// Expected shares of all texts.
fn law(params: &Arc<RequestParams>) -> Vec<f64> {
    let mut texts: Vec<(Vec<i32>, f64)> = vec![(PROMPT.to_vec(), 1.0)];
    for _ in 0..LENGTH {
        let longer = texts.iter().flat_map(|(history, mass)| {
            let probs = if *mass > 0.0 {
                next(params, history)
            } else {
                vec![0.0; VOCABULARY]
            };
            let longer = (0..).zip(probs).map(|(token, prob)| {
                let history = [&history[..], &[token]].concat();
                (history, mass * prob)
            });
            longer.collect::<Vec<_>>()
        });
        texts = longer.collect();
    }
    texts.into_iter().map(|(_, mass)| mass).collect()
}

/// One window after a history: what `verify` emits.
fn window(
    params: &Arc<RequestParams>,
    method: Method,
    parents: &[i32],
    history: &[i32],
    seed: Seed,
) -> Vec<i32> {
    let ids: Vec<i32> = (0..VOCABULARY as i32).collect();
    let noise = DraftNoise {
        temperature: params.sampling.temperature,
        seed,
        position: history.len() as i32,
    };
    let scratch = &mut DraftScratch::default();
    let mut drafter = vec![0.0; VOCABULARY];
    assert!(draft_probs(
        &DRAFTER,
        noise.temperature,
        scratch,
        &mut drafter
    ));
    let probs = drafter.repeat(parents.len());
    let tokens = sample_tree(&probs, &ids, parents, noise, scratch).unwrap();
    let tree = TokenTree::new(tokens, parents.to_vec()).unwrap();
    let range = 0..probs.len();
    let mut logits = Vec::new();
    for node in -1..tree.len() as i32 {
        let path: Vec<i32> = tree.path(node).collect();
        logits.extend(target_logits(&[history, &path].concat()));
    }
    let rows = 1 + tree.len();
    let window = Window {
        tree,
        position: history.len() as i32,
        sampling: params.sampling,
        processing: Processing::new(params, history, PROMPT.len()),
        seed,
        method,
        draft_probs: Some(DraftProbs::new(probs.into(), range, ids.into()).unwrap()),
        ..Window::default()
    };
    let found = verify(0, &[window], Logits::F32(&logits), rows, 1).unwrap();
    assert_eq!(found.errors, [None]);
    found.token_ids
}

fn score(params: &Arc<RequestParams>, method: Method, parents: &[i32], law: &[f64]) -> f64 {
    let mut observed = vec![0.0; law.len()];
    for value in 0..TRIALS {
        let seed = Seed { value, sample: 0 };
        let mut history = PROMPT.to_vec();
        while history.len() < PROMPT.len() + LENGTH {
            history.extend(window(params, method, parents, &history, seed));
        }
        let text = &history[PROMPT.len()..][..LENGTH];
        let place = |sum, &token: &i32| sum * VOCABULARY + token as usize;
        observed[text.iter().fold(0, place)] += 1.0;
    }
    let expected: Vec<f64> = law.iter().map(|mass| mass * TRIALS as f64).collect();
    chi_square_score(&observed, &expected)
}

/// B13, and B18 for rejection and block: whatever a path holds counts where the path is tried, accepted
/// and recovered from.
/// <https://github.com/sgl-project/sglang/pull/33643>
/// <https://github.com/NVIDIA/TensorRT-LLM/pull/17701>
#[test]
fn processed_rows_keep_their_law_under_every_method() {
    for (method, parents, sampling) in [
        (Method::Coupled, &[-1, -1, 0, 0][..], CUT),
        (Method::Rejection, &[-1, 0, 1], PLAIN),
        (Method::Rejection, &[-1, -1, 0, 0, 2], CUT),
        (Method::Block, &[-1, 0, 1], PLAIN),
        (Method::Block, &[-1, 0, 1], CUT),
    ] {
        let params = Arc::new(params(sampling));
        let expected = law(&params);
        assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let score = score(&params, method, parents, &expected);
        assert!(score < LIMIT, "{method:?} {parents:?}: {score}");
    }
}

/// The control: a law with a presence penalty of 0.6 instead of 0.8 is told apart.
#[test]
fn the_law_of_a_slightly_other_penalty_is_told_apart() {
    let mut other = params(PLAIN);
    other.processors.presence_penalty = 0.6;
    let expected = law(&Arc::new(other));
    let params = Arc::new(params(PLAIN));
    let score = score(&params, Method::Rejection, &[-1, 0, 1], &expected);
    assert!(score > 2.0 * LIMIT, "{score}");
}
