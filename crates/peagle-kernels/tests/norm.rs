//! RMS normalisation against f64, and the bits of a row in any company.
mod common;

use common::{Random, assert_close, bits, epsilon, round, wide};
use peagle_kernels::{Bf16, Element, KernelError, Level, rms_norm, rms_norm_at, set_num_threads};

fn matches_naive<E: Element>() {
    for level in Level::available() {
        for k in [1, 3, 15, 16, 17, 63, 64, 65, 80, 576, 577] {
            let mut random = Random::new(k as u64);
            let (x, weight): (Vec<E>, Vec<E>) = (random.numbers(3 * k), random.numbers(k));
            let mut out = vec![E::default(); 3 * k];
            rms_norm_at(level, &x, &weight, 1e-5, &mut out).unwrap();
            let mut expected = Vec::new();
            for row in wide(&x).chunks(k) {
                let mean = row.iter().map(|x| x * x).sum::<f64>() / k as f64;
                let scaled = row.iter().map(|x| round::<E>(x / (mean + 1e-5).sqrt()));
                expected.extend(scaled.zip(wide(&weight)).map(|(x, w)| x * w));
            }
            assert_close(&out, &expected, |i| {
                expected[i].abs() * (epsilon::<E>() * 1.5 + 1e-6) + 1e-30
            });
        }
    }
}

#[test]
fn matches_naive_f32() {
    matches_naive::<f32>();
}

#[test]
fn matches_naive_bf16() {
    matches_naive::<Bf16>();
}

#[test]
fn rows_are_invariant() {
    let (k, rows) = (100, 50);
    let mut random = Random::new(1);
    let (x, weight): (Vec<f32>, Vec<f32>) = (random.numbers(rows * k), random.numbers(k));
    let run = |x: &[f32]| {
        let mut out = vec![0.0; x.len()];
        rms_norm(x, &weight, 1e-6, &mut out).unwrap();
        bits(&out)
    };
    let alone: Vec<u32> = x.chunks(k).flat_map(run).collect();
    for m in 1..=rows {
        set_num_threads(1 + m % 3);
        assert!(
            run(&x[(rows - m) * k..]) == alone[(rows - m) * k..],
            "last {m} rows"
        );
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let norm = |x: &[f32], weight: &[f32], out: &mut [f32]| rms_norm(x, weight, 0.0, out);
    assert!(matches!(
        norm(&[0.0; 4], &[0.0; 2], &mut [0.0; 3]),
        Err(KernelError::Length {
            what: "out",
            got: 3,
            expected: 4
        })
    ));
    for weight in [&[][..], &[0.0; 3]] {
        let refused = norm(&[0.0; 4], weight, &mut [0.0; 4]);
        assert!(matches!(
            refused,
            Err(KernelError::Size { what: "weight", .. })
        ));
    }
    assert_eq!(norm(&[], &[0.0; 3], &mut []), Ok(()));
}
