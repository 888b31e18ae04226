//! The several smallest scores of an exponential race.

use std::array;

use pulp::{Arch, Simd, WithSimd};

use crate::noise::NoiseKey;

/// Tokens raced at a time.
const RACE: usize = 64;

/// A race that keeps the first few: the smallest `exponential / weight`, in order.
///
/// A chunk is screened in f32 with the upper noise bits, as [`Race`](super::Race) does; what passes is
/// decided in f64.
#[derive(Debug, Default)]
pub(crate) struct Smallest {
    /// Score and index, ascending.
    best: Vec<(f64, u32)>,
}

impl Smallest {
    /// The `count` smallest scores with their indices; fewer if fewer weights are above 0. Equal scores
    /// stand in index order. `weights` and `tokens` have one length; noise is keyed by token.
    pub(crate) fn run(
        &mut self,
        weights: &[f32],
        tokens: &[i32],
        key: NoiseKey,
        position: u32,
        count: usize,
    ) -> &[(f64, u32)] {
        self.best.clear();
        if count > 0 {
            Arch::new().dispatch(Run {
                weights,
                tokens,
                key,
                position,
                count,
                best: &mut self.best,
            });
        }
        &self.best
    }
}

struct Run<'a> {
    weights: &'a [f32],
    tokens: &'a [i32],
    key: NoiseKey,
    position: u32,
    count: usize,
    best: &'a mut Vec<(f64, u32)>,
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _simd: S) {
        let (weights, tokens) = (self.weights, self.tokens);
        let (weight_chunks, weight_rest) = weights.as_chunks::<RACE>();
        let (token_chunks, token_rest) = tokens.as_chunks::<RACE>();
        for (chunk, (weights, tokens)) in weight_chunks.iter().zip(token_chunks).enumerate() {
            self.run_chunk(chunk * RACE, weights, tokens);
        }
        let first = weight_chunks.len() * RACE;
        for (index, (&weight, &token)) in (first..).zip(weight_rest.iter().zip(token_rest)) {
            self.enter(index, weight, token);
        }
    }
}

impl Run<'_> {
    #[inline(always)]
    fn run_chunk(&mut self, first: usize, weights: &[f32; RACE], tokens: &[i32; RACE]) {
        const MARGIN: f64 = 1.0 + 1e-4;
        const STEP: f32 = 1.0 / 16_777_216.0;
        let bound = (self.bound() * MARGIN).min(f64::from(f32::MAX)) as f32;
        let passes: [u32; RACE] = array::from_fn(|lane| {
            // The upper 24 bits convert exactly and never exceed the noise itself.
            let high = self.key.high_bits(tokens[lane] as u32, self.position);
            let noise = (high >> 8) as i32 as f32 * STEP;
            u32::from(noise <= bound * weights[lane])
        });
        if passes.iter().fold(0, |any, pass| any | pass) != 0 {
            for lane in (0..RACE).filter(|&lane| passes[lane] != 0) {
                self.enter(first + lane, weights[lane], tokens[lane]);
            }
        }
    }

    /// The score to beat.
    #[inline(always)]
    fn bound(&self) -> f64 {
        if self.best.len() < self.count {
            return f64::INFINITY;
        }
        self.best[self.count - 1].0
    }

    fn enter(&mut self, index: usize, weight: f32, token: i32) {
        if weight <= 0.0 {
            return;
        }
        let score = self.key.exponential(token as u32, self.position) / f64::from(weight);
        if score >= self.bound() {
            return;
        }
        let place = self.best.partition_point(|&(other, _)| other <= score);
        self.best.truncate(self.count - 1);
        self.best.insert(place, (score, index as u32));
    }
}
