//! What a step costs in the core, without a model.
//!
//! `verify` answers whether verification stays near the cost of reading the logits once (the group has
//! that streaming maximum as its floor). `step` answers whether the scheduler stays out of the way of a
//! full batch. The first line names the SIMD path.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use peagle_core::verify::{Verdicts, Walk, verify};
use peagle_core::{
    Drafts, Logits, Method, NoiseKey, Purpose, RequestId, RequestParams, Sampling, Scheduler,
    SchedulerConfig, Seed, TokenTree, Window,
};

const ROWS: usize = 8;
const REQUESTS: usize = 256;
const K: usize = 7;

/// Reproducible logits, roughly normal with standard deviation 3.
fn logits(rows: usize, vocabulary: usize) -> Vec<f32> {
    let key = NoiseKey::new(7, 0, Purpose::Draft);
    let normal = |index: usize| {
        let bits = key.bits(index as u32, 0);
        let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xFFFF).sum();
        (sum as f32 / 65_536.0 - 2.0) * 1.732 * 3.0
    };
    (0..rows * vocabulary).map(normal).collect()
}

fn bf16(values: &[f32]) -> Vec<u16> {
    values
        .iter()
        .map(|value| (value.to_bits() >> 16) as u16)
        .collect()
}

/// One window whose draft chain is what the target draws, so that every row is visited.
fn whole_window(sampling: Sampling, logits: Logits<'_>) -> Vec<Window> {
    let mut tokens = Vec::new();
    loop {
        let window = Window {
            request_id: RequestId(0),
            first_row: 0,
            tree: TokenTree::chain([tokens.clone(), vec![0; ROWS - 1 - tokens.len()]].concat())
                .unwrap(),
            position: 100,
            sampling,
            seed: Seed {
                value: 1,
                sample: 0,
            },
            ..Window::default()
        };
        let verdicts = verify(0, std::slice::from_ref(&window), logits, ROWS, 1).unwrap();
        if verdicts.token_ids.len() == ROWS || tokens.len() == ROWS - 1 {
            return vec![window];
        }
        tokens = verdicts.token_ids;
    }
}

fn bench_verify(criterion: &mut Criterion) {
    println!("SIMD path: {}", peagle_core::simd::simd_path());
    let base = Sampling::default();
    let cases = [
        ("T=0", base),
        (
            "T=1",
            Sampling {
                temperature: 1.0,
                ..base
            },
        ),
        (
            "T=1 min-p 0.05",
            Sampling {
                temperature: 1.0,
                min_p: 0.05,
                ..base
            },
        ),
        (
            "T=1 top-k 50",
            Sampling {
                temperature: 1.0,
                top_k: 50,
                ..base
            },
        ),
        (
            "T=1 top-p 0.9",
            Sampling {
                temperature: 1.0,
                top_p: 0.9,
                ..base
            },
        ),
    ];
    for vocabulary in [49_152, 151_936] {
        let mut group = criterion.benchmark_group(format!("verify {ROWS} x {vocabulary}"));
        group
            .sample_size(20)
            .measurement_time(Duration::from_millis(800));
        group.warm_up_time(Duration::from_millis(200));
        let values = logits(ROWS, vocabulary);
        let halves = bf16(&values);
        group.bench_function("floor: streaming maximum, f32", |bencher| {
            bencher.iter(|| peagle_core::simd::streaming_max(black_box(&values)));
        });
        for (name, sampling) in cases {
            for (format, logits) in [
                ("f32", Logits::F32(&values)),
                ("bf16", Logits::Bf16(&halves)),
            ] {
                let windows = whole_window(sampling, logits);
                group.bench_function(format!("{name}, {format}"), |bencher| {
                    bencher.iter(|| verify(0, black_box(&windows), logits, ROWS, 1).unwrap());
                });
            }
        }
        group.finish();
    }
}

/// A scheduler with every request past its prompt, and drafts for all of them.
fn full_batch() -> (Scheduler, Drafts) {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        num_blocks: 1 << 16,
        block_size: 16,
        max_num_seqs: REQUESTS,
        max_num_batched_tokens: REQUESTS * 64,
        max_model_len: 4096,
        num_speculative_tokens: K,
        verification: Method::Coupled,
    })
    .unwrap();
    for id in 0..REQUESTS as i64 {
        let params = RequestParams {
            max_tokens: 4000,
            seed: id as u64,
            ..Default::default()
        };
        scheduler.add(RequestId(id), &[1; 32], params).unwrap();
    }
    let (drafts, _) = step(&mut scheduler, None, 0);
    (scheduler, drafts)
}

/// A step whose windows accept `accepted` drafts each, and the time of its two calls.
fn step(scheduler: &mut Scheduler, drafts: Option<&Drafts>, accepted: usize) -> (Drafts, Duration) {
    let started = Instant::now();
    let plan = scheduler.schedule(drafts).unwrap();
    let mut spent = started.elapsed();
    let mut verdicts = Verdicts::new(plan.step);
    for window in &plan.windows {
        let path: Vec<i32> = (0..accepted.min(window.tree.len()) as i32).collect();
        let token_ids = vec![5; path.len() + 1];
        verdicts.push(
            window.request_id,
            Ok(Walk {
                token_ids,
                path,
                ..Walk::default()
            }),
        );
    }
    let started = Instant::now();
    let draft = scheduler.update(&verdicts, None).unwrap().draft;
    spent += started.elapsed();
    let total: i32 = draft.k.iter().sum();
    let drafts = Drafts {
        request_ids: draft.request_ids,
        starts: draft.draft_start,
        token_ids: vec![5; total as usize],
        parents: draft.k.iter().flat_map(|&k| -1..k - 1).collect(),
        ..Drafts::default()
    };
    (drafts, spent)
}

fn bench_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(1));
    group.bench_function(
        format!("schedule + update, {REQUESTS} requests, K = {K}"),
        |bencher| {
            bencher.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                let (mut scheduler, mut drafts) = full_batch();
                for iteration in 0..iterations {
                    if iteration % 500 == 499 {
                        (scheduler, drafts) = full_batch();
                    }
                    let accepted = (iteration % 8) as usize;
                    let (next, took) = step(&mut scheduler, Some(&drafts), accepted);
                    drafts = next;
                    spent += took;
                }
                spent
            });
        },
    );
    group.finish();
}

criterion_group!(benches, bench_verify, bench_step);
criterion_main!(benches);
