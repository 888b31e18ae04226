//! The seed alone decides: neighbours, age, drafts, their number, chunks and preemption do not.

mod common;

use common::requests::{Output, SIZES, Shape, params, run_one, run_sized};
use peagle_core::{RequestParams, SchedulerConfig};

const SHAPES: [Shape; 4] = [Shape::Perfect, Shape::Wrong, Shape::Chain, Shape::Tree];

/// Sixteen requests with seeds of their own, greedy ones and penalised ones among them.
fn sixteen() -> Vec<RequestParams> {
    let request = |seed: u64| {
        let mut params = params(if seed % 5 == 4 { 0.0 } else { 0.9 });
        params.seed = seed;
        params.processors.presence_penalty = if seed % 3 == 2 { 1.5 } else { 0.0 };
        params
    };
    (0..16).map(request).collect()
}

fn alone(requests: &[RequestParams]) -> (Vec<Output>, Vec<Vec<i32>>) {
    let outputs: Vec<Output> = requests
        .iter()
        .map(|params| run_one(params, Shape::Off, &[]))
        .collect();
    let tokens = outputs.iter().map(|output| output.tokens.clone()).collect();
    (outputs, tokens)
}

/// B08 (b, c), B10: seeded requests of all kinds give in one batch what each gives alone, whatever is
/// drafted and however many; seeds differ.
/// <https://github.com/vllm-project/vllm/issues/6038>
/// <https://github.com/vllm-project/vllm/pull/27077>
#[test]
fn a_batch_of_sixteen_gives_what_each_gives_alone() {
    let requests = sixteen();
    let (expected, coming) = alone(&requests);
    assert!((1..16).all(|seed| expected[seed] != expected[0]));
    for k in 1..8 {
        for shape in SHAPES {
            let sizes = SchedulerConfig {
                max_num_seqs: 16,
                num_speculative_tokens: k,
                ..SIZES
            };
            let found = run_sized(&requests, shape, &coming, sizes);
            assert_eq!(found, expected, "{k} drafts, {shape:?}");
        }
    }
}

/// B08: neither chunks nor preemption enter.
/// <https://github.com/vllm-project/vllm/issues/13196>
#[test]
fn chunks_and_small_pools_change_nothing() {
    let requests = sixteen();
    let (expected, coming) = alone(&requests);
    for (max_num_batched_tokens, num_blocks) in [(1, 2048), (2, 2048), (5, 20), (64, 6), (256, 9)] {
        for shape in SHAPES {
            let sizes = SchedulerConfig {
                max_num_batched_tokens,
                num_blocks,
                ..SIZES
            };
            let found = run_sized(&requests, shape, &coming, sizes);
            assert_eq!(
                found, expected,
                "{max_num_batched_tokens} {num_blocks} {shape:?}"
            );
        }
    }
}

/// B08 (d): a request that starts after a thousand steps of another one.
/// <https://github.com/NVIDIA/TensorRT-LLM/issues/19487>
#[test]
fn the_age_of_the_engine_changes_nothing() {
    let mut first = params(1.0);
    first.max_tokens = 1000;
    let requests = [first, params(1.0)];
    let (expected, coming) = alone(&requests);
    for shape in [Shape::Off, Shape::Wrong] {
        let sizes = SchedulerConfig {
            max_num_seqs: 1,
            ..SIZES
        };
        assert_eq!(run_sized(&requests, shape, &coming, sizes), expected);
    }
}

/// B30: a drafter that is never right costs no token, for a thousand steps.
/// <https://github.com/vllm-project/vllm/pull/50021>
#[test]
fn a_thousand_windows_without_one_accepted_draft() {
    for temperature in [0.0, 1.0] {
        let mut params = params(temperature);
        params.max_tokens = 1000;
        let plain = run_one(&params, Shape::Off, &[]);
        assert_eq!(plain.tokens.len(), 1000);
        for shape in [Shape::Wrong, Shape::Tree] {
            assert_eq!(run_one(&params, shape, &plain.tokens), plain);
        }
    }
}
