//! What changes the logits of a node before temperature.
//!
//! Order, that of vLLM: allowed token ids, bad words, min tokens, logit bias, the caller's own
//! processor, then repetition, frequency and presence penalties. Each node's row is processed with
//! the tokens along that node's own path: prompt, committed output and the drafts that lead to the
//! node. Siblings never see each other.

mod counts;
mod rows;

pub use rows::{ProcessedRows, Processing, ProcessorScratch};

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};

/// A caller's own change of a row.
pub trait LogitsProcessor: Send + Sync {
    /// Edits `logits`, `[vocabulary]`, in place. `token_ids` are the prompt, the output and the drafts
    /// that lead to the node.
    ///
    /// It may be asked about a node more than once and about drafts that are then refused: the same
    /// arguments must give the same row. Errors: why it failed, which ends its request alone.
    fn process(&self, logits: &mut [f32], token_ids: &[TokenId])
    -> std::result::Result<(), String>;
}

/// A shared [`LogitsProcessor`].
#[derive(Clone)]
pub struct CustomProcessor(pub Arc<dyn LogitsProcessor>);

impl fmt::Debug for CustomProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomProcessor")
    }
}

impl PartialEq for CustomProcessor {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The processors of one request; by default none changes anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Processors {
    /// The only tokens that may be drawn; `None` = all.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Token sequences that the output must not hold: the last token of each is masked where the
    /// ones before it have just been put out.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Added to the logits of these tokens, -100 to 100.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The caller's own processor.
    pub custom: Option<CustomProcessor>,
    /// Divides the positive logits of tokens of prompt and output and multiplies their negative
    /// ones; 1 = off.
    pub repetition_penalty: f64,
    /// Taken from a logit once for each time the output holds the token, -2 to 2; 0 = off.
    pub frequency_penalty: f64,
    /// Taken once from the logits of tokens of the output, -2 to 2; 0 = off.
    pub presence_penalty: f64,
}

impl Default for Processors {
    fn default() -> Self {
        Self {
            allowed_token_ids: None,
            bad_words: Vec::new(),
            logit_bias: Vec::new(),
            custom: None,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
        }
    }
}

impl Processors {
    /// Checks the ranges, naming the request and the parameter.
    pub fn validate(&self, id: RequestId) -> Result<()> {
        let refuse = |name, value: String, expected| {
            Err(Error::InvalidParameter {
                id,
                name,
                value,
                expected,
            })
        };
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return refuse("allowed_token_ids", "empty".into(), "at least one token id");
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            let expected = "sequences of at least one token";
            return refuse("bad_words", "an empty sequence".into(), expected);
        }
        let in_bounds = |bias: f32| (-100.0..=100.0).contains(&bias);
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| !in_bounds(*bias)) {
            let value = format!("{bias} for token {token}");
            return refuse("logit_bias", value, "numbers from -100 to 100");
        }
        let repetition = self.repetition_penalty;
        if !(repetition > 0.0 && (repetition as f32).is_normal()) {
            let expected = "a finite number above 0";
            return refuse("repetition_penalty", repetition.to_string(), expected);
        }
        for (name, penalty) in [
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ] {
            if !(-2.0..=2.0).contains(&penalty) {
                return refuse(name, penalty.to_string(), "a number from -2 to 2");
            }
        }
        Ok(())
    }

    #[expect(clippy::float_cmp, reason = "switched-off parameters are exact")]
    fn penalizes_repetition(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    fn penalizes(&self) -> bool {
        self.penalizes_repetition() || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    fn reads_history(&self) -> bool {
        !self.bad_words.is_empty() || self.custom.is_some() || self.penalizes()
    }

    fn changes_rows(&self) -> bool {
        self.allowed_token_ids.is_some() || !self.logit_bias.is_empty() || self.reads_history()
    }
}

#[cfg(test)]
mod tests;
