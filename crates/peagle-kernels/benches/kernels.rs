//! What the forward pass of a small model costs, kernel by kernel.
//!
//! `stream` reads as many bytes as the model has weights, in a plain loop over ordinary memory.
//! `linears` are all products with weights of one SmolLM2-135M step, by number of rows; `resident` is one product whose
//! weights stay in the cache, by level: what the arithmetic alone allows. The first line names the
//! instructions and the threads.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use peagle_kernels::{
    AttentionInput, AttentionShape, Bf16, Element, Level, PackedLinear, Pool, attention,
    num_threads, rms_norm, top_log_probs,
};

const HIDDEN: usize = 576;
const INTERMEDIATE: usize = 1536;
const LAYERS: usize = 30;
const VOCABULARY: usize = 49_152;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const BLOCK: usize = 16;
const ROWS: [usize; 6] = [1, 4, 6, 8, 16, 32];

fn numbers<E: Element>(count: usize) -> Vec<E> {
    (0..count)
        .map(|i| E::from_f32((i * 7919 % 1009) as f32 / 504.0 - 1.0))
        .collect()
}

fn linear(n: usize, k: usize) -> PackedLinear<Bf16> {
    PackedLinear::new(&numbers(n * k), None, n, k).unwrap()
}

/// The weights of a step, in the order in which it reads them.
fn weights() -> Vec<PackedLinear<Bf16>> {
    let layer = |_| {
        [
            linear((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
            linear(HIDDEN, HEADS * HEAD_DIM),
            linear(2 * INTERMEDIATE, HIDDEN),
            linear(HIDDEN, INTERMEDIATE),
        ]
    };
    let mut weights: Vec<_> = (0..LAYERS).flat_map(layer).collect();
    weights.push(linear(VOCABULARY, HIDDEN));
    weights
}

fn bench_stream(criterion: &mut Criterion) {
    const PARTS: usize = 64;
    let bytes: usize = weights().iter().map(PackedLinear::bytes).sum();
    let words = vec![1_u64; bytes / size_of::<u64>()];
    let mut pool = Pool::new(num_threads());
    let part = words.len().div_ceil(PARTS);
    let mut group = criterion.benchmark_group("stream");
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function("read", |bencher| {
        bencher.iter(|| {
            pool.run(PARTS, &|claims| {
                for index in claims.flatten() {
                    let words = words.chunks(part).nth(index).unwrap_or(&[]);
                    black_box(words.iter().fold(0, |sum, word| sum | word));
                }
            });
        });
    });
    group.finish();
}

fn bench_linears(criterion: &mut Criterion) {
    let weights = weights();
    let mut group = criterion.benchmark_group("linears");
    for rows in ROWS {
        let x = numbers::<Bf16>(rows * INTERMEDIATE);
        let mut out = vec![Bf16::default(); rows * VOCABULARY];
        group.bench_with_input(BenchmarkId::new("rows", rows), &rows, |bencher, _| {
            bencher.iter(|| {
                for linear in &weights {
                    let x = &x[..rows * linear.in_features()];
                    let out = &mut out[..rows * linear.out_features()];
                    linear.forward(black_box(x), out).unwrap();
                }
            });
        });
    }
    group.finish();
}

fn bench_resident(criterion: &mut Criterion) {
    let weight = numbers::<Bf16>(HIDDEN * INTERMEDIATE);
    let mut group = criterion.benchmark_group("resident");
    for level in Level::available() {
        let linear = PackedLinear::with_level(level, &weight, None, HIDDEN, INTERMEDIATE).unwrap();
        for rows in ROWS {
            let x = numbers::<Bf16>(rows * INTERMEDIATE);
            let mut out = vec![Bf16::default(); rows * HIDDEN];
            group.throughput(Throughput::Elements(
                (2 * rows * HIDDEN * INTERMEDIATE) as u64,
            ));
            group.bench_with_input(BenchmarkId::new(level.name(), rows), &rows, |bencher, _| {
                bencher.iter(|| linear.forward(black_box(&x), &mut out).unwrap());
            });
        }
    }
    group.finish();
}

fn bench_attention(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("attention");
    for (rows, context) in [(1_usize, 256_usize), (8, 256), (1, 2048), (8, 2048)] {
        let blocks = (context + rows).div_ceil(BLOCK);
        let shape = AttentionShape {
            num_heads: HEADS,
            num_kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            block_size: BLOCK,
            num_blocks: blocks,
        };
        let qkv = numbers::<Bf16>(rows * (HEADS + 2 * KV_HEADS) * HEAD_DIM);
        let mut k_cache = numbers::<Bf16>(blocks * KV_HEADS * HEAD_DIM * BLOCK);
        let mut v_cache = k_cache.clone();
        let slots: Vec<i32> = (context..context + rows).map(|slot| slot as i32).collect();
        let angles = numbers::<f32>((context + rows) * HEAD_DIM / 2);
        let input = AttentionInput {
            qkv: &qkv,
            positions: &slots,
            slots: &slots,
            query_start: &[0, rows as i32],
            context_lens: &[context as i32],
            block_tables: &(0..blocks as i32).collect::<Vec<_>>(),
            parents: &(-1..rows as i32 - 1).collect::<Vec<_>>(),
            cos: &angles,
            sin: &angles,
            q_norm: None,
            k_norm: None,
            eps: 1e-5,
            key_start: 0,
            scale: 0.125,
        };
        let mut out = vec![Bf16::default(); rows * HEADS * HEAD_DIM];
        group.bench_function(format!("{rows} rows, context {context}"), |bencher| {
            bencher.iter(|| {
                attention(shape, &input, &mut k_cache, &mut v_cache, &mut out).unwrap();
            });
        });
    }
    group.finish();
}

fn bench_rows(criterion: &mut Criterion) {
    const ROWS: usize = 8;
    const WIDTH: usize = 8;
    const DRAFT_VOCABULARY: usize = 4096;
    let x = numbers::<Bf16>(ROWS * HIDDEN);
    let weight = numbers::<Bf16>(HIDDEN);
    let mut out = vec![Bf16::default(); ROWS * HIDDEN];
    criterion.bench_function("rms_norm, 8 rows", |bencher| {
        bencher.iter(|| rms_norm(black_box(&x), &weight, 1e-5, &mut out).unwrap());
    });
    let logits = numbers::<f32>(ROWS * DRAFT_VOCABULARY);
    let mut log_probs = vec![0.0; ROWS * WIDTH];
    let mut ids = vec![0; ROWS * WIDTH];
    criterion.bench_function("top_log_probs, 8 rows of 4096", |bencher| {
        bencher.iter(|| {
            let logits = black_box(&logits);
            top_log_probs(logits, DRAFT_VOCABULARY, WIDTH, &mut log_probs, &mut ids).unwrap();
        });
    });
}

fn announce(_: &mut Criterion) {
    println!("{} on {} threads", Level::best().name(), num_threads());
}

criterion_group!(
    benches,
    announce,
    bench_stream,
    bench_linears,
    bench_resident,
    bench_attention,
    bench_rows
);
criterion_main!(benches);
