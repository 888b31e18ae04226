//! One request: what was asked for, its tokens, and how far they are computed.

use std::sync::Arc;

use crate::distribution::Sampling;
use crate::error::{Error, Result};
use crate::ids::{BlockId, RequestId, TokenId};
use crate::kv::BlockPool;
use crate::logprobs::WantedLogprobs;
use crate::noise::Seed;
use crate::processors::{Processing, Processors};
use crate::tree::TokenTree;
use crate::verify::DraftProbs;

/// What a caller asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestParams {
    /// Output tokens at most, at least 1.
    pub max_tokens: usize,
    /// Output tokens that come before an end token, a stop token or a stop string may end it, at most
    /// `max_tokens`: end and stop tokens are masked until then.
    pub min_tokens: usize,
    /// How to draw.
    pub sampling: Sampling,
    /// What changes the logits before.
    pub processors: Processors,
    /// Log probabilities to report.
    pub logprobs: Option<WantedLogprobs>,
    /// The seed of the request's noise.
    pub seed: u64,
    /// Go on past `eos_token_ids`; `stop_token_ids` still end the request.
    pub ignore_eos: bool,
    /// The model's end tokens.
    pub eos_token_ids: Vec<TokenId>,
    /// The caller's end tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Drafts at most, or the engine's number; 0 = no speculation.
    pub num_speculative_tokens: Option<usize>,
}

impl Default for RequestParams {
    fn default() -> Self {
        Self {
            max_tokens: 16,
            min_tokens: 0,
            sampling: Sampling::default(),
            processors: Processors::default(),
            logprobs: None,
            seed: 0,
            ignore_eos: false,
            eos_token_ids: Vec::new(),
            stop_token_ids: Vec::new(),
            num_speculative_tokens: None,
        }
    }
}

/// A request inside the scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    /// Prompt, then committed output.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt_len: usize,
    pub(crate) params: Arc<RequestParams>,
    /// Cap of drafts for this request.
    pub(crate) max_k: usize,
    pub(crate) seed: Seed,
    /// Tokens whose target KV is in the cache.
    pub(crate) computed: usize,
    /// Drafter rows `1..drafter_computed` are in the drafter's cache.
    pub(crate) drafter_computed: usize,
    /// The block table; block ids as the batch wants them.
    pub(crate) blocks: Vec<i32>,
    /// Drafts that wait for verification.
    pub(crate) tree: TokenTree,
    /// What they were drawn from, if they were sampled.
    pub(crate) draft_probs: Option<DraftProbs>,
}

impl Request {
    /// A request that has computed nothing yet.
    ///
    /// Errors: an empty prompt, a negative token, or a parameter out of range.
    pub(crate) fn new(
        id: RequestId,
        prompt: &[TokenId],
        params: RequestParams,
        max_k: usize,
    ) -> Result<Self> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt { id });
        }
        if let Some((index, &token)) = prompt.iter().enumerate().find(|&(_, &token)| token < 0) {
            return Err(Error::InvalidToken { id, token, index });
        }
        if params.max_tokens == 0 {
            return Err(Error::InvalidMaxTokens { id, max_tokens: 0 });
        }
        if params.min_tokens > params.max_tokens {
            return Err(Error::InvalidParameter {
                id,
                name: "min_tokens",
                value: params.min_tokens.to_string(),
                expected: "a number from 0 to max_tokens",
            });
        }
        params.sampling.validate(id)?;
        params.processors.validate(id)?;
        let seed = Seed {
            value: params.seed,
            sample: 0,
        };
        Ok(Self {
            id,
            tokens: prompt.to_vec(),
            prompt_len: prompt.len(),
            params: Arc::new(params),
            max_k,
            seed,
            computed: 0,
            drafter_computed: 1,
            blocks: Vec::new(),
            tree: TokenTree::default(),
            draft_probs: None,
        })
    }

    /// Committed tokens, prompt and output.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Committed output tokens.
    pub(crate) fn output_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// What the rows of its next window are processed with.
    pub(crate) fn processing(&self) -> Option<Processing> {
        Processing::new(&self.params, &self.tokens, self.prompt_len)
    }

    /// Tokens that may still be committed.
    pub(crate) fn remaining(&self, max_model_len: usize) -> usize {
        let by_request = self.params.max_tokens.saturating_sub(self.output_len());
        by_request.min(max_model_len.saturating_sub(self.len()))
    }

    /// The slot of token `index`; its block must be in the table.
    pub(crate) fn slot(&self, index: usize, block_size: usize) -> i32 {
        self.blocks[index / block_size] * block_size as i32 + (index % block_size) as i32
    }

    /// Adds blocks until `slots` slots are covered or the pool is empty; whether they are covered.
    pub(crate) fn grow(&mut self, slots: usize, block_size: usize, pool: &mut BlockPool) -> bool {
        while self.blocks.len() * block_size < slots {
            let last = self.blocks.last().map(|&block| BlockId(block as u32));
            let Some(block) = pool.take(last) else {
                return false;
            };
            self.blocks.push(block.0 as i32);
        }
        true
    }

    /// Gives back the blocks beyond the first `slots` slots.
    pub(crate) fn shrink(&mut self, slots: usize, block_size: usize, pool: &mut BlockPool) {
        for block in self
            .blocks
            .drain(slots.div_ceil(block_size).min(self.blocks.len())..)
        {
            pool.release(BlockId(block as u32));
        }
    }

    /// Gives back everything that must be recomputed: blocks, counters and pending drafts.
    pub(crate) fn reset(&mut self, pool: &mut BlockPool) {
        self.shrink(0, 1, pool);
        self.computed = 0;
        self.drafter_computed = 1;
        self.tree = TokenTree::default();
        self.draft_probs = None;
    }
}
