//! A fake target and naive decoding: what the tests compare with.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of this"
)]

pub mod requests;

use peagle_core::distribution::{Scratch, draw};
use peagle_core::simd::F32;
use peagle_core::{NoiseKey, Purpose, RequestParams};

/// Tokens of the fake target.
pub const VOCABULARY: usize = 7;

/// A hash of a token sequence.
pub fn prefix_hash(tokens: &[i32]) -> u64 {
    let mix = |hash: u64, token: &i32| {
        let value = (hash ^ *token as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        value ^ (value >> 29)
    };
    tokens.iter().fold(0x1234_5678, mix)
}

/// The fake target's logits after a history: they depend on all of it.
pub fn target_logits(history: &[i32]) -> Vec<f32> {
    let hash = prefix_hash(history);
    let logit = |token: u64| {
        let bits = (hash ^ (token + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_mul(hash | 1);
        // Steps of one quarter, so that ties happen.
        ((bits >> 40) % 16) as f32 / 4.0
    };
    (0..VOCABULARY as u64).map(logit).collect()
}

/// The token the target draws after a history.
pub fn target_token(history: &[i32], params: &RequestParams) -> i32 {
    let key = NoiseKey::new(params.seed, 0, Purpose::Sample);
    let logits = target_logits(history);
    let mut scratch = Scratch::default();
    let position = history.len() as i32;
    draw::<F32>(&logits, &params.sampling, key, position, &mut scratch)
        .unwrap()
        .token
}

/// What a request should produce, one token at a time, and why it ends.
pub fn naive_decode(
    prompt: &[i32],
    params: &RequestParams,
    max_model_len: usize,
) -> (Vec<i32>, &'static str) {
    let mut tokens = prompt.to_vec();
    loop {
        let token = target_token(&tokens, params);
        tokens.push(token);
        let output = tokens.len() - prompt.len();
        let is_eos = !params.ignore_eos && params.eos_token_ids.contains(&token);
        if is_eos || params.stop_token_ids.contains(&token) {
            return (tokens.split_off(prompt.len()), "stop");
        }
        if output == params.max_tokens || tokens.len() == max_model_len {
            return (tokens.split_off(prompt.len()), "length");
        }
    }
}

/// A small counter-based generator for choices inside a test.
#[derive(Clone, Debug)]
pub struct Choices(NoiseKey, u32);

impl Choices {
    pub fn new(seed: u64) -> Self {
        Self(NoiseKey::new(seed, 0, Purpose::Draft), 0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.1 += 1;
        (self.0.bits(self.1, 0) % bound as u64) as usize
    }
}

/// How far counts are from their expectation: the upper tail of the chi-square law as a standard normal
/// score, by Wilson and Hilferty's cube root. Cells that expect fewer than 5 are counted as one.
pub fn chi_square_score(observed: &[f64], expected: &[f64]) -> f64 {
    let (mut statistic, mut cells) = (0.0, 0);
    let (mut few_seen, mut few_wanted) = (0.0, 0.0);
    let mut add = |seen: f64, wanted: f64| {
        if wanted > 0.0 {
            statistic += (seen - wanted).powi(2) / wanted;
            cells += 1;
        }
    };
    for (&seen, &wanted) in observed.iter().zip(expected) {
        assert!(
            wanted > 0.0 || seen == 0.0,
            "a token outside the support was drawn"
        );
        if wanted >= 5.0 {
            add(seen, wanted);
        } else {
            few_seen += seen;
            few_wanted += wanted;
        }
    }
    add(few_seen, few_wanted);
    if cells < 2 {
        return 0.0;
    }
    let freedom = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}
