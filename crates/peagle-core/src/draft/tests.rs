use super::*;
use crate::distribution::{Sampling, Scratch, draw};
use crate::noise::NoiseKey;

fn noise(seed: u64, temperature: f64) -> DraftNoise {
    DraftNoise {
        temperature,
        seed: Seed {
            value: seed,
            sample: 0,
        },
        position: 9,
    }
}

/// Reproducible logits, a draft vocabulary of every third target id.
fn row(len: usize, seed: u64) -> (Vec<f32>, Vec<i32>) {
    let key = NoiseKey::new(seed, 0, Purpose::Bonus);
    let logits = (0..len as u32).map(|i| (key.bits(i, 0) >> 40) as f32 / 2e6);
    (logits.collect(), (0..len as i32).map(|i| 3 * i).collect())
}

/// The candidates of one depth, tokens and log shares.
fn candidates(
    logits: &[f32],
    ids: &[i32],
    noise: DraftNoise,
    width: usize,
) -> (Vec<i32>, Vec<f32>) {
    let (mut found, mut shares) = (vec![0; width], vec![0.0; width]);
    let scratch = &mut DraftScratch::default();
    coupled_candidates(
        logits,
        ids,
        noise.at_depth(2, 1.0),
        scratch,
        &mut found,
        &mut shares,
    );
    (found.iter().map(|&i| ids[i as usize]).collect(), shares)
}

#[test]
fn candidates_are_the_smallest_scores_in_order() {
    for (len, width) in [(3, 3), (64, 8), (65, 8), (1000, 1), (4099, 8)] {
        let (logits, ids) = row(len, len as u64);
        let noise = noise(5, 0.8);
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let key = noise.seed.key(Purpose::Sample);
        let score = |i: usize| {
            let weight = f64::from(logits[i] - max) / noise.temperature;
            key.exponential(ids[i] as u32, 11) / weight.exp()
        };
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_by(|&a, &b| score(a).total_cmp(&score(b)));
        let expected: Vec<i32> = order[..width].iter().map(|&i| ids[i]).collect();
        let (tokens, shares) = candidates(&logits, &ids, noise, width);
        assert_eq!(tokens, expected, "{len}");
        assert!(shares.is_sorted_by(|a, b| a >= b));
        let total: f32 = shares.iter().map(|share| share.exp()).sum();
        assert!((total - 1.0).abs() < 1e-5, "{total}");
    }
}

#[test]
fn a_drafter_with_the_targets_law_drafts_the_targets_draw() {
    let (logits, _) = row(500, 3);
    let ids: Vec<i32> = (0..500).collect();
    for seed in 0..200 {
        let noise = noise(seed, 1.0);
        let sampling = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        let key = noise.seed.key(Purpose::Sample);
        let drawn = draw::<F32>(&logits, &sampling, key, 11, &mut Scratch::default()).unwrap();
        assert_eq!(candidates(&logits, &ids, noise, 4).0[0], drawn.token);
    }
}

#[test]
fn at_low_temperatures_siblings_can_still_be_raced_and_drawn() {
    let logits = [0.0, -50.0, -1.0, f32::NEG_INFINITY];
    let ids = [0, 1, 2, 3];
    let noise = noise(4, 0.01);
    let (tokens, shares) = candidates(&logits, &ids, noise, 4);
    assert_eq!(tokens[0], 0);
    assert!(shares.iter().all(|share| share.is_finite()));
    let (mut probs, scratch) = (vec![0.0; 4], &mut DraftScratch::default());
    assert!(draft_probs(&logits, 0.01, scratch, &mut probs));
    let drawn = sample_tree(&probs, &ids, &[-1, -1, -1, -1], noise, scratch).unwrap();
    assert_eq!(drawn.iter().sum::<i32>(), 6);
}

#[test]
fn a_row_with_nan_has_no_candidates_and_no_law() {
    let (mut logits, ids) = row(70, 1);
    logits[3] = f32::NAN;
    assert!(
        candidates(&logits, &ids, noise(1, 1.0), 2)
            .1
            .iter()
            .all(|s| s.is_nan())
    );
    let mut probs = vec![0.0; 70];
    assert!(!draft_probs(
        &logits,
        1.0,
        &mut DraftScratch::default(),
        &mut probs
    ));
    assert!(probs.iter().all(|prob| prob.is_nan()));
}

/// B05, z-lab/dflash#74: the law is at the request's temperature.
#[test]
fn the_law_is_the_softmax_at_the_requests_temperature() {
    let (logits, _) = row(1000, 8);
    for temperature in [0.3, 0.7, 1.0, 1.5] {
        let mut probs = vec![0.0; 1000];
        assert!(draft_probs(
            &logits,
            temperature,
            &mut DraftScratch::default(),
            &mut probs
        ));
        let weights: Vec<f64> = logits
            .iter()
            .map(|&x| (f64::from(x) / temperature).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        for (&prob, weight) in probs.iter().zip(weights) {
            assert!((f64::from(prob) - weight / total).abs() < 1e-6);
        }
    }
}

#[test]
fn siblings_are_a_sample_without_replacement_in_draw_order() {
    let law = [0.5_f32, 0.3, 0.15, 0.05];
    let probs = [law, law].concat();
    let ids = [2, 3, 5, 7];
    let mut counts = [[0.0_f64; 4]; 4];
    let mut same_children = 0;
    let trials = 100_000;
    for seed in 0..trials {
        let scratch = &mut DraftScratch::default();
        let tokens = sample_tree(&probs, &ids, &[-1, -1, 0, 1], noise(seed, 1.0), scratch).unwrap();
        let index = |token: i32| ids.iter().position(|&id| id == token).unwrap();
        counts[index(tokens[0])][index(tokens[1])] += 1.0;
        same_children += u64::from(tokens[2] == tokens[3]);
    }
    for first in 0..4 {
        for second in 0..4 {
            let (a, b) = (f64::from(law[first]), f64::from(law[second]));
            let expected = if first == second {
                0.0
            } else {
                a * b / (1.0 - a)
            };
            let found = counts[first][second] / trials as f64;
            assert!(
                (found - expected).abs() < 0.006,
                "{first} {second}: {found} {expected}"
            );
        }
    }
    // Children of different nodes are independent, though they share law and position.
    let expected: f64 = law.iter().map(|&prob| f64::from(prob).powi(2)).sum();
    let found = same_children as f64 / trials as f64;
    assert!((found - expected).abs() < 0.006, "{found} {expected}");
}

/// B03, deepseek-ai/DeepSpec#31: the law that is told is the one that draws, to the last bit.
#[test]
fn what_is_drawn_follows_the_float32_law() {
    let law = [1e-3_f32, 0.998, 1e-3, 0.0];
    for seed in 0..2000 {
        let scratch = &mut DraftScratch::default();
        let tokens = sample_tree(&law, &[0, 1, 2, 3], &[-1], noise(seed, 1.0), scratch).unwrap();
        let key = noise(seed, 1.0).seed.key(Purpose::Draft).fork(0, 9);
        let score = |i: u32| key.exponential(i, 9) / f64::from(law[i as usize]);
        let best = (0..3)
            .min_by(|&a, &b| score(a).total_cmp(&score(b)))
            .unwrap();
        assert_eq!(tokens, [best as i32]);
    }
}

#[test]
fn shapes_that_cannot_be_drawn_are_refused() {
    let law = [0.5_f32, 0.5, 0.0];
    for parents in [&[0][..], &[-2], &[-1, 1], &[-1, 0], &[-1, -1, -1]] {
        let scratch = &mut DraftScratch::default();
        let drawn = sample_tree(&law, &[0, 1, 2], parents, noise(1, 1.0), scratch);
        assert!(
            matches!(drawn, Err(Error::InvalidTree { .. })),
            "{parents:?}"
        );
    }
}
