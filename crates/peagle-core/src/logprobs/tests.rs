use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::distribution::target_probs;
use crate::simd::F32;

fn samplings() -> impl Strategy<Value = Sampling> {
    let temperature = select(vec![0.0, 0.3, 1.0, 1.5]);
    let (top_k, top_p) = (select(vec![0, 1, 3, 500]), select(vec![0.4, 0.9, 1.0]));
    (temperature, top_k, top_p, select(vec![0.0, 0.2])).prop_map(
        |(temperature, top_k, top_p, min_p)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
        },
    )
}

/// The likeliest `count` tokens by sorting, with their log probabilities.
fn sorted(probs: &[f64], count: usize) -> Vec<(TokenId, f64)> {
    let mut order: Vec<usize> = (0..probs.len())
        .filter(|&token| probs[token] > 0.0)
        .collect();
    order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]));
    order.truncate(count);
    let logs = order
        .into_iter()
        .map(|token| (token as TokenId, probs[token].ln()));
    logs.collect()
}

proptest! {
    #[test]
    fn they_are_logarithms_of_the_law(
        row in vec(prop_oneof![9 => (-40..40_i32).prop_map(|x| x as f32 / 8.0),
                               1 => Just(f32::NEG_INFINITY)], 1..300),
        sampling in samplings(),
        pick in any::<prop::sample::Index>(),
        top in 0..9_usize,
    ) {
        prop_assume!(row.iter().any(|logit| logit.is_finite()));
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        for mode in [LogprobMode::Raw, LogprobMode::Processed] {
            let is_processed = mode == LogprobMode::Processed && sampling.temperature > 0.0;
            let law = if is_processed { sampling } else { plain };
            let probs = target_probs(&row, &law);
            let possible: Vec<usize> = (0..row.len()).filter(|&t| probs[t] > 0.0).collect();
            let token = possible[pick.index(possible.len())];
            let wanted = WantedLogprobs { mode, top };
            let mut scratch = Scratch::default();
            let found = wanted
                .report::<F32>(&row, &sampling, token as TokenId, 0, &mut scratch)
                .unwrap();
            let likelier = row.iter().filter(|&&logit| logit > row[token]).count();
            prop_assert_eq!((found.token, found.rank), (token as TokenId, likelier + 1));
            let mut pairs = sorted(&probs, top);
            let ids = |pairs: &[(TokenId, f64)]| pairs.iter().map(|p| p.0).collect::<Vec<_>>();
            prop_assert_eq!(ids(&found.top), ids(&pairs));
            pairs.push((token as TokenId, probs[token].ln()));
            let reported = found.top.iter().map(|p| p.1).chain([found.logprob]);
            for (logprob, (_, expected)) in reported.zip(pairs) {
                prop_assert!((logprob - expected).abs() < 2e-6, "{} {}", logprob, expected);
            }
        }
    }
}

#[test]
fn a_bad_row_is_an_error() {
    let wanted = WantedLogprobs {
        mode: LogprobMode::Raw,
        top: 1,
    };
    let mut scratch = Scratch::default();
    for row in [
        [0.0, f32::NAN],
        [0.0, f32::INFINITY],
        [f32::NEG_INFINITY; 2],
    ] {
        let found = wanted.report::<F32>(&row, &Sampling::default(), 0, 9, &mut scratch);
        assert!(found.unwrap_err().to_string().contains("position 9"));
    }
}
