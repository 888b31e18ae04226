//! Every parameter and every pair of parameters through the real scheduler and `verify`: with drafts a
//! request gets what it gets without, or fails in the same words.

mod common;

use std::sync::Arc;

use common::requests::{LENGTH, Output, PROMPT, Shape, alike, assert_alike, params, run, run_one};
use common::{VOCABULARY, target_logits};
use peagle_core::scheduler::FinishReason;
use peagle_core::{CustomProcessor, LogitsProcessor, LogprobMode, RequestParams, WantedLogprobs};

/// Lifts a token that depends on the whole history.
struct Lift;

impl LogitsProcessor for Lift {
    fn process(&self, logits: &mut [f32], token_ids: &[i32]) -> Result<(), String> {
        if token_ids.len() == 15 {
            return Err("enough".into());
        }
        let sum: i32 = token_ids.iter().sum();
        logits[sum as usize % VOCABULARY] += 2.0;
        Ok(())
    }
}

type Change = fn(&mut RequestParams, &[i32]);

/// A value for every parameter, given the tokens of the plain request.
const CHANGES: [(&str, Change); 24] = [
    ("max_tokens", |p, _| p.max_tokens = 6),
    ("min_tokens", |p, _| p.min_tokens = 5),
    ("top_k", |p, _| p.sampling.top_k = 2),
    ("top_p", |p, _| p.sampling.top_p = 0.6),
    ("min_p", |p, _| p.sampling.min_p = 0.4),
    ("temperature", |p, _| p.sampling.temperature = 1.5),
    ("seed", |p, _| p.seed = 99),
    ("eos", |p, base| p.eos_token_ids = vec![base[3]]),
    ("stop_token_ids", |p, base| p.stop_token_ids = vec![base[4]]),
    ("ignore_eos", |p, base| {
        p.eos_token_ids = vec![base[2]];
        p.ignore_eos = true;
    }),
    ("allowed_token_ids", |p, base| {
        p.processors.allowed_token_ids = Some(vec![0, 3, 5, base[1]]);
    }),
    ("bad word", |p, base| {
        p.processors.bad_words.push(vec![base[2]]);
    }),
    ("bad words", |p, base| {
        p.processors.bad_words.push(base[1..3].to_vec());
        p.processors.bad_words.push(base[4..7].to_vec());
    }),
    ("logit_bias", |p, base| {
        p.processors.logit_bias = vec![(base[0], -100.0), (base[5], 1.5)];
    }),
    ("logits_processor", |p, _| {
        p.processors.custom = Some(CustomProcessor(Arc::new(Lift)));
    }),
    ("repetition_penalty", |p, _| {
        p.processors.repetition_penalty = 1.8;
    }),
    ("repetition below 1", |p, _| {
        p.processors.repetition_penalty = 0.6;
    }),
    ("frequency_penalty", |p, _| {
        p.processors.frequency_penalty = 1.5;
    }),
    ("negative frequency", |p, _| {
        p.processors.frequency_penalty = -0.7;
    }),
    ("presence_penalty", |p, _| {
        p.processors.presence_penalty = 1.7;
    }),
    ("negative presence", |p, _| {
        p.processors.presence_penalty = -1.1;
    }),
    ("logprobs", |p, _| {
        let mode = LogprobMode::Raw;
        p.logprobs = Some(WantedLogprobs { mode, top: 2 });
    }),
    ("processed logprobs", |p, _| {
        let mode = LogprobMode::Processed;
        p.logprobs = Some(WantedLogprobs { mode, top: 9 });
    }),
    ("num_speculative_tokens", |p, _| {
        p.num_speculative_tokens = Some(2);
    }),
];

/// B18: no parameter is dropped, alone or beside another.
/// <https://github.com/NVIDIA/TensorRT-LLM/pull/17701>
#[test]
fn every_pair_of_parameters_gives_with_drafts_what_it_gives_without() {
    let mut failed = 0;
    for temperature in [0.0, 0.9] {
        let plain = alike(&params(temperature), "nothing set");
        for (index, (name, change)) in CHANGES.iter().enumerate() {
            let mut alone = params(temperature);
            change(&mut alone, &plain.tokens);
            let with_it = alike(&alone, name);
            let neutral = ["ignore_eos", "min_tokens", "num_speculative_tokens"];
            let of_the_law = ["top_k", "top_p", "min_p", "seed"];
            let is_silent = temperature == 0.0 && of_the_law.contains(name);
            if !neutral.contains(name) && !is_silent {
                assert_ne!(with_it, plain, "{name} at temperature {temperature}");
            }
            for (second, change) in &CHANGES[..index] {
                let mut both = alone.clone();
                change(&mut both, &plain.tokens);
                let output = alike(&both, &format!("{name} and {second}"));
                assert_eq!(
                    output.reason == Some(FinishReason::Error),
                    output.error.is_some()
                );
                failed += usize::from(output.error.is_some());
            }
        }
    }
    assert!(failed > 0, "the processor that fails was never reached");
}

/// All parameters at once in one batch: each request gets what it gets alone.
#[test]
fn requests_with_different_parameters_share_a_batch() {
    let plain = run_one(&params(0.9), Shape::Off, &[]);
    let requests: Vec<RequestParams> = CHANGES
        .iter()
        .map(|(_, change)| {
            let mut params = params(0.9);
            change(&mut params, &plain.tokens);
            params
        })
        .collect();
    let alone: Vec<Output> = requests
        .iter()
        .map(|p| run_one(p, Shape::Off, &[]))
        .collect();
    let coming: Vec<Vec<i32>> = alone.iter().map(|output| output.tokens.clone()).collect();
    for (place, output) in run(&requests, Shape::Tree, &coming).iter().enumerate() {
        assert_alike(output, &alone[place], CHANGES[place].0);
    }
}

/// B14: an end token may come at exactly token `min_tokens` (counted from 0), inside a window too.
/// <https://github.com/sgl-project/sglang/pull/33643>
#[test]
fn min_tokens_counts_tokens_of_the_path() {
    let plain = run_one(&params(0.0), Shape::Off, &[]);
    for end in 0..VOCABULARY as i32 {
        for min_tokens in 0..LENGTH {
            for eos in [false, true] {
                let mut params = params(0.0);
                params.min_tokens = min_tokens;
                let ends = if eos {
                    &mut params.eos_token_ids
                } else {
                    &mut params.stop_token_ids
                };
                ends.push(end);
                let output = alike(&params, "min_tokens");
                let at = output.tokens.iter().position(|&token| token == end);
                assert!(at.is_none_or(|at| at >= min_tokens && at + 1 == output.tokens.len()));
                let until = plain.tokens.iter().position(|&token| token == end);
                if until.is_some_and(|until| until >= min_tokens) {
                    assert_eq!(at, until, "nothing was masked that did not have to be");
                }
            }
        }
    }
}

/// B15: a word of one to three tokens is banned wherever the committed output ends inside it; what
/// shares only its beginning or its end is not.
/// <https://github.com/vllm-project/vllm/pull/52311>
#[test]
fn bad_words_cross_the_edge_of_committed_text() {
    for temperature in [0.0, 0.9] {
        let plain = run_one(&params(temperature), Shape::Off, &[]);
        for length in 1..=3 {
            for word in plain.tokens.windows(length) {
                let mut params = params(temperature);
                params.processors.bad_words.push(word.to_vec());
                let output = alike(&params, "bad words");
                let holds = |tokens: &[i32]| tokens.windows(length).any(|part| part == word);
                assert!(!holds(&output.tokens));
                let first = plain
                    .tokens
                    .windows(length)
                    .position(|part| part == word)
                    .unwrap();
                let innocent = first + length - 1;
                assert_eq!(output.tokens[..innocent], plain.tokens[..innocent]);
            }
        }
        let mut never = params(temperature);
        never.processors.bad_words = vec![PROMPT.to_vec(), vec![plain.tokens[0], 999]];
        assert_eq!(alike(&never, "absent words").tokens, plain.tokens);
    }
}

/// B16: a bias holds at every position of a window.
/// <https://github.com/vllm-project/vllm/issues/42744>
#[test]
fn a_bias_of_minus_100_removes_a_token_everywhere() {
    let plain = run_one(&params(0.0), Shape::Off, &[]);
    for &token in &plain.tokens {
        let mut params = params(0.0);
        params.processors.logit_bias = vec![(token, -100.0)];
        assert!(!alike(&params, "logit_bias").tokens.contains(&token));
    }
}

/// B20, B21: the first end of each kind decides, whatever else is in the window, and nothing behind
/// it comes out; on the same token stop beats length.
/// <https://github.com/sgl-project/sglang/issues/31599>
/// <https://github.com/huggingface/transformers/issues/47912>
#[test]
fn the_earliest_end_cuts_tokens_and_logprobs() {
    let plain = run_one(&params(0.0), Shape::Off, &[]);
    for at in 0..LENGTH {
        let end = plain.tokens[at];
        let first = plain.tokens.iter().position(|&token| token == end).unwrap();
        for max_tokens in 1..=LENGTH {
            let mut params = params(0.0);
            params.max_tokens = max_tokens;
            params.eos_token_ids = vec![end];
            let mode = LogprobMode::Raw;
            params.logprobs = Some(WantedLogprobs { mode, top: 0 });
            let output = alike(&params, "ends");
            let (kept, reason) = if first < max_tokens {
                (first + 1, FinishReason::Stop)
            } else {
                (max_tokens, FinishReason::Length)
            };
            assert_eq!(output.tokens, plain.tokens[..kept]);
            assert_eq!((output.logprobs.len(), output.reason), (kept, Some(reason)));
        }
    }
}

/// B37: the same numbers with drafts as without, and those of the law a token was drawn from.
/// <https://github.com/ggml-org/llama.cpp/issues/27972>
#[test]
fn logprobs_are_those_of_each_prefix() {
    for temperature in [0.0, 0.7] {
        let mut params = params(temperature);
        params.processors.presence_penalty = 0.5;
        for mode in [LogprobMode::Raw, LogprobMode::Processed] {
            params.logprobs = Some(WantedLogprobs {
                mode,
                top: VOCABULARY,
            });
            let output = alike(&params, "logprobs");
            for (place, of) in output.logprobs.iter().enumerate() {
                let history = [&PROMPT[..], &output.tokens[..place]].concat();
                let mut logits = target_logits(&history);
                let mut scale = 1.0;
                if mode == LogprobMode::Processed {
                    for (token, logit) in (0..).zip(&mut logits) {
                        let is_seen = output.tokens[..place].contains(&token);
                        *logit -= if is_seen { 0.5 } else { 0.0 };
                    }
                    scale = if temperature == 0.0 { 1.0 } else { temperature };
                }
                let weights = logits.iter().map(|&logit| (f64::from(logit) / scale).exp());
                let total = weights.clone().sum::<f64>();
                let law: Vec<f64> = weights.map(|weight| (weight / total).ln()).collect();
                assert_eq!((of.token, of.top.len()), (output.tokens[place], VOCABULARY));
                assert!((of.logprob - law[of.token as usize]).abs() < 1e-6);
                for &(token, logprob) in &of.top {
                    assert!((logprob - law[token as usize]).abs() < 1e-6);
                }
            }
        }
    }
}
