//! Linear layers against a naive product in f64, and the bits of a row whatever its company.
mod common;

use common::{Random, assert_close, bits, epsilon, round, wide};
use peagle_kernels::{
    Bf16, Element, KernelError, Level, PackedLinear, rms_norm_at, set_num_threads,
};

/// `[n, k]` that are no multiples of a panel, a vector, a pair.
const SHAPES: [(usize, usize); 7] = [
    (1, 1),
    (7, 3),
    (32, 16),
    (33, 31),
    (100, 65),
    (128, 129),
    (65, 256),
];

struct Case<E> {
    n: usize,
    k: usize,
    weight: Vec<E>,
    bias: Vec<E>,
}

impl<E: Element> Case<E> {
    fn new(n: usize, k: usize) -> Self {
        let mut random = Random::new((n * 1000 + k) as u64);
        Self {
            n,
            k,
            weight: random.numbers(n * k),
            bias: random.numbers(n),
        }
    }

    fn linear(&self, level: Level) -> PackedLinear<E> {
        PackedLinear::with_level(level, &self.weight, Some(&self.bias), self.n, self.k).unwrap()
    }

    /// `x W^T + b` and the sum of the magnitudes of its terms, in f64.
    fn expected(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (weight, bias) = (wide(&self.weight), wide(&self.bias));
        let mut sums = (Vec::new(), Vec::new());
        for row in x.chunks(self.k) {
            for n in 0..self.n {
                let terms = row.iter().zip(&weight[n * self.k..]).map(|(x, w)| x * w);
                sums.0.push(bias[n] + terms.clone().sum::<f64>());
                sums.1
                    .push(bias[n].abs() + terms.map(f64::abs).sum::<f64>());
            }
        }
        sums
    }

    /// Error of an f32 sum over k, then of `roundings` roundings to the dtype of `size`.
    fn tolerance(&self, size: f64, value: f64, epsilon: f64) -> f64 {
        size * (self.k + 2) as f64 * 6e-8 + value.abs() * epsilon + 1e-30
    }
}

fn each_level(check: impl Fn(Level)) {
    for level in Level::available() {
        check(level);
    }
}

fn forward_matches<E: Element>() {
    each_level(|level| {
        for (n, k) in SHAPES {
            let case = Case::<E>::new(n, k);
            let linear = case.linear(level);
            for m in [1, 2, 5, 13, 40] {
                let x: Vec<E> = Random::new(m as u64).numbers(m * k);
                let (expected, sizes) = case.expected(&wide(&x));
                let close = |i: usize, eps| case.tolerance(sizes[i], expected[i], eps);
                let mut out = vec![E::default(); m * n];
                linear.forward(&x, &mut out).unwrap();
                assert_close(&out, &expected, |i| close(i, epsilon::<E>()));
                let mut out = vec![0.0; m * n];
                linear.forward_f32(&x, &mut out).unwrap();
                assert_close(&out, &expected, |i| close(i, 0.0));
            }
        }
    });
}

#[test]
fn forward_matches_f32() {
    forward_matches::<f32>();
}

#[test]
fn forward_matches_bf16() {
    forward_matches::<Bf16>();
}

/// Fused forms are the separate operations, bit for bit where both exist.
fn fused_matches<E: Element>() {
    each_level(|level| {
        for (n, k) in SHAPES {
            let case = Case::<E>::new(n, k);
            let linear = case.linear(level);
            for m in [1, 3, 14] {
                let mut random = Random::new(m as u64 + 7);
                let x: Vec<E> = random.numbers(m * k);
                let norm: Vec<E> = random.numbers(k);
                let mut normed = vec![E::default(); m * k];
                rms_norm_at(level, &x, &norm, 1e-5, &mut normed).unwrap();
                let (mut fused, mut apart) = (vec![E::default(); m * n], vec![E::default(); m * n]);
                linear.forward_norm(&x, &norm, 1e-5, &mut fused).unwrap();
                linear.forward(&normed, &mut apart).unwrap();
                assert_eq!(bits(&fused), bits(&apart));
                let (mut fused, mut apart) = (vec![0.0; m * n], vec![0.0; m * n]);
                linear
                    .forward_norm_f32(&x, &norm, 1e-5, &mut fused)
                    .unwrap();
                linear.forward_f32(&normed, &mut apart).unwrap();
                assert_eq!(bits(&fused), bits(&apart));

                let residual: Vec<E> = random.numbers(m * n);
                let mut added = residual.clone();
                linear.forward_add(&x, &mut added).unwrap();
                linear.forward_f32(&x, &mut apart).unwrap();
                let sum = apart
                    .iter()
                    .zip(&residual)
                    .map(|(a, b)| E::from_f32(a + b.to_f32()));
                assert_eq!(bits(&added), bits(&sum.collect::<Vec<E>>()));

                silu_add_matches(&case, &linear, &random.numbers(m * 2 * k), &residual);
            }
        }
    });
}

fn silu_add_matches<E: Element>(
    case: &Case<E>,
    linear: &PackedLinear<E>,
    gate_up: &[E],
    residual: &[E],
) {
    let mut out = residual.to_vec();
    linear.forward_silu_add(gate_up, &mut out).unwrap();
    let mut x = Vec::new();
    for row in wide(gate_up).chunks(2 * case.k) {
        let (gate, up) = row.split_at(case.k);
        let silu = gate.iter().map(|g| round::<E>(g / (1.0 + (-g).exp())));
        x.extend(silu.zip(up).map(|(silu, up)| round::<E>(silu * up)));
    }
    let (products, sizes) = case.expected(&x);
    let expected: Vec<f64> = products
        .iter()
        .zip(wide(residual))
        .map(|(a, b)| a + b)
        .collect();
    // A rounded activation may fall on the other side of a tie.
    assert_close(&out, &expected, |i| {
        case.tolerance(sizes[i], expected[i], epsilon::<E>()) + sizes[i] * epsilon::<E>()
    });
}

#[test]
fn fused_matches_f32() {
    fused_matches::<f32>();
}

#[test]
fn fused_matches_bf16() {
    fused_matches::<Bf16>();
}

/// A row alone, in a crowd of any size, at any place, with any number of threads.
fn rows_are_invariant<E: Element>() {
    const M: usize = 40;
    each_level(|level| {
        for (n, k) in [(100, 65), (65, 256), (576, 96)] {
            let case = Case::<E>::new(n, k);
            let linear = case.linear(level);
            let mut random = Random::new(3);
            let norm: Vec<E> = random.numbers(k);
            let x: Vec<E> = random.numbers(M * 2 * k);
            let run = |rows: &[E], how: usize| {
                let m = if how == 2 {
                    rows.len() / (2 * k)
                } else {
                    rows.len() / k
                };
                let mut out: Vec<E> = vec![E::from_f32(0.5); m * n];
                match how {
                    0 => linear.forward(rows, &mut out),
                    1 => linear.forward_norm(rows, &norm, 1e-6, &mut out),
                    _ => linear.forward_silu_add(rows, &mut out),
                }
                .unwrap();
                bits(&out)
            };
            for how in 0..3 {
                let width = if how == 2 { 2 * k } else { k };
                set_num_threads(1);
                let alone: Vec<u32> = (0..M)
                    .flat_map(|i| run(&x[i * width..][..width], how))
                    .collect();
                for m in 1..=M {
                    set_num_threads(1 + m % 3);
                    assert!(
                        run(&x[..m * width], how) == alone[..m * n],
                        "first {m} rows"
                    );
                    let last = run(&x[(M - m) * width..M * width], how);
                    assert!(last == alone[(M - m) * n..], "last {m} rows");
                }
            }
        }
    });
}

#[test]
fn rows_are_invariant_f32() {
    rows_are_invariant::<f32>();
}

#[test]
fn rows_are_invariant_bf16() {
    rows_are_invariant::<Bf16>();
}

/// More rows than are packed at once.
#[test]
fn blocks_of_rows_are_invariant() {
    let (n, k, m) = (40, 1536, 400);
    let case = Case::<Bf16>::new(n, k);
    let linear = case.linear(Level::best());
    let x: Vec<Bf16> = Random::new(1).numbers(m * k);
    let mut all = vec![Bf16::default(); m * n];
    linear.forward(&x, &mut all).unwrap();
    for row in [0, 1, 150, 170, 200, 399] {
        let mut one = vec![Bf16::default(); n];
        linear.forward(&x[row * k..][..k], &mut one).unwrap();
        assert_eq!(bits(&one), bits(&all[row * n..][..n]));
    }
}

/// Without the bfloat16 instruction the vector levels do the same operations.
#[test]
fn levels_with_fma_agree_to_the_bit() {
    let case = Case::<f32>::new(100, 65);
    let x: Vec<f32> = Random::new(1).numbers(5 * 65);
    let outs = Level::available()
        .into_iter()
        .filter(|level| level.name() != "baseline")
        .map(|l| {
            let mut out = vec![0.0; 500];
            case.linear(l).forward(&x, &mut out).unwrap();
            bits(&out)
        });
    let outs: Vec<_> = outs.collect();
    assert!(outs.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn not_a_number_reaches_its_row_only() {
    each_level(|level| {
        let case = Case::<Bf16>::new(33, 31);
        let linear = case.linear(level);
        let mut x: Vec<Bf16> = Random::new(1).numbers(4 * 31);
        x[31 + 5] = Bf16::from_f32(f32::NAN);
        let mut out = vec![Bf16::default(); 4 * 33];
        linear.forward(&x, &mut out).unwrap();
        for (i, row) in out.chunks(33).enumerate() {
            assert!(
                row.iter().all(|x| x.to_f32().is_nan() == (i == 1)),
                "row {i}"
            );
        }
    });
}

#[test]
fn wrong_lengths_are_refused() {
    let case = Case::<f32>::new(7, 3);
    let linear = case.linear(Level::best());
    let refused = |got, expected, what| {
        Err(KernelError::Length {
            what,
            got,
            expected,
        })
    };
    assert_eq!(
        linear.forward(&[0.0; 6], &mut [0.0; 13]),
        refused(13, 14, "out")
    );
    assert_eq!(linear.forward(&[0.0; 5], &mut [0.0; 7]), refused(5, 3, "x"));
    assert_eq!(
        linear.forward_norm(&[0.0; 3], &[0.0; 2], 0.0, &mut [0.0; 7]),
        refused(2, 3, "norm_weight")
    );
    assert_eq!(
        PackedLinear::new(&[0.0; 5], None, 2, 3).err(),
        refused(5, 6, "weight").err()
    );
    assert_eq!(
        PackedLinear::new(&[0.0; 6], Some(&[0.0; 3]), 2, 3).err(),
        refused(3, 2, "bias").err()
    );
    assert!(linear.forward(&[], &mut []).is_ok());
}
