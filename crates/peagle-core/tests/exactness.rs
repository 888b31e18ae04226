//! The emitted law equals the target's law, whatever is drafted.
//!
//! Two views. *By enumeration*: the walk over a tree is run for every outcome of the target's draws,
//! with its exact probability, and the law of the emitted text is compared with the target's to 1e-12.
//! *By sampling*: the real noise draws many times and a chi-square test compares the counts. Each view
//! has negative controls, samplers that others shipped and that must fail here.

mod common;

use std::collections::HashMap;

use common::{Choices, chi_square_score};
use peagle_core::distribution::{Draw, Scratch, draw, target_probs};
use peagle_core::simd::F32;
use peagle_core::verify::{Walk, verify, walk};
use peagle_core::{Logits, NoiseKey, Purpose, RequestId, Sampling, Seed, TokenTree, Window};

const VOCABULARY: usize = 4;
/// Length of the text whose law is compared.
const LENGTH: usize = 3;
const EXACT: f64 = 1e-12;

type Law = HashMap<Vec<i32>, f64>;

fn logits_after(history: &[i32]) -> Vec<f32> {
    let mut choices = Choices::new(common::prefix_hash(history));
    (0..VOCABULARY)
        .map(|_| choices.below(1000) as f32 / 300.0)
        .collect()
}

fn probs_after(history: &[i32], sampling: &Sampling) -> Vec<f64> {
    target_probs(&logits_after(history), sampling)
}

fn target_law(sampling: &Sampling) -> Law {
    let mut law = Law::from([(vec![], 1.0)]);
    for _ in 0..LENGTH {
        let mut longer = Law::new();
        for (text, mass) in law {
            for (token, prob) in probs_after(&text, sampling).into_iter().enumerate() {
                let text = [text.as_slice(), &[token as i32]].concat();
                *longer.entry(text).or_default() += mass * prob;
            }
        }
        law = longer;
    }
    law
}

type Drafter = fn(&[i32]) -> TokenTree;

/// A verifier under test: the emitted tokens of one window, given the target's draw at each history.
type Verifier = fn(&TokenTree, &[i32], &mut dyn FnMut(&[i32]) -> i32) -> Vec<i32>;

fn coupled(tree: &TokenTree, history: &[i32], target: &mut dyn FnMut(&[i32]) -> i32) -> Vec<i32> {
    let walked = walk(tree, |row, _| {
        let mut path: Vec<i32> = history.to_vec();
        if row > 0 {
            let mut nodes: Vec<usize> = tree.ancestors(row - 1).collect();
            nodes.reverse();
            path.extend(nodes.iter().map(|&node| tree.tokens()[node]));
            path.push(tree.tokens()[row - 1]);
        }
        Ok(Draw {
            token: target(&path),
            near_tie: false,
        })
    });
    walked.unwrap().token_ids
}

/// Negative control: the first draft token is taken without a look.
fn first_unverified(
    tree: &TokenTree,
    history: &[i32],
    target: &mut dyn FnMut(&[i32]) -> i32,
) -> Vec<i32> {
    if tree.is_empty() {
        return vec![target(history)];
    }
    let first = tree.tokens()[0];
    vec![first, target(&[history, &[first]].concat())]
}

/// Negative control: a second chance. A refused draw is thrown again instead of emitted.
fn second_chance(
    tree: &TokenTree,
    history: &[i32],
    target: &mut dyn FnMut(&[i32]) -> i32,
) -> Vec<i32> {
    let token = target(history);
    if tree.child_with_token(-1, token).is_some() {
        return vec![token];
    }
    vec![target(history)]
}

/// A script of outcomes, one for each draw; runs through all scripts like an odometer.
struct Script {
    outcomes: Vec<usize>,
}

impl Script {
    fn next(&mut self) -> bool {
        while let Some(last) = self.outcomes.pop() {
            if last + 1 < VOCABULARY {
                self.outcomes.push(last + 1);
                return true;
            }
        }
        false
    }
}

/// The law of the first [`LENGTH`] tokens that repeated windows emit.
fn emitted_law(sampling: &Sampling, drafter: Drafter, verifier: Verifier) -> Law {
    let mut law = Law::new();
    let mut script = Script {
        outcomes: Vec::new(),
    };
    loop {
        let (mut text, mut mass, mut place) = (Vec::new(), 1.0, 0);
        while text.len() < LENGTH {
            let tree = drafter(&text);
            let mut target = |history: &[i32]| {
                if place == script.outcomes.len() {
                    script.outcomes.push(0);
                }
                let token = script.outcomes[place];
                place += 1;
                mass *= probs_after(history, sampling)[token];
                token as i32
            };
            let emitted = verifier(&tree, &text, &mut target);
            text.extend(emitted);
        }
        script.outcomes.truncate(place);
        text.truncate(LENGTH);
        *law.entry(text).or_default() += mass;
        if !script.next() {
            return law;
        }
    }
}

fn distance(left: &Law, right: &Law) -> f64 {
    let texts = left.keys().chain(right.keys());
    let texts: std::collections::HashSet<_> = texts.collect();
    let gap = |text: &&Vec<i32>| {
        let mass = |law: &Law| law.get(*text).copied().unwrap_or(0.0);
        (mass(left) - mass(right)).abs()
    };
    texts.iter().map(gap).sum::<f64>() / 2.0
}

fn no_draft(_: &[i32]) -> TokenTree {
    TokenTree::default()
}

fn chain_drafts(history: &[i32]) -> TokenTree {
    let mut choices = Choices::new(history.len() as u64 + 5);
    TokenTree::chain((0..2).map(|_| choices.below(VOCABULARY) as i32).collect()).unwrap()
}

fn tree_drafts(history: &[i32]) -> TokenTree {
    let first = history.len() as i32 % 3;
    TokenTree::new(vec![first, 3, 1, 0, 2], vec![-1, -1, 0, 0, 1]).unwrap()
}

const DRAFTERS: [(&str, Drafter); 3] = [
    ("none", no_draft),
    ("chain", chain_drafts),
    ("tree", tree_drafts),
];

fn samplings() -> Vec<Sampling> {
    let warm = Sampling {
        temperature: 0.8,
        ..Sampling::default()
    };
    vec![
        Sampling::default(),
        warm,
        Sampling {
            temperature: 1.5,
            ..warm
        },
        Sampling { top_k: 2, ..warm },
        Sampling { top_p: 0.7, ..warm },
        Sampling {
            min_p: 0.2,
            top_k: 3,
            top_p: 0.9,
            ..warm
        },
    ]
}

#[test]
fn by_enumeration_the_emitted_law_is_the_target_law() {
    for sampling in samplings() {
        let law = target_law(&sampling);
        for (name, drafter) in DRAFTERS {
            let emitted = emitted_law(&sampling, drafter, coupled);
            let gap = distance(&law, &emitted);
            assert!(gap < EXACT, "{name} drafts, {sampling:?}: {gap}");
        }
    }
}

#[test]
fn by_enumeration_the_negative_controls_fail() {
    let sampling = Sampling {
        temperature: 0.8,
        ..Sampling::default()
    };
    let law = target_law(&sampling);
    for control in [first_unverified as Verifier, second_chance] {
        for (name, drafter) in &DRAFTERS[1..] {
            let gap = distance(&law, &emitted_law(&sampling, *drafter, control));
            assert!(gap > 0.05, "{name} drafts: {gap}");
        }
    }
}

/// Counts, by the first two emitted tokens, of whole windows over many seeds.
fn sampled_counts(
    sampling: &Sampling,
    trials: u64,
    mut emit: impl FnMut(u64) -> Vec<i32>,
) -> (Vec<f64>, Vec<f64>) {
    let mut observed = vec![0.0; VOCABULARY * VOCABULARY];
    let mut expected = observed.clone();
    for first in 0..VOCABULARY {
        let mass = probs_after(&[], sampling)[first];
        for (second, prob) in probs_after(&[first as i32], sampling)
            .into_iter()
            .enumerate()
        {
            expected[first * VOCABULARY + second] = mass * prob * trials as f64;
        }
    }
    for seed in 0..trials {
        let text = emit(seed);
        observed[text[0] as usize * VOCABULARY + text[1] as usize] += 1.0;
    }
    (observed, expected)
}

/// Runs real windows until two tokens are out.
fn emit_text(sampling: &Sampling, drafter: Drafter, seed: u64) -> Vec<i32> {
    let mut text: Vec<i32> = Vec::new();
    while text.len() < 2 {
        let tree = drafter(&text);
        let mut logits = logits_after(&text);
        for node in 0..tree.len() {
            let mut nodes: Vec<usize> = tree.ancestors(node).collect();
            nodes.reverse();
            nodes.push(node);
            let path: Vec<i32> = nodes.iter().map(|&node| tree.tokens()[node]).collect();
            logits.extend(logits_after(&[text.as_slice(), &path].concat()));
        }
        let rows = 1 + tree.len();
        let window = Window {
            request_id: RequestId(0),
            first_row: 0,
            tree,
            position: text.len() as i32,
            sampling: *sampling,
            seed: Seed {
                value: seed,
                sample: 0,
            },
            ..Window::default()
        };
        text.extend(
            verify(0, &[window], Logits::F32(&logits), rows, 1)
                .unwrap()
                .token_ids,
        );
    }
    text
}

#[test]
fn by_sampling_the_noise_draws_the_target_law() {
    for sampling in samplings() {
        for (name, drafter) in DRAFTERS {
            let (observed, expected) = sampled_counts(&sampling, 20_000, |seed| {
                emit_text(&sampling, drafter, seed)
            });
            let score = chi_square_score(&observed, &expected);
            assert!(score < 4.0, "{name} drafts, {sampling:?}: {score}");
        }
    }
}

#[test]
fn by_sampling_the_negative_controls_fail() {
    let sampling = Sampling {
        temperature: 0.8,
        ..Sampling::default()
    };
    let mut scratch = Scratch::default();
    let mut draw_at = |history: &[i32], sampling: &Sampling, seed: u64, position: i32| {
        let key = NoiseKey::new(seed, 0, Purpose::Sample);
        let logits = logits_after(history);
        draw::<F32>(&logits, sampling, key, position, &mut scratch)
            .unwrap()
            .token
    };
    // The same noise at both positions, and a temperature that is not the request's.
    let hot = Sampling {
        temperature: 1.0,
        ..sampling
    };
    let mut one_stream = |seed| {
        let first = draw_at(&[], &sampling, seed, 0);
        vec![first, draw_at(&[first], &sampling, seed, 0)]
    };
    let (observed, expected) = sampled_counts(&sampling, 20_000, &mut one_stream);
    assert!(chi_square_score(&observed, &expected) > 10.0);
    let mut other_temperature = |seed| {
        let first = draw_at(&[], &hot, seed, 0);
        vec![first, draw_at(&[first], &hot, seed, 1)]
    };
    let (observed, expected) = sampled_counts(&sampling, 20_000, &mut other_temperature);
    assert!(chi_square_score(&observed, &expected) > 10.0);
}

#[test]
fn text_is_a_function_of_the_seed_whatever_the_drafts() {
    for sampling in samplings() {
        for seed in 0..500 {
            let texts = DRAFTERS.map(|(_, drafter)| {
                let mut text = emit_text(&sampling, drafter, seed);
                text.truncate(2);
                text
            });
            assert_eq!(texts[0], texts[1]);
            assert_eq!(texts[0], texts[2]);
        }
    }
}

#[test]
fn a_walk_emits_its_accepted_path_and_one_more() {
    let tree = tree_drafts(&[]);
    // Draw token 0, then 1 (node 2), then 2, which is no child.
    let mut drawn = [0, 1, 2].into_iter();
    let mut rows = Vec::new();
    let walked = walk(&tree, |row, depth| {
        rows.push((row, depth));
        Ok(Draw {
            token: drawn.next().unwrap(),
            near_tie: depth == 1,
        })
    });
    assert_eq!(rows, [(0, 0), (1, 1), (3, 2)]);
    let expected = Walk {
        token_ids: vec![0, 1, 2],
        path: vec![0, 2],
        near_ties: 1,
        ..Walk::default()
    };
    assert_eq!(walked, Ok(expected));
}
