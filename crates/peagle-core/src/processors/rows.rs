//! The rows of one window, processed with the history of each node.

use std::sync::Arc;

use super::counts::Counts;
use super::{CustomProcessor, Processors};
use crate::distribution::check;
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::request::RequestParams;
use crate::simd::Format;
use crate::tree::TokenTree;

/// What the rows of one window are processed with.
#[derive(Clone, Debug, PartialEq)]
pub struct Processing {
    params: Arc<RequestParams>,
    /// Prompt, then committed output; empty if no processor reads it.
    tokens: Vec<TokenId>,
    /// Prompt tokens among `tokens`.
    prompt_len: usize,
    /// Committed output tokens.
    output_len: usize,
}

impl Processing {
    /// For the next window of a request with these committed tokens; `None` if nothing would change.
    pub fn new(params: &Arc<RequestParams>, tokens: &[TokenId], prompt_len: usize) -> Option<Self> {
        let output_len = tokens.len() - prompt_len;
        let reads_history = params.processors.reads_history();
        if !params.processors.changes_rows() && output_len >= params.min_tokens {
            return None;
        }
        Some(Self {
            params: Arc::clone(params),
            tokens: if reads_history {
                tokens.to_vec()
            } else {
                Vec::new()
            },
            prompt_len: if reads_history { prompt_len } else { 0 },
            output_len,
        })
    }
}

/// Buffers of processed rows, used again from window to window.
#[derive(Debug, Default)]
pub struct ProcessorScratch {
    maxima: Vec<f32>,
    row: Vec<f32>,
    /// Committed tokens, then those of a node's path.
    tokens: Vec<TokenId>,
    counts: Counts,
}

/// The processed rows of one window.
#[derive(Debug)]
pub struct ProcessedRows<'a> {
    processing: &'a Processing,
    scratch: &'a mut ProcessorScratch,
}

impl<'a> ProcessedRows<'a> {
    /// Reads the committed tokens once for all rows of a window.
    pub fn new(
        processing: &'a Processing,
        vocabulary: usize,
        scratch: &'a mut ProcessorScratch,
    ) -> Self {
        let ProcessorScratch { tokens, counts, .. } = &mut *scratch;
        let processors = &processing.params.processors;
        tokens.clear();
        tokens.extend_from_slice(&processing.tokens);
        counts.reset(vocabulary);
        if processors.penalizes() {
            let (prompt, output) = tokens.split_at(processing.prompt_len);
            if processors.penalizes_repetition() {
                counts.add_prompt(prompt);
            }
            counts.add_output(output);
        }
        Self {
            processing,
            scratch,
        }
    }

    /// The processed logits of a window's row: row 0 follows the committed tokens, row `i + 1` node i
    /// of `tree`; `position` is that of the token to be drawn.
    ///
    /// Errors: the target's row is unusable (also where a processor would hide it), a parameter names a
    /// token outside the vocabulary, or the caller's processor failed.
    pub fn process<F: Format>(
        &mut self,
        logits: &[F::Bits],
        tree: &TokenTree,
        row: usize,
        position: i32,
    ) -> Result<&[f32]> {
        check::<F>(logits, position, &mut self.scratch.maxima)?;
        let params = &*self.processing.params;
        let processors = &params.processors;
        let ProcessorScratch {
            row: processed,
            tokens,
            counts,
            ..
        } = &mut *self.scratch;
        let committed = self.processing.tokens.len();
        tokens.truncate(committed);
        tokens.extend(tree.path(row as i32 - 1));
        let output_len = self.processing.output_len + tokens.len() - committed;

        allow::<F>(processors.allowed_token_ids.as_deref(), logits, processed)?;
        ban(
            &processors.bad_words,
            &tokens[self.processing.prompt_len..],
            processed,
        );
        if output_len < params.min_tokens {
            mask(&params.eos_token_ids, processed);
            mask(&params.stop_token_ids, processed);
        }
        add_bias(&processors.logit_bias, processed)?;
        if let Some(custom) = &processors.custom {
            customize(custom, tokens, processed)?;
        }
        if processors.penalizes() {
            counts.with_path(&tokens[committed..], |counts| {
                penalize(processors, counts, processed);
            });
        }
        Ok(processed)
    }
}

/// Fills `processed` with the row, or with its allowed tokens alone.
fn allow<F: Format>(
    allowed: Option<&[TokenId]>,
    logits: &[F::Bits],
    processed: &mut Vec<f32>,
) -> Result<()> {
    processed.clear();
    let Some(allowed) = allowed else {
        processed.extend(logits.iter().map(|&bits| F::widen(bits)));
        return Ok(());
    };
    processed.resize(logits.len(), f32::NEG_INFINITY);
    for &token in allowed {
        let logit = at("allowed_token_ids", token, processed)?;
        *logit = F::widen(logits[token as usize]);
    }
    Ok(())
}

/// Masks the last token of every bad word whose others end `output`.
fn ban(bad_words: &[Vec<TokenId>], output: &[TokenId], processed: &mut [f32]) {
    for word in bad_words {
        if let Some((&last, others)) = word.split_last()
            && output.ends_with(others)
        {
            mask(&[last], processed);
        }
    }
}

/// Masks tokens; one outside the vocabulary can never be drawn anyway.
fn mask(tokens: &[TokenId], processed: &mut [f32]) {
    for &token in tokens {
        if let Some(logit) = processed.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn add_bias(logit_bias: &[(TokenId, f32)], processed: &mut [f32]) -> Result<()> {
    for &(token, bias) in logit_bias {
        *at("logit_bias", token, processed)? += bias;
    }
    Ok(())
}

fn customize(custom: &CustomProcessor, tokens: &[TokenId], processed: &mut [f32]) -> Result<()> {
    let failed = |reason| Error::ProcessorFailed { reason };
    custom.0.process(processed, tokens).map_err(failed)?;
    let usable = |logit: &f32| *logit < f32::INFINITY;
    if let Some(token) = processed.iter().position(|logit| !usable(logit)) {
        let logit = processed[token];
        return Err(failed(format!(
            "it made the logit of token {token} {logit}"
        )));
    }
    Ok(())
}

/// The penalties, in f32 as vLLM computes them; only tokens that were seen are touched.
fn penalize(processors: &Processors, counts: &Counts, processed: &mut [f32]) {
    let repetition = processors.repetition_penalty as f32;
    let frequency = processors.frequency_penalty as f32;
    let presence = processors.presence_penalty as f32;
    for (token, times) in counts.iter() {
        let logit = &mut processed[token];
        let repeated = if *logit > 0.0 {
            *logit / repetition
        } else {
            *logit * repetition
        };
        let penalized = if times > 0 {
            repeated - frequency * times as f32 - presence
        } else {
            repeated
        };
        // A tiny repetition penalty may overflow.
        *logit = penalized.min(f32::MAX);
    }
}

fn at<'a>(name: &'static str, token: TokenId, processed: &'a mut [f32]) -> Result<&'a mut f32> {
    let vocabulary = processed.len();
    let outside = Error::TokenOutsideVocabulary {
        name,
        token,
        vocabulary,
    };
    processed.get_mut(token as usize).ok_or(outside)
}
