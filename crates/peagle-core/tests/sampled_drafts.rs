//! Rejection sampling and block verification keep the target's law: by enumeration.
//!
//! The walks that `verify` runs are run here for every outcome of every draw and coin, each with its
//! exact probability, over random target laws, draft laws and trees. What they emit, followed by the
//! target itself, has the target's law. Wrong draft probabilities and sorted siblings must show.

mod common;

use std::collections::HashMap;

use common::Choices;
use peagle_core::distribution::Draw;
use peagle_core::verify::law::{Chance, Real, normalise};
use peagle_core::verify::{Walk, walk_block, walk_rejection};
use peagle_core::{DraftProbs, RequestId, Result, TokenTree};

const VOCABULARY: usize = 5;
/// Draft ids are a part of the target's vocabulary.
const TARGET_IDS: [i32; 4] = [0, 1, 3, 4];

type Law = HashMap<Vec<i32>, f64>;

/// Runs through all sequences of outcomes, like an odometer.
#[derive(Default)]
struct Outcomes {
    /// The masses of each choice so far, and the outcome taken.
    choices: Vec<(Vec<f64>, usize)>,
    place: usize,
    mass: f64,
}

impl Outcomes {
    fn choose(&mut self, masses: Vec<f64>) -> usize {
        if self.place == self.choices.len() {
            let first = masses.iter().position(|&mass| mass > 0.0).unwrap();
            self.choices.push((masses, first));
        }
        let (masses, outcome) = &self.choices[self.place];
        self.mass *= masses[*outcome];
        self.place += 1;
        *outcome
    }

    /// Runs `body` once for each sequence of outcomes.
    fn each(mut body: impl FnMut(&mut Self)) {
        let mut outcomes = Self::default();
        loop {
            (outcomes.place, outcomes.mass) = (0, 1.0);
            body(&mut outcomes);
            loop {
                let Some((masses, outcome)) = outcomes.choices.pop() else {
                    return;
                };
                let later = (outcome + 1..masses.len()).find(|&next| masses[next] > 0.0);
                if let Some(next) = later {
                    outcomes.choices.push((masses, next));
                    break;
                }
            }
        }
    }
}

/// Random numbers that are often 0.
fn random_law(choices: &mut Choices, len: usize) -> Vec<f32> {
    let mut law: Vec<f32> = (0..len)
        .map(|_| choices.below(5).min(1) as f32 * (1 + choices.below(40)) as f32)
        .collect();
    law[choices.below(len)] += 1.0;
    let total: f32 = law.iter().sum();
    law.iter().map(|weight| weight / total).collect()
}

fn as_probs<T: Real>(law: &[f32]) -> Vec<T> {
    let mut probs: Vec<T> = law.iter().map(|&prob| T::from(prob)).collect();
    normalise(&mut probs);
    probs
}

/// One world: target laws by history, draft laws by depth, the shape of the tree.
struct World {
    seed: u64,
    draft: Vec<Vec<f32>>,
    parents: Vec<i32>,
}

impl World {
    fn new(seed: u64, parents: &[i32]) -> Self {
        let mut choices = Choices::new(seed);
        let depths = parents.len();
        // With as many tokens as siblings at least, so that every shape can be drawn.
        let draft = (0..depths).map(|_| {
            loop {
                let law = random_law(&mut choices, TARGET_IDS.len());
                if law.iter().filter(|&&prob| prob > 0.0).count() >= 3 {
                    return law;
                }
            }
        });
        Self {
            seed,
            draft: draft.collect(),
            parents: parents.to_vec(),
        }
    }

    fn target(&self, history: &[i32]) -> Vec<f32> {
        let mut choices = Choices::new(common::prefix_hash(history) ^ self.seed << 20);
        random_law(&mut choices, VOCABULARY)
    }

    fn target_probs(&self, history: &[i32]) -> Vec<f64> {
        as_probs(&self.target(history))
    }

    fn draft_probs(draft: &[Vec<f32>]) -> DraftProbs {
        let probs: Vec<f32> = draft.concat();
        let range = 0..probs.len();
        DraftProbs::new(probs.into(), range, TARGET_IDS.into()).unwrap()
    }

    /// Draws the tree: the children of a node without replacement, in draw order.
    fn draw_tree(&self, outcomes: &mut Outcomes) -> TokenTree {
        let mut tokens: Vec<i32> = Vec::new();
        let mut depths: Vec<usize> = Vec::new();
        for (node, &parent) in self.parents.iter().enumerate() {
            let depth = usize::try_from(parent).map_or(0, |parent| depths[parent] + 1);
            depths.push(depth);
            let mut law = as_probs::<f64>(&self.draft[depth]);
            for sibling in (0..node).filter(|&other| self.parents[other] == parent) {
                let taken = TARGET_IDS.iter().position(|&id| id == tokens[sibling]);
                law[taken.unwrap()] = 0.0;
            }
            normalise(&mut law);
            tokens.push(TARGET_IDS[outcomes.choose(law)]);
        }
        TokenTree::new(tokens, self.parents.clone()).unwrap()
    }
}

/// A window whose chance is enumerated.
struct Enumerated<'a> {
    world: &'a World,
    tree: &'a TokenTree,
    outcomes: &'a mut Outcomes,
}

impl Enumerated<'_> {
    fn target<T: Real>(&self, row: usize) -> Vec<T> {
        let mut path: Vec<i32> = Vec::new();
        if row > 0 {
            path.push(self.tree.tokens()[row - 1]);
            let above = self.tree.ancestors(row - 1);
            path.extend(above.map(|node| self.tree.tokens()[node]));
            path.reverse();
        }
        as_probs(&self.world.target(&path))
    }

    fn draw<T: Real + Into<f64>>(&mut self, mut weights: Vec<T>) -> Draw {
        normalise(&mut weights);
        let masses = weights.into_iter().map(Into::into).collect();
        Draw {
            token: self.outcomes.choose(masses) as i32,
            near_tie: false,
        }
    }
}

impl<T: Real + Into<f64>> Chance<T> for Enumerated<'_> {
    fn target_probs(&mut self, row: usize, _: i32, probs: &mut Vec<T>) -> Result<()> {
        *probs = self.target(row);
        Ok(())
    }

    fn accepts(&mut self, _: usize, prob: T) -> bool {
        let prob: f64 = prob.into();
        self.outcomes.choose(vec![prob, 1.0 - prob]) == 0
    }

    fn recovered(&mut self, _: i32, weights: &[T]) -> Draw {
        self.draw(weights.to_vec())
    }

    fn bonus(&mut self, row: usize, _: i32) -> Result<Draw> {
        let weights: Vec<T> = self.target(row);
        Ok(self.draw(weights))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Rejection,
    Block,
}

fn walk_of<T: Real + Into<f64>>(
    method: Method,
    world: &World,
    tree: &TokenTree,
    draft: &DraftProbs,
    outcomes: &mut Outcomes,
) -> Walk {
    let draft_ids = draft.check(tree, RequestId(0), VOCABULARY).unwrap();
    let mut chance = Enumerated {
        world,
        tree,
        outcomes,
    };
    let walked = match method {
        Method::Rejection => walk_rejection::<T>(tree, draft, &draft_ids, &mut chance),
        Method::Block => walk_block::<T>(tree, draft, &draft_ids, &mut chance),
    };
    walked.unwrap()
}

/// Total variation between the target's law over texts of one length and that of what the walk emits,
/// continued by the target. `told` is the draft law that verification is told; `arrange` may change the
/// order of a drawn tree.
fn bias<T: Real + Into<f64>>(
    method: Method,
    world: &World,
    told: &[Vec<f32>],
    arrange: fn(&World, &TokenTree) -> TokenTree,
) -> f64 {
    let length = 1 + *TokenTree::new(
        (0..world.parents.len() as i32).collect(),
        world.parents.clone(),
    )
    .unwrap()
    .depths()
    .iter()
    .max()
    .unwrap() as usize;
    let draft = World::draft_probs(told);
    let mut emitted = Law::new();
    Outcomes::each(|outcomes| {
        let tree = arrange(world, &world.draw_tree(outcomes));
        let walked = walk_of::<T>(method, world, &tree, &draft, outcomes);
        *emitted.entry(walked.token_ids).or_default() += outcomes.mass;
    });
    let (left, right) = (
        continued(world, emitted, length),
        continued(world, Law::from([(vec![], 1.0)]), length),
    );
    let texts: std::collections::HashSet<_> = left.keys().chain(right.keys()).collect();
    let mass = |law: &Law, text: &Vec<i32>| law.get(text).copied().unwrap_or(0.0);
    let gap = |text: &&Vec<i32>| (mass(&left, text) - mass(&right, text)).abs();
    texts.iter().map(gap).sum::<f64>() / 2.0
}

/// Texts that are shorter than `length`, continued by the target.
fn continued(world: &World, mut law: Law, length: usize) -> Law {
    let mut whole = Law::new();
    while !law.is_empty() {
        let mut longer = Law::new();
        for (text, mass) in law {
            if text.len() >= length {
                *whole.entry(text).or_default() += mass;
                continue;
            }
            for (token, prob) in world.target_probs(&text).into_iter().enumerate() {
                if prob > 0.0 {
                    let text = [text.as_slice(), &[token as i32]].concat();
                    *longer.entry(text).or_default() += mass * prob;
                }
            }
        }
        law = longer;
    }
    whole
}

fn as_drawn(_: &World, tree: &TokenTree) -> TokenTree {
    tree.clone()
}

/// Siblings by falling draft probability, as a sorted list of candidates would have them.
fn sorted(world: &World, tree: &TokenTree) -> TokenTree {
    let depths = tree.depths();
    let mut tokens = tree.tokens().to_vec();
    for parent in -1..tree.len() as i32 {
        let places: Vec<usize> = tree.children(parent).collect();
        let Some(&first) = places.first() else {
            continue;
        };
        let law = &world.draft[depths[first] as usize - 1];
        let prob = |token: i32| law[TARGET_IDS.iter().position(|&id| id == token).unwrap()];
        let mut siblings: Vec<i32> = places.iter().map(|&node| tree.tokens()[node]).collect();
        siblings.sort_by(|&a, &b| prob(b).total_cmp(&prob(a)));
        for (place, token) in places.into_iter().zip(siblings) {
            tokens[place] = token;
        }
    }
    TokenTree::new(tokens, tree.parents().to_vec()).unwrap()
}

const CHAINS: [&[i32]; 3] = [&[-1], &[-1, 0], &[-1, 0, 1]];
const TREES: [&[i32]; 5] = [
    &[-1, -1],
    &[-1, -1, -1],
    &[-1, -1, 0],
    &[-1, 0, 0, -1],
    &[-1, -1, 0, 1, 0],
];

/// A random tree of up to four nodes with at most three siblings.
fn random_shape(seed: u64) -> Vec<i32> {
    let mut choices = Choices::new(seed ^ 0xABCD);
    let len = 1 + choices.below(4);
    let mut parents: Vec<i32> = Vec::new();
    while parents.len() < len {
        let parent = choices.below(parents.len() + 1) as i32 - 1;
        if parents.iter().filter(|&&other| other == parent).count() < 3 {
            parents.push(parent);
        }
    }
    parents
}

#[test]
fn rejection_keeps_the_target_law_on_chains_and_trees() {
    let mut shapes: Vec<Vec<i32>> = CHAINS.iter().chain(&TREES).map(|s| s.to_vec()).collect();
    shapes.extend((0..12).map(random_shape));
    for (seed, shape) in (0..).zip(shapes) {
        let world = World::new(seed, &shape);
        let gap = bias::<f64>(Method::Rejection, &world, &world.draft, as_drawn);
        assert!(gap < 1e-12, "{shape:?} in f64: {gap}");
        let gap = bias::<f32>(Method::Rejection, &world, &world.draft, as_drawn);
        assert!(gap < 1e-6, "{shape:?} in f32: {gap}");
    }
}

#[test]
fn block_verification_keeps_the_target_law_on_chains() {
    for seed in 0..12 {
        for shape in CHAINS {
            let world = World::new(seed, shape);
            let gap = bias::<f64>(Method::Block, &world, &world.draft, as_drawn);
            assert!(gap < 1e-12, "{shape:?} in f64: {gap}");
            let gap = bias::<f32>(Method::Block, &world, &world.draft, as_drawn);
            assert!(gap < 1e-6, "{shape:?} in f32: {gap}");
        }
    }
}

/// B02, huggingface/transformers#47932; B04, vllm-project/vllm#40149: draft probabilities that are not
/// those that drew the drafts bias the text.
#[test]
fn by_enumeration_false_draft_probabilities_show() {
    for (method, shape) in [
        (Method::Rejection, &[-1, 0, 1][..]),
        (Method::Rejection, &[-1, -1, 0]),
        (Method::Block, &[-1, 0, 1]),
    ] {
        let largest = (0..6).map(|seed| {
            let world = World::new(seed, shape);
            let flatter = |law: &Vec<f32>| law.iter().map(|prob| prob.sqrt()).collect::<Vec<_>>();
            let told: Vec<Vec<f32>> = world.draft.iter().map(flatter).collect();
            let told: Vec<Vec<f32>> = told.iter().map(|law| as_probs(law)).collect();
            bias::<f64>(method, &world, &told, as_drawn)
        });
        let largest = largest.fold(0.0, f64::max);
        assert!(largest > 0.01, "{method:?} {shape:?}: {largest}");
    }
}

#[test]
fn by_enumeration_sorted_siblings_show() {
    for shape in [&[-1, -1][..], &[-1, -1, 0], &[-1, 0, 0, -1]] {
        let largest = (0..6).map(|seed| {
            let world = World::new(seed, shape);
            bias::<f64>(Method::Rejection, &world, &world.draft, sorted)
        });
        let largest = largest.fold(0.0, f64::max);
        assert!(largest > 0.01, "{shape:?}: {largest}");
    }
}

/// Accepted drafts of a window, on average.
fn accepted(method: Method, world: &World) -> f64 {
    let draft = World::draft_probs(&world.draft);
    let mut mean = 0.0;
    Outcomes::each(|outcomes| {
        let tree = world.draw_tree(outcomes);
        let walked = walk_of::<f64>(method, world, &tree, &draft, outcomes);
        mean += outcomes.mass * walked.path.len() as f64;
    });
    mean
}

#[test]
fn block_verification_accepts_at_least_as_many_drafts_as_rejection_sampling() {
    let mut gained = 0.0;
    for seed in 0..12 {
        let world = World::new(seed, &[-1, 0, 1]);
        let (block, one_by_one) = (
            accepted(Method::Block, &world),
            accepted(Method::Rejection, &world),
        );
        assert!(block > one_by_one - 1e-12, "{block} {one_by_one}");
        gained += block - one_by_one;
    }
    assert!(gained > 0.01, "{gained}");
}
