use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::request::RequestParams;
use crate::simd::{Bf16, F32};
use crate::tree::TokenTree;

const VOCABULARY: usize = 12;
const PROMPT: [TokenId; 4] = [1, 2, 1, 5];
const OUTPUT: [TokenId; 3] = [3, 2, 3];

/// Two roots; nodes 2 and 3 hang on node 0, node 4 on node 2.
fn tree() -> TokenTree {
    TokenTree::new(vec![7, 3, 2, 3, 2], vec![-1, -1, 0, 0, 2]).unwrap()
}

/// Adds a number that depends on the whole history to one logit.
struct Nudge;

impl LogitsProcessor for Nudge {
    fn process(
        &self,
        logits: &mut [f32],
        token_ids: &[TokenId],
    ) -> std::result::Result<(), String> {
        let sum: TokenId = token_ids.iter().sum();
        logits[sum as usize % VOCABULARY] += token_ids.len() as f32;
        Ok(())
    }
}

/// The plain way: one rule after the other over the whole row.
fn reference(row: &[f32], params: &RequestParams, path: &[TokenId]) -> Vec<f32> {
    let Processors {
        allowed_token_ids,
        bad_words,
        logit_bias,
        custom,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
    } = &params.processors;
    let output = [&OUTPUT, path].concat();
    let history = [&PROMPT[..], &output].concat();
    let mut row = row.to_vec();
    for (token, logit) in (0..).zip(&mut row) {
        let is_allowed = |allowed: &Vec<TokenId>| allowed.contains(&token);
        let is_end =
            params.eos_token_ids.contains(&token) || params.stop_token_ids.contains(&token);
        let text = [&output[..], &[token]].concat();
        if !allowed_token_ids.as_ref().is_none_or(is_allowed)
            || bad_words.iter().any(|word| text.ends_with(word))
            || (is_end && output.len() < params.min_tokens)
        {
            *logit = f32::NEG_INFINITY;
        }
        for &(_, bias) in logit_bias.iter().filter(|(id, _)| *id == token) {
            *logit += bias;
        }
    }
    if let Some(custom) = custom {
        custom.0.process(&mut row, &history).unwrap();
    }
    for (token, logit) in (0..).zip(&mut row) {
        let count = output.iter().filter(|&&id| id == token).count();
        if history.contains(&token) {
            let repetition = *repetition_penalty as f32;
            *logit = if *logit > 0.0 {
                *logit / repetition
            } else {
                *logit * repetition
            };
        }
        *logit -= *frequency_penalty as f32 * count as f32;
        *logit -= if count > 0 {
            *presence_penalty as f32
        } else {
            0.0
        };
    }
    row
}

fn params() -> impl Strategy<Value = RequestParams> {
    let token = || 0..VOCABULARY as TokenId;
    let words = vec(vec(select(vec![2, 3, 7]), 1..4), 0..4);
    let masks = (prop::option::of(vec(token(), 1..9)), words, 0..7_usize);
    let ends = (vec(token(), 0..3), vec(token(), 0..2));
    let added = (vec((token(), -5.0..5.0_f32), 0..4), any::<bool>());
    let repetition = select(vec![0.5, 1.0, 1.3]);
    let penalties = (
        repetition,
        select(vec![-1.5, 0.0, 0.7]),
        select(vec![-0.5, 0.0, 2.0]),
    );
    (masks, ends, added, penalties).prop_map(|(masks, ends, added, penalties)| RequestParams {
        min_tokens: masks.2,
        eos_token_ids: ends.0,
        stop_token_ids: ends.1,
        processors: Processors {
            allowed_token_ids: masks.0,
            bad_words: masks.1,
            logit_bias: added.0,
            custom: added.1.then(|| CustomProcessor(Arc::new(Nudge))),
            repetition_penalty: penalties.0,
            frequency_penalty: penalties.1,
            presence_penalty: penalties.2,
        },
        ..RequestParams::default()
    })
}

fn processing(params: &RequestParams) -> Option<Processing> {
    let committed = [&PROMPT[..], &OUTPUT].concat();
    Processing::new(&Arc::new(params.clone()), &committed, PROMPT.len())
}

fn process_one(processors: Processors, row: &[f32]) -> Result<Vec<f32>> {
    let params = RequestParams {
        processors,
        ..RequestParams::default()
    };
    let processing = processing(&params).unwrap();
    let mut scratch = ProcessorScratch::default();
    let mut rows = ProcessedRows::new(&processing, row.len(), &mut scratch);
    rows.process::<F32>(row, &TokenTree::default(), 0, 9)
        .map(<[f32]>::to_vec)
}

proptest! {
    /// B13: every node counts the committed tokens and the drafts before it on its own path, each
    /// once; siblings, and whatever was processed before, change nothing.
    /// <https://github.com/sgl-project/sglang/pull/33643>
    #[test]
    fn every_node_is_processed_with_its_own_path(
        params in params(),
        row in vec((-20..20_i32).prop_map(|step| step as f32 / 4.0), VOCABULARY),
        order in vec(0..6_usize, 1..12),
    ) {
        let tree = tree();
        let Some(processing) = processing(&params) else {
            prop_assert_eq!(reference(&row, &params, &[]), row);
            return Ok(());
        };
        let mut scratch = ProcessorScratch::default();
        for _ in 0..2 {
            let mut rows = ProcessedRows::new(&processing, VOCABULARY, &mut scratch);
            for &place in &order {
                let path: Vec<_> = tree.path(place as i32 - 1).collect();
                let expected = reference(&row, &params, &path);
                prop_assert_eq!(rows.process::<F32>(&row, &tree, place, 9).unwrap(), &expected[..]);
                // Steps of a quarter below 8 have no more bits than bf16 holds.
                let halves: Vec<u16> = row.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
                prop_assert_eq!(rows.process::<Bf16>(&halves, &tree, place, 9).unwrap(), &expected[..]);
            }
        }
    }
}

#[test]
fn a_request_without_processors_has_nothing_to_process() {
    assert_eq!(processing(&RequestParams::default()), None);
    let ends_later = RequestParams {
        min_tokens: OUTPUT.len(),
        ..RequestParams::default()
    };
    assert_eq!(processing(&ends_later), None);
}

#[test]
fn a_token_outside_the_vocabulary_is_named() {
    let outside = VOCABULARY as TokenId;
    let allowed = Processors {
        allowed_token_ids: Some(vec![1, outside]),
        ..Processors::default()
    };
    let biased = Processors {
        logit_bias: vec![(outside, 1.0)],
        ..Processors::default()
    };
    for (processors, name) in [(allowed, "allowed_token_ids"), (biased, "logit_bias")] {
        let error = process_one(processors, &[0.0; VOCABULARY]).unwrap_err();
        let expected = format!("{name} has token id 12, expected ids from 0 to 11");
        assert_eq!(error.to_string(), expected);
    }
    let harmless = Processors {
        bad_words: vec![vec![outside]],
        ..Processors::default()
    };
    assert_eq!(
        process_one(harmless, &[0.0; VOCABULARY]),
        Ok(vec![0.0; VOCABULARY])
    );
}

/// Fails, or puts a value where none may be.
struct Faulty(std::result::Result<f32, String>);

impl LogitsProcessor for Faulty {
    fn process(&self, logits: &mut [f32], _: &[TokenId]) -> std::result::Result<(), String> {
        logits[3] = self.0.clone()?;
        Ok(())
    }
}

#[test]
fn a_faulty_processor_is_an_error_that_says_what_it_did() {
    let run = |returned, row: &[f32]| {
        let custom = Some(CustomProcessor(Arc::new(Faulty(returned))));
        let processors = Processors {
            custom,
            ..Processors::default()
        };
        process_one(processors, row).map_err(|error| error.to_string())
    };
    let row = [0.0; VOCABULARY];
    assert_eq!(
        run(Err("no".into()), &row),
        Err("the logits_processor failed: no".into())
    );
    for (value, said) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let expected = format!("the logits_processor failed: it made the logit of token 3 {said}");
        assert_eq!(run(Ok(value), &row), Err(expected));
    }
    assert!(run(Ok(f32::NEG_INFINITY), &row).is_ok());
}

/// B35: a repetition penalty of 0 would make NaN of every seen logit, a tiny one infinity.
/// <https://github.com/sgl-project/sglang/pull/21258>
#[test]
fn values_out_of_range_are_named() {
    let plain = Processors::default();
    let wrong = |name: &str, processors: Processors| {
        let error = processors.validate(RequestId(7)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("request 7 has {name} ")),
            "{error}"
        );
        assert!(error.contains(", expected "), "{error}");
    };
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-60, 1e60] {
        wrong(
            "repetition_penalty",
            Processors {
                repetition_penalty: value,
                ..plain.clone()
            },
        );
    }
    for value in [-2.1, 2.1, f64::NAN, f64::INFINITY] {
        wrong(
            "frequency_penalty",
            Processors {
                frequency_penalty: value,
                ..plain.clone()
            },
        );
        wrong(
            "presence_penalty",
            Processors {
                presence_penalty: value,
                ..plain.clone()
            },
        );
    }
    for value in [-100.5, 101.0, f32::NAN, f32::NEG_INFINITY] {
        wrong(
            "logit_bias",
            Processors {
                logit_bias: vec![(1, 0.0), (2, value)],
                ..plain.clone()
            },
        );
    }
    wrong(
        "allowed_token_ids",
        Processors {
            allowed_token_ids: Some(vec![]),
            ..plain.clone()
        },
    );
    wrong(
        "bad_words",
        Processors {
            bad_words: vec![vec![1], vec![]],
            ..plain.clone()
        },
    );
    assert_eq!(plain.validate(RequestId(7)), Ok(()));
    let tiny = Processors {
        repetition_penalty: 1e-37,
        ..plain
    };
    let row = process_one(tiny, &[1e9; VOCABULARY]).unwrap();
    assert!(row.iter().all(|logit| logit.is_finite()));
}

/// No processor turns the target's NaN or infinity into a number, or masks it away.
#[test]
fn an_unusable_row_stays_an_error() {
    let all_but_3 = (0..VOCABULARY as TokenId).filter(|&id| id != 3).collect();
    let hiding = [
        Processors {
            allowed_token_ids: Some(all_but_3),
            ..Processors::default()
        },
        Processors {
            repetition_penalty: 1.2,
            ..Processors::default()
        },
        Processors {
            bad_words: vec![vec![3]],
            ..Processors::default()
        },
    ];
    for processors in hiding {
        for (value, said) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinity")] {
            let mut row = [0.0; VOCABULARY];
            row[3] = value;
            let error = process_one(processors.clone(), &row).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
