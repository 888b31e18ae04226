//! Log probabilities of committed tokens, and of the likeliest ones beside them.

use crate::distribution::{self, Sampling, Scratch};
use crate::error::Result;
use crate::ids::TokenId;
use crate::simd::Format;

/// Which law is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogprobMode {
    /// The target's own, at temperature 1.
    Raw,
    /// The one that is sampled from: after processors, temperature, `min_p`, `top_k` and `top_p`. At
    /// temperature 0, which has no law to sample from, after the processors alone.
    Processed,
}

/// What a request wants to know of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedLogprobs {
    /// Which law.
    pub mode: LogprobMode,
    /// How many of the likeliest tokens, beside the one committed.
    pub top: usize,
}

/// What is reported of one committed token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: TokenId,
    /// Its log probability, natural.
    pub logprob: f64,
    /// 1 + the number of likelier tokens.
    pub rank: usize,
    /// The likeliest tokens with their log probabilities, best first, ties by id; those that cannot
    /// be drawn are left out.
    pub top: Vec<(TokenId, f64)>,
}

impl WantedLogprobs {
    /// Reports on `token` under a row of logits, `[vocabulary]`: the raw one or the processed one, as
    /// `mode` wants.
    ///
    /// Errors: a NaN, positive infinity, or no finite logit in the row; `position` is for the message.
    pub fn report<F: Format>(
        self,
        row: &[F::Bits],
        sampling: &Sampling,
        token: TokenId,
        position: i32,
        scratch: &mut Scratch,
    ) -> Result<TokenLogprobs> {
        let plain = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        let sampling = match self.mode {
            LogprobMode::Processed if sampling.temperature > 0.0 => sampling,
            _ => &plain,
        };
        let law = distribution::law::<F>(row, sampling, position, scratch)?;
        let logit = F::widen(row[token as usize]);
        let likelier = row.iter().filter(|&&bits| F::widen(bits) > logit).count();
        let total = law.total_weight(scratch);
        let best = law.best(self.top, scratch).into_iter();
        Ok(TokenLogprobs {
            token,
            logprob: law.log_prob(logit, total),
            rank: 1 + likelier,
            top: best
                .map(|(token, logit)| (token, law.log_prob(logit, total)))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests;
