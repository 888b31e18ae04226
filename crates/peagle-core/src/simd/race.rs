//! The exponential race over a row or a list of tokens.

use std::array;

use pulp::{Arch, Simd, WithSimd};

use super::{Format, Scale};
use crate::distribution::Kept;
use crate::noise::NoiseKey;

/// Tokens raced at a time.
const RACE: usize = 64;

/// A race among tokens: who reaches the smallest `exponential / weight` wins.
///
/// A chunk is screened in f32 with the upper noise bits: since `E >= v`, a token whose
/// `v >= best * weight` (with a margin for f32) cannot win. The few that pass are decided in f64.
pub(crate) struct Race {
    key: NoiseKey,
    position: u32,
    scale: Scale,
    temperature: f64,
    min_logit: f32,
    best: Contender,
    runner_up: f64,
}

#[derive(Clone, Copy)]
struct Contender {
    token: u32,
    score: f64,
}

impl Race {
    /// A race at an absolute position, over tokens whose logit is at least `min_logit`.
    pub(crate) fn new(
        key: NoiseKey,
        position: u32,
        scale: Scale,
        temperature: f64,
        min_logit: f32,
    ) -> Self {
        let best = Contender {
            token: u32::MAX,
            score: f64::INFINITY,
        };
        Self {
            key,
            position,
            scale,
            temperature,
            min_logit,
            best,
            runner_up: f64::INFINITY,
        }
    }

    /// Lets one token run, in f64.
    pub(crate) fn run(&mut self, token: u32, logit: f32) {
        if logit < self.min_logit || token == self.best.token {
            return;
        }
        let exponent = (f64::from(logit) - f64::from(self.scale.max)) / self.temperature;
        let weight = libm::exp(exponent);
        if weight == 0.0 {
            return;
        }
        let score = self.key.exponential(token, self.position) / weight;
        let wins = score < self.best.score || (score == self.best.score && token < self.best.token);
        if wins {
            self.runner_up = self.best.score;
            self.best = Contender { token, score };
        } else if score < self.runner_up {
            self.runner_up = score;
        }
    }

    /// The winner, and whether the runner-up came within 1e-6 of it.
    pub(crate) fn finish(self) -> (u32, bool) {
        let near = self.runner_up <= self.best.score * (1.0 + 1e-6);
        (self.best.token, near)
    }

    #[inline(always)]
    fn run_chunk(&mut self, tokens: &[u32; RACE], logits: &[f32; RACE]) {
        const MARGIN: f64 = 1.0 + 1e-4;
        const STEP: f32 = 1.0 / 16_777_216.0;
        let bound = (self.best.score * MARGIN).min(f64::from(f32::MAX)) as f32;
        let mut passes = [0_u32; RACE];
        for lane in 0..RACE {
            // The upper 24 bits convert exactly and never exceed the noise itself.
            let noise = (self.key.high_bits(tokens[lane], self.position) >> 8) as i32 as f32 * STEP;
            let weight = self.scale.weight(logits[lane]);
            passes[lane] = u32::from(noise <= bound * weight);
        }
        let any = passes.iter().fold(0, |any, pass| any | pass);
        if any != 0 {
            for lane in (0..RACE).filter(|&lane| passes[lane] != 0) {
                self.run(tokens[lane], logits[lane]);
            }
        }
    }
}

struct DenseRace<'a, F: Format> {
    row: &'a [F::Bits],
    race: &'a mut Race,
}

impl<F: Format> WithSimd for DenseRace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let mut tokens: [u32; RACE] = array::from_fn(|lane| lane as u32);
        let mut logits = [0.0_f32; RACE];
        let (whole, rest) = self.row.as_chunks::<RACE>();
        for chunk in whole {
            for lane in 0..RACE {
                logits[lane] = F::widen(chunk[lane]);
            }
            self.race.run_chunk(&tokens, &logits);
            for token in &mut tokens {
                *token += RACE as u32;
            }
        }
        for (lane, &bits) in rest.iter().enumerate() {
            self.race.run(tokens[lane], F::widen(bits));
        }
    }
}

/// Races a whole row, token id = index.
pub(crate) fn race_row<F: Format>(row: &[F::Bits], race: &mut Race) {
    Arch::new().dispatch(DenseRace::<F> { row, race });
}

struct ListedRace<'a> {
    kept: &'a Kept,
    race: &'a mut Race,
}

impl WithSimd for ListedRace<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let (token_chunks, token_rest) = self.kept.tokens.as_chunks::<RACE>();
        let (logit_chunks, logit_rest) = self.kept.logits.as_chunks::<RACE>();
        for (tokens, logits) in token_chunks.iter().zip(logit_chunks) {
            self.race.run_chunk(tokens, logits);
        }
        for (&token, &logit) in token_rest.iter().zip(logit_rest) {
            self.race.run(token, logit);
        }
    }
}

/// Races the listed tokens.
pub(crate) fn race_listed(kept: &Kept, race: &mut Race) {
    Arch::new().dispatch(ListedRace { kept, race });
}
