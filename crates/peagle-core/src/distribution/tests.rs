use proptest::prelude::*;

use super::*;
use crate::noise::Purpose;
use crate::simd::{Bf16, F16, F32};

const PLAIN: Sampling = Sampling {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
};

fn draw_f32(logits: &[f32], sampling: &Sampling, seed: u64, position: i32) -> Result<Draw> {
    let key = NoiseKey::new(seed, 0, Purpose::Sample);
    draw::<F32>(logits, sampling, key, position, &mut Scratch::default())
}

/// The tokens that the fast path keeps.
fn kept_tokens(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    let mut scratch = Scratch::default();
    let max = simd::scan::<F32>(logits, &mut scratch.maxima).max;
    let scale = Scale {
        max,
        inverse_temperature: (1.0 / sampling.temperature) as f32,
    };
    let min_logit = min_p_logit(max, sampling);
    keep::<F32>(logits, sampling, scale, min_logit, &mut scratch);
    scratch.kept.tokens
}

/// The winner of the race, token by token in f64.
fn naive_race(logits: &[f32], sampling: &Sampling, seed: u64, position: u32) -> i32 {
    let key = NoiseKey::new(seed, 0, Purpose::Sample);
    let probs = target_probs(logits, sampling);
    let score = |token: usize| key.exponential(token as u32, position) / probs[token];
    let support = (0..logits.len()).filter(|&token| probs[token] > 0.0);
    support
        .min_by(|&a, &b| score(a).total_cmp(&score(b)))
        .unwrap() as i32
}

fn some_logits() -> impl Strategy<Value = Vec<f32>> {
    let smooth = (-20.0_f32..20.0).boxed();
    let ties = (-8_i32..8).prop_map(|step| step as f32 / 2.0).boxed();
    let masked = prop_oneof![3 => -5.0_f32..5.0, 1 => Just(f32::NEG_INFINITY)].boxed();
    let lengths = prop_oneof![1_usize..20, 100_usize..400];
    (prop_oneof![Just(smooth), Just(ties), Just(masked)], lengths)
        .prop_flat_map(|(element, len)| prop::collection::vec(element, len))
        .prop_filter("all masked", |logits| {
            logits.iter().any(|logit| logit.is_finite())
        })
}

prop_compose! {
    fn a_sampling()(
        temperature in prop_oneof![Just(1.0), 0.05_f64..4.0],
        top_k in prop_oneof![Just(0), 1_u32..12, 12_u32..500],
        top_p in prop_oneof![Just(1.0), 0.01_f64..1.0],
        min_p in prop_oneof![Just(0.0), 0.001_f64..1.0, Just(1.0)],
    ) -> Sampling {
        Sampling { temperature, top_k, top_p, min_p }
    }
}

/// Whether `top_p` is decided by less than f32 can tell.
fn top_p_is_close(logits: &[f32], sampling: &Sampling) -> bool {
    let full = target_probs(
        logits,
        &Sampling {
            top_p: 1.0,
            ..*sampling
        },
    );
    let mut sorted: Vec<f64> = full.into_iter().filter(|&prob| prob > 0.0).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let mut mass = 0.0;
    sorted.iter().any(|prob| {
        mass += prob;
        (mass - sampling.top_p).abs() < 1e-5
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_is_what_sorting_keeps(logits in some_logits(), sampling in a_sampling()) {
        let truncates = sampling.top_k > 0 || sampling.top_p < 1.0;
        if !truncates || top_p_is_close(&logits, &sampling) {
            return Ok(());
        }
        let probs = target_probs(&logits, &sampling);
        let expected = (0..logits.len()).filter(|&token| probs[token] > 0.0);
        let expected: Vec<u32> = expected.map(|token| token as u32).collect();
        prop_assert_eq!(kept_tokens(&logits, &sampling), expected);
    }

    #[test]
    fn the_fast_race_has_the_winner_of_the_plain_one(
        logits in some_logits(),
        sampling in a_sampling(),
        seed in any::<u64>(),
        position in 0_i32..100_000,
    ) {
        if top_p_is_close(&logits, &sampling) {
            return Ok(());
        }
        let drawn = draw_f32(&logits, &sampling, seed, position).unwrap();
        prop_assert_eq!(drawn.token, naive_race(&logits, &sampling, seed, position as u32));
    }

    #[test]
    fn greedy_is_the_first_maximum(logits in some_logits()) {
        let drawn = draw_f32(&logits, &Sampling::default(), 0, 0).unwrap();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|&logit| logit == max).unwrap();
        prop_assert_eq!(drawn.token, first as i32);
    }

    #[test]
    fn formats_agree_where_the_values_do(logits in some_logits(), sampling in a_sampling()) {
        let halves: Vec<u16> = logits.iter().map(|l| (l.to_bits() >> 16) as u16).collect();
        let values: Vec<f32> = halves.iter().map(|&half| Bf16::widen(half)).collect();
        let key = NoiseKey::new(3, 0, Purpose::Sample);
        let scratch = &mut Scratch::default();
        let wide = draw::<F32>(&values, &sampling, key, 7, scratch);
        prop_assert_eq!(draw::<Bf16>(&halves, &sampling, key, 7, scratch), wide);
    }
}

#[test]
fn large_rows_race_like_small_ones() {
    let key = NoiseKey::new(11, 0, Purpose::Draft);
    let logits: Vec<f32> = (0..20_001)
        .map(|token| (key.bits(token, 3) >> 40) as f32 / 2_000_000.0)
        .collect();
    for sampling in [
        PLAIN,
        Sampling {
            temperature: 0.3,
            ..PLAIN
        },
        Sampling {
            top_k: 300,
            ..PLAIN
        },
        Sampling {
            top_k: 5_000,
            ..PLAIN
        },
        Sampling {
            top_p: 0.5,
            ..PLAIN
        },
        Sampling {
            top_k: 1_000,
            top_p: 0.9,
            min_p: 0.01,
            ..PLAIN
        },
    ] {
        for seed in 0..20 {
            let drawn = draw_f32(&logits, &sampling, seed, 5).unwrap();
            assert_eq!(
                drawn.token,
                naive_race(&logits, &sampling, seed, 5),
                "{sampling:?} {seed}"
            );
        }
    }
}

#[test]
fn ties_are_cut_at_the_lowest_ids() {
    let logits = [1.0, 2.0, 2.0, 0.0, 2.0, 1.0];
    assert_eq!(
        kept_tokens(&logits, &Sampling { top_k: 2, ..PLAIN }),
        [1, 2]
    );
    assert_eq!(
        kept_tokens(&logits, &Sampling { top_k: 4, ..PLAIN }),
        [0, 1, 2, 4]
    );
    // Three ties hold 0.73 of the mass: two of them reach 0.4, and a part of one suffices for 0.1.
    assert_eq!(
        kept_tokens(
            &logits,
            &Sampling {
                top_p: 0.4,
                ..PLAIN
            }
        ),
        [1, 2]
    );
    assert_eq!(
        kept_tokens(
            &logits,
            &Sampling {
                top_p: 0.1,
                ..PLAIN
            }
        ),
        [1]
    );
    assert_eq!(
        kept_tokens(
            &logits,
            &Sampling {
                min_p: 1.0,
                top_p: 0.999,
                ..PLAIN
            }
        ),
        [1, 2, 4]
    );
    assert_eq!(
        draw_f32(&logits, &Sampling::default(), 0, 0).unwrap().token,
        1
    );
    assert_eq!(
        draw_f32(&[-0.0, 0.0], &Sampling::default(), 0, 0)
            .unwrap()
            .token,
        0
    );
}

#[test]
fn truncation_follows_the_order_of_the_parameters() {
    // min_p first: 0.5 drops the last token; top_p then counts what is left.
    let logits: Vec<f32> = [0.5_f64, 0.3, 0.2]
        .iter()
        .map(|prob| prob.ln() as f32)
        .collect();
    let sampling = Sampling {
        min_p: 0.5,
        top_p: 0.62,
        ..PLAIN
    };
    assert_eq!(kept_tokens(&logits, &sampling), [0]);
    assert_eq!(
        kept_tokens(
            &logits,
            &Sampling {
                min_p: 0.0,
                ..sampling
            }
        ),
        [0, 1]
    );
    // The temperature comes before min_p.
    let cold = Sampling {
        temperature: 0.25,
        min_p: 0.5,
        top_k: 3,
        ..PLAIN
    };
    assert_eq!(kept_tokens(&logits, &cold), [0]);
}

#[test]
fn extreme_temperatures_stay_finite() {
    let logits = [3.0, -2.0, 2.9, f32::NEG_INFINITY];
    for temperature in [1e-300, 1e-40, 1e-6] {
        let sampling = Sampling {
            temperature,
            ..PLAIN
        };
        assert_eq!(draw_f32(&logits, &sampling, 1, 1).unwrap().token, 0);
    }
    let flat = Sampling {
        temperature: 1e300,
        ..PLAIN
    };
    let mut seen = [0; 4];
    for seed in 0..300 {
        seen[draw_f32(&logits, &flat, seed, 1).unwrap().token as usize] += 1;
    }
    assert!(
        seen[..3].iter().all(|&count| count > 60) && seen[3] == 0,
        "{seen:?}"
    );
}

#[test]
fn improbable_tokens_win_exactly_when_their_noise_says_so() {
    let (key, position) = (NoiseKey::new(9, 0, Purpose::Sample), 4);
    let noise = |token: usize| key.exponential(token as u32, position);
    let rare = (1..100_000)
        .min_by(|&a, &b| noise(a).total_cmp(&noise(b)))
        .unwrap();
    assert!(noise(rare) < 1e-4);
    let edge = (noise(rare) / noise(0)).ln();
    for (shift, winner) in [(1e-3, rare), (-1e-3, 0)] {
        let mut logits = vec![f32::NEG_INFINITY; 100_000];
        logits[0] = 0.0;
        logits[rare] = (edge + shift) as f32;
        for sampling in [PLAIN, Sampling { top_k: 2, ..PLAIN }] {
            let drawn = draw_f32(&logits, &sampling, 9, position as i32).unwrap();
            assert_eq!(drawn.token as usize, winner);
        }
    }
}

#[test]
fn unusable_rows_are_errors() {
    for sampling in [Sampling::default(), PLAIN] {
        let error = |logits: &[f32]| draw_f32(logits, &sampling, 0, 9).unwrap_err();
        assert_eq!(
            error(&[0.0, f32::NAN, 1.0]),
            Error::NanLogits { position: 9 }
        );
        assert_eq!(error(&[f32::NAN; 3]), Error::NanLogits { position: 9 });
        assert_eq!(
            error(&[0.0, f32::INFINITY]),
            Error::InfiniteLogits { position: 9 }
        );
        assert_eq!(
            error(&[f32::NEG_INFINITY; 300]),
            Error::MaskedLogits { position: 9 }
        );
        let mut long = vec![0.0; 1000];
        for place in [0, 63, 127, 128, 500, 999] {
            long[place] = f32::NAN;
            assert_eq!(error(&long), Error::NanLogits { position: 9 });
            long[place] = 0.0;
        }
    }
}

#[test]
fn near_ties_are_counted() {
    let far = draw_f32(&[5.0, -5.0], &PLAIN, 1, 0).unwrap();
    assert!(!far.near_tie);
    let alone = draw_f32(&[1.0], &PLAIN, 1, 0).unwrap();
    assert!(!alone.near_tie);
    // Set the second token's weight so that both scores are equal up to f32.
    let key = NoiseKey::new(1, 0, Purpose::Sample);
    let gap = key.exponential(1, 0).ln() - key.exponential(0, 0).ln();
    let near = draw_f32(&[0.0, gap as f32], &PLAIN, 1, 0).unwrap();
    assert!(near.near_tie);
}

#[test]
fn parameters_out_of_range_are_refused() {
    let id = RequestId(1);
    for temperature in [-0.1, f64::NAN, f64::INFINITY] {
        let sampling = Sampling {
            temperature,
            ..PLAIN
        };
        assert!(matches!(
            sampling.validate(id),
            Err(Error::InvalidTemperature { .. })
        ));
    }
    for top_p in [0.0, -0.5, 1.01, f64::NAN] {
        let sampling = Sampling { top_p, ..PLAIN };
        assert!(matches!(
            sampling.validate(id),
            Err(Error::InvalidTopP { .. })
        ));
    }
    for min_p in [-0.1, 1.01, f64::NAN] {
        let sampling = Sampling { min_p, ..PLAIN };
        assert!(matches!(
            sampling.validate(id),
            Err(Error::InvalidMinP { .. })
        ));
    }
    assert_eq!(PLAIN.validate(id), Ok(()));
}

#[test]
fn halves_widen_exactly() {
    for bits in 0..=u16::MAX {
        let exponent = i32::from(bits >> 10 & 31);
        let fraction = f64::from(bits & 1023) / 1024.0;
        let magnitude = match exponent {
            0 => fraction * 2.0_f64.powi(-14),
            31 if fraction > 0.0 => f64::NAN,
            31 => f64::INFINITY,
            _ => (1.0 + fraction) * 2.0_f64.powi(exponent - 15),
        };
        let expected = if bits >> 15 == 1 {
            -magnitude
        } else {
            magnitude
        } as f32;
        let widened = F16::widen(bits);
        let equal = widened.to_bits() == expected.to_bits();
        assert!(
            equal || (widened.is_nan() && expected.is_nan()),
            "{bits:#06x}"
        );
        assert_eq!(Bf16::widen(bits).to_bits(), u32::from(bits) << 16);
    }
}

#[test]
fn the_screen_exponential_is_accurate() {
    for step in 0..86_000 {
        let x = -(step as f32) / 1000.0;
        let exact = f64::from(x).exp();
        let error = (f64::from(simd::exp32(x)) / exact - 1.0).abs();
        assert!(error < 3e-7, "{x}: {error}");
    }
}
