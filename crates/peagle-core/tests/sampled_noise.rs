//! Rejection sampling, block verification and coupled drafts over the real noise, by statistics.
//!
//! Requests run window after window through `verify`, with drafts from `draft`, until three tokens are
//! out; a chi-square test compares their counts with the target's law. Each case has at least 131,072
//! trials, and samplers that are wrong must fail.

mod common;

use common::{Choices, chi_square_score};
use peagle_core::distribution::{Scratch, draw, target_probs};
use peagle_core::draft::{DraftScratch, coupled_candidates, draft_probs, sample_tree};
use peagle_core::simd::F32;
use peagle_core::verify::verify;
use peagle_core::{
    DraftMode, DraftNoise, DraftProbs, Logits, Method, Purpose, Sampling, Seed, TokenTree, Window,
};

const VOCABULARY: usize = 6;
const LENGTH: usize = 3;
const TRIALS: u64 = 131_072;
/// Standard normal score: a right sampler exceeds it once in 30,000 cases.
const LIMIT: f64 = 4.0;

/// Logits after each token (the last row: after nothing), and a drafter that has them roughly.
struct World {
    target: Vec<[f32; VOCABULARY]>,
    drafter: Vec<[f32; VOCABULARY]>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut choices = Choices::new(seed);
        let mut row = |spread: usize| -> [f32; VOCABULARY] {
            std::array::from_fn(|_| choices.below(spread) as f32 / 300.0)
        };
        let target: Vec<_> = (0..=VOCABULARY).map(|_| row(800)).collect();
        let drafter = target.iter().map(|logits| {
            let noise = row(500);
            std::array::from_fn(|token| logits[token] + noise[token])
        });
        Self {
            drafter: drafter.collect(),
            target,
        }
    }

    fn after(last: Option<&i32>) -> usize {
        last.map_or(VOCABULARY, |&token| token as usize)
    }

    /// The same drafter; from each row of the target, 0.02 of its law at temperature 1 goes from the
    /// likeliest token to the next.
    fn shifted(&self) -> Self {
        let target = self.target.iter().map(|row| {
            let mut probs = target_probs(row, &plain(1.0));
            let mut order: Vec<usize> = (0..VOCABULARY).collect();
            order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]));
            probs[order[0]] -= 0.02;
            probs[order[1]] += 0.02;
            std::array::from_fn(|token| probs[token].ln() as f32)
        });
        Self {
            target: target.collect(),
            drafter: self.drafter.clone(),
        }
    }

    /// Expected shares of all texts.
    fn law(&self, sampling: &Sampling) -> Vec<f64> {
        let steps: Vec<_> = self
            .target
            .iter()
            .map(|row| target_probs(row, sampling))
            .collect();
        let texts = 0..VOCABULARY.pow(LENGTH as u32);
        let mass = |text: usize| {
            let mut last = VOCABULARY;
            let tokens = (0..LENGTH as u32)
                .rev()
                .map(|at| text / VOCABULARY.pow(at) % VOCABULARY);
            let steps = tokens.map(|token| {
                let prob = steps[last][token];
                last = token;
                prob
            });
            steps.product()
        };
        texts.map(mass).collect()
    }
}

/// How a wrong sampler is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The drafter's law at another temperature is told.
    FalseProbs,
    /// Siblings stand by falling draft probability.
    Sorted,
    /// B01: the drafter draws from the noise of the recovered token.
    SharedNoise,
    /// The rows are not the target's.
    Shifted,
    /// Every window stands at position 0.
    NoiseTwice,
}

/// One way to speculate.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    method: Method,
    mode: DraftMode,
    parents: &'a [i32],
    sampling: Sampling,
    fault: Fault,
}

impl Case<'_> {
    /// Drafts after a text: a tree and what it was drawn from.
    fn draft(&self, world: &World, text: &[i32], seed: Seed) -> (TokenTree, Option<DraftProbs>) {
        let ids: Vec<i32> = (0..VOCABULARY as i32).collect();
        let logits = &world.drafter[World::after(text.last())];
        let depths = self.parents.len();
        let noise = DraftNoise {
            temperature: self.sampling.temperature,
            seed,
            position: text.len() as i32,
        };
        let scratch = &mut DraftScratch::default();
        if self.mode != DraftMode::Sampled {
            return (self.raced(logits, noise, scratch), None);
        }
        let mut law = vec![0.0; VOCABULARY];
        assert!(draft_probs(logits, noise.temperature, scratch, &mut law));
        let probs = law.repeat(depths);
        let mut tokens = if self.fault == Fault::SharedNoise {
            let key = seed.key(Purpose::Residual);
            let score = |token: &i32, depth: usize| {
                let position = (text.len() + depth) as u32;
                key.exponential(*token as u32, position) / f64::from(law[*token as usize])
            };
            let best = |depth| {
                ids.iter()
                    .copied()
                    .min_by(|a, b| score(a, depth).total_cmp(&score(b, depth)))
            };
            (0..depths).filter_map(best).collect()
        } else {
            sample_tree(&probs, &ids, self.parents, noise, scratch).unwrap()
        };
        if self.fault == Fault::Sorted {
            for parent in -1..depths as i32 {
                let places: Vec<usize> =
                    (0..depths).filter(|&i| self.parents[i] == parent).collect();
                let mut siblings: Vec<i32> = places.iter().map(|&i| tokens[i]).collect();
                siblings.sort_by(|&a, &b| law[b as usize].total_cmp(&law[a as usize]));
                places
                    .into_iter()
                    .zip(siblings)
                    .for_each(|(i, token)| tokens[i] = token);
            }
        }
        let mut told = probs;
        if self.fault == Fault::FalseProbs {
            assert!(draft_probs(
                logits,
                2.0 * noise.temperature,
                scratch,
                &mut law
            ));
            told = law.repeat(depths);
        }
        let range = 0..told.len();
        let told = DraftProbs::new(told.into(), range, ids.into()).unwrap();
        let tree = TokenTree::new(tokens, self.parents.to_vec()).unwrap();
        (tree, Some(told))
    }

    /// Greedy or coupled drafts: the r-th child of a node is the r-th candidate of its depth.
    fn raced(&self, logits: &[f32], noise: DraftNoise, scratch: &mut DraftScratch) -> TokenTree {
        let ids: Vec<i32> = (0..VOCABULARY as i32).collect();
        let mut greedy = ids.clone();
        greedy.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        let mut tokens = Vec::new();
        let mut depths: Vec<usize> = Vec::new();
        for (node, &parent) in self.parents.iter().enumerate() {
            let depth = usize::try_from(parent).map_or(0, |parent| depths[parent] + 1);
            depths.push(depth);
            let rank = self.parents[..node]
                .iter()
                .filter(|&&other| other == parent)
                .count();
            let mut raced = greedy.clone();
            if self.mode == DraftMode::Coupled {
                let shares = &mut vec![0.0; raced.len()];
                let noise = noise.at_depth(depth, 1.0);
                coupled_candidates(logits, &ids, noise, scratch, &mut raced, shares);
            }
            tokens.push(raced[rank]);
        }
        TokenTree::new(tokens, self.parents.to_vec()).unwrap()
    }

    /// A text of [`LENGTH`] tokens, and how many drafts were accepted on the way.
    fn text(&self, world: &World, seed: u64) -> (Vec<i32>, usize) {
        let seed = Seed {
            value: seed,
            sample: 0,
        };
        let (mut text, mut accepted): (Vec<i32>, usize) = (Vec::new(), 0);
        while text.len() < LENGTH {
            let (tree, draft_probs) = self.draft(world, &text, seed);
            let rows = tree.tokens().iter().map(Some);
            let rows = [text.last()].into_iter().chain(rows);
            let logits: Vec<f32> = rows
                .flat_map(|last| world.target[World::after(last)])
                .collect();
            let rows = 1 + tree.len();
            let reused = self.fault == Fault::NoiseTwice;
            let window = Window {
                tree,
                position: if reused { 0 } else { text.len() as i32 },
                sampling: self.sampling,
                seed,
                method: self.method,
                draft_probs,
                ..Window::default()
            };
            let found = verify(0, &[window], Logits::F32(&logits), rows, 1).unwrap();
            assert_eq!(found.errors, [None]);
            text.extend(found.token_ids);
            accepted += found.accepted[0] as usize;
        }
        text.truncate(LENGTH);
        (text, accepted)
    }

    /// How far the counts of many texts are from the target's law.
    fn score(&self, world: &World) -> f64 {
        let mut observed = vec![0.0; VOCABULARY.pow(LENGTH as u32)];
        let mut accepted = 0;
        let shifted = world.shifted();
        let shown = if self.fault == Fault::Shifted {
            &shifted
        } else {
            world
        };
        for seed in 0..TRIALS {
            let (text, count) = self.text(shown, seed);
            let place = text
                .iter()
                .fold(0, |sum, &token| sum * VOCABULARY + token as usize);
            observed[place] += 1.0;
            accepted += count;
        }
        assert!(accepted > 0);
        let law = world.law(&self.sampling);
        let expected: Vec<f64> = law.iter().map(|mass| mass * TRIALS as f64).collect();
        chi_square_score(&observed, &expected)
    }
}

fn plain(temperature: f64) -> Sampling {
    Sampling {
        temperature,
        ..Sampling::default()
    }
}

/// Each temperature with and without the filters.
fn samplings() -> Vec<Sampling> {
    let filtered = |temperature| Sampling {
        top_k: 5,
        top_p: 0.9,
        min_p: 0.05,
        ..plain(temperature)
    };
    let temperatures = [0.3, 0.7, 1.0, 1.5];
    temperatures
        .into_iter()
        .flat_map(|t| [plain(t), filtered(t)])
        .collect()
}

const CHAINS: [&[i32]; 3] = [&[-1], &[-1, 0, 1], &[-1, 0, 1, 2, 3, 4, 5]];
const TREES: [&[i32]; 2] = [&[-1, -1, 0], &[-1, -1, 0, 0, 1, -1, 2]];

fn all_keep_the_law(method: Method, mode: DraftMode, shapes: &[&[i32]], world: u64) {
    let world = World::new(world);
    for parents in shapes {
        for sampling in samplings() {
            let case = Case {
                method,
                mode,
                parents,
                sampling,
                fault: Fault::None,
            };
            let score = case.score(&world);
            assert!(score < LIMIT, "{case:?}: {score}");
        }
    }
}

/// B01, vllm-project/vllm#54282, and B05, z-lab/dflash#74: over several windows, at all temperatures.
#[test]
fn rejection_on_chains_draws_the_target_law() {
    all_keep_the_law(Method::Rejection, DraftMode::Sampled, &CHAINS, 1);
}

#[test]
fn rejection_on_trees_draws_the_target_law() {
    all_keep_the_law(Method::Rejection, DraftMode::Sampled, &TREES, 2);
}

#[test]
fn block_verification_draws_the_target_law() {
    all_keep_the_law(Method::Block, DraftMode::Sampled, &CHAINS, 3);
}

#[test]
fn coupled_on_chains_draws_the_target_law() {
    all_keep_the_law(Method::Coupled, DraftMode::Coupled, &CHAINS, 6);
}

#[test]
fn coupled_on_trees_draws_the_target_law() {
    all_keep_the_law(Method::Coupled, DraftMode::Coupled, &TREES, 7);
}

/// B02, huggingface/transformers#47932: the law that is told is not the one that drew. B01: the drafter
/// and the recovered token share noise.
#[test]
fn by_statistics_faulty_samplers_fail() {
    let world = World::new(4);
    let faults = [
        (Method::Rejection, CHAINS[1], Fault::FalseProbs),
        (Method::Rejection, TREES[1], Fault::FalseProbs),
        (Method::Block, CHAINS[1], Fault::FalseProbs),
        (Method::Rejection, TREES[0], Fault::Sorted),
        (Method::Rejection, CHAINS[1], Fault::SharedNoise),
        (Method::Block, CHAINS[1], Fault::SharedNoise),
    ];
    let everywhere = [Fault::Shifted, Fault::NoiseTwice]
        .into_iter()
        .flat_map(|fault| {
            [
                (Method::Coupled, CHAINS[1], fault),
                (Method::Coupled, TREES[0], fault),
                (Method::Rejection, CHAINS[1], fault),
                (Method::Rejection, TREES[0], fault),
                (Method::Block, CHAINS[1], fault),
            ]
        });
    for (method, parents, fault) in faults.into_iter().chain(everywhere) {
        let case = Case {
            method,
            mode: DraftMode::Sampled,
            parents,
            sampling: plain(1.0),
            fault,
        };
        let score = case.score(&world);
        assert!(score > 2.0 * LIMIT, "{case:?}: {score}");
    }
}

/// Whatever is drafted, in whichever way: coupled text, and greedy text at temperature 0, is the
/// target's own, token for token.
#[test]
fn coupled_text_equals_sequential_draws_on_the_same_noise() {
    let mut choices = Choices::new(77);
    for round in 0..450 {
        let world = World::new(round);
        let mut samplings = samplings();
        samplings.push(plain(0.0));
        let sampling = samplings[round as usize % samplings.len()];
        let mut parents: Vec<i32> = Vec::new();
        for node in 0..=choices.below(6) {
            let parent = choices.below(node + 1) as i32 - 1;
            parents.push(parent);
        }
        let mut text: Vec<i32> = Vec::new();
        while text.len() < LENGTH {
            let seed = Seed {
                value: round,
                sample: 0,
            };
            let logits = world.target[World::after(text.last())];
            let (key, position) = (seed.key(Purpose::Sample), text.len() as i32);
            let scratch = &mut Scratch::default();
            text.push(
                draw::<F32>(&logits, &sampling, key, position, scratch)
                    .unwrap()
                    .token,
            );
        }
        let modes = [DraftMode::Greedy, DraftMode::Coupled, DraftMode::Sampled];
        let modes = if sampling.temperature > 0.0 {
            &modes
        } else {
            &modes[..1]
        };
        for &mode in modes {
            let case = Case {
                method: Method::Coupled,
                mode,
                parents: &parents,
                sampling,
                fault: Fault::None,
            };
            assert_eq!(case.text(&world, round).0, text, "{case:?}");
        }
    }
}

#[test]
fn coupled_drafts_are_accepted_more_often_than_the_likeliest_tokens() {
    let world = World::new(5);
    let accepted = |mode| {
        let case = Case {
            method: Method::Coupled,
            mode,
            parents: CHAINS[1],
            sampling: plain(1.0),
            fault: Fault::None,
        };
        (0..20_000)
            .map(|seed| case.text(&world, seed).1)
            .sum::<usize>()
    };
    let (coupled, greedy) = (accepted(DraftMode::Coupled), accepted(DraftMode::Greedy));
    assert!(coupled > greedy, "{coupled} {greedy}");
}
