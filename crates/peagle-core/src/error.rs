//! Everything that can go wrong in the core, one variant per cause.

use crate::ids::{RequestId, TokenId};

/// The result of a fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the core. The message carries the values; [`Error::hint`] says what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A number of the scheduler's configuration is out of range.
    #[error("{name} is {value}, expected {expected}")]
    InvalidConfig {
        /// The name of the setting.
        name: &'static str,
        /// The value given.
        value: usize,
        /// The range allowed.
        expected: &'static str,
    },
    /// A request came without a prompt token.
    #[error("request {id} has an empty prompt")]
    EmptyPrompt {
        /// The request.
        id: RequestId,
    },
    /// A prompt leaves no room for one output token.
    #[error("request {id} has a prompt of {len} tokens, at most {limit} fit")]
    PromptTooLong {
        /// The request.
        id: RequestId,
        /// Length of the prompt.
        len: usize,
        /// The longest prompt allowed.
        limit: usize,
    },
    /// A token id is negative.
    #[error("request {id} has token id {token} at index {index}")]
    InvalidToken {
        /// The request.
        id: RequestId,
        /// The token id.
        token: i32,
        /// Where it stands.
        index: usize,
    },
    /// `max_tokens` is below one.
    #[error("request {id} has max_tokens {max_tokens}, expected at least 1")]
    InvalidMaxTokens {
        /// The request.
        id: RequestId,
        /// The value given.
        max_tokens: i64,
    },
    /// The temperature is negative or not finite.
    #[error("request {id} has temperature {temperature}, expected a finite number of at least 0")]
    InvalidTemperature {
        /// The request.
        id: RequestId,
        /// The value given.
        temperature: f64,
    },
    /// `top_p` is outside (0, 1].
    #[error("request {id} has top_p {top_p}, expected more than 0 and at most 1")]
    InvalidTopP {
        /// The request.
        id: RequestId,
        /// The value given.
        top_p: f64,
    },
    /// `min_p` is outside [0, 1].
    #[error("request {id} has min_p {min_p}, expected at least 0 and at most 1")]
    InvalidMinP {
        /// The request.
        id: RequestId,
        /// The value given.
        min_p: f64,
    },
    /// `top_k` is negative.
    #[error("request {id} has top_k {top_k}, expected at least 0")]
    InvalidTopK {
        /// The request.
        id: RequestId,
        /// The value given.
        top_k: i64,
    },
    /// A parameter of a request is outside its range.
    #[error("request {id} has {name} {value}, expected {expected}")]
    InvalidParameter {
        /// The request.
        id: RequestId,
        /// The parameter.
        name: &'static str,
        /// The value given.
        value: String,
        /// The range allowed.
        expected: &'static str,
    },
    /// A parameter of a request names a token that the target does not have.
    #[error("{name} has token id {token}, expected ids from 0 to {}", vocabulary - 1)]
    TokenOutsideVocabulary {
        /// The parameter.
        name: &'static str,
        /// The token id.
        token: TokenId,
        /// Tokens of the target.
        vocabulary: usize,
    },
    /// A request's own logits processor failed.
    #[error("the logits_processor failed: {reason}")]
    ProcessorFailed {
        /// What it said, or what is wrong with its row.
        reason: String,
    },
    /// A request asks for more speculative tokens than the engine's cap.
    #[error("request {id} has num_speculative_tokens {k}, expected 0 to {cap}")]
    SpeculationCap {
        /// The request.
        id: RequestId,
        /// The value given.
        k: i64,
        /// The engine's `num_speculative_tokens`.
        cap: usize,
    },
    /// A request could never fit into the KV pool, even alone.
    #[error("request {id} needs up to {needed} KV blocks, the pool has {total}")]
    KvCapacity {
        /// The request.
        id: RequestId,
        /// Blocks for the prompt and all tokens that may follow.
        needed: usize,
        /// Blocks of the pool.
        total: usize,
    },
    /// A request id is already in use.
    #[error("request {id} is already known")]
    DuplicateRequest {
        /// The request.
        id: RequestId,
    },
    /// Drafts name a request that was not asked for any.
    #[error("request {id} was not asked for drafts")]
    UnknownRequest {
        /// The request.
        id: RequestId,
    },
    /// More draft tokens than a request may have.
    #[error("request {id} has {count} draft tokens, at most {limit} are allowed")]
    TooManyDrafts {
        /// The request.
        id: RequestId,
        /// Draft tokens given.
        count: usize,
        /// The request's own limit.
        limit: usize,
    },
    /// A token tree is malformed.
    #[error("token tree is malformed at node {node}: {reason}")]
    InvalidTree {
        /// The node.
        node: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The verification method cannot take drafts that were chosen in this way.
    #[error("verification {method} cannot take {drafts} drafts, expected sampled ones")]
    IllegalDrafts {
        /// The verification method.
        method: &'static str,
        /// How the drafts were chosen.
        drafts: &'static str,
    },
    /// Drafts came without the probabilities that drew them.
    #[error("request {id} has drafts without draft probabilities at depth {depth}")]
    MissingDraftProbs {
        /// The request.
        id: RequestId,
        /// The first depth without, from 1 on.
        depth: usize,
    },
    /// A draft probability cannot be one.
    #[error(
        "request {id} has draft probability {prob} for token {token} at depth {depth}, expected {expected}"
    )]
    InvalidDraftProb {
        /// The request.
        id: RequestId,
        /// The depth, from 1 on.
        depth: usize,
        /// The token, an id of the target.
        token: i32,
        /// The value given.
        prob: f32,
        /// What it should be.
        expected: &'static str,
    },
    /// The draft probabilities of a depth are not a distribution.
    #[error(
        "request {id} has draft probabilities that sum to {sum} at depth {depth}, expected 1 within 0.001"
    )]
    DraftProbsSum {
        /// The request.
        id: RequestId,
        /// The depth, from 1 on.
        depth: usize,
        /// Their sum.
        sum: f64,
    },
    /// The map from draft ids to target ids is unusable.
    #[error(
        "draft id {draft_id} maps to target id {token}, expected increasing ids below {vocabulary}"
    )]
    InvalidDraftVocabulary {
        /// The draft id.
        draft_id: usize,
        /// What it maps to.
        token: i32,
        /// Size of the target's vocabulary, as far as known.
        vocabulary: usize,
    },
    /// Arrays do not have the lengths or contents that they should.
    #[error("{name} is {got}, expected {expected}")]
    ShapeMismatch {
        /// What was measured.
        name: &'static str,
        /// The value found.
        got: i64,
        /// The value expected.
        expected: i64,
    },
    /// `schedule` and `update` were called out of turn.
    #[error("{call} was called out of turn: {reason}")]
    StepOrder {
        /// The call.
        call: &'static str,
        /// Why it is not its turn.
        reason: &'static str,
    },
    /// A row of target logits has a NaN.
    #[error("target logits for position {position} contain NaN")]
    NanLogits {
        /// Position of the token that was to be drawn.
        position: i32,
    },
    /// A row of target logits has positive infinity.
    #[error("target logits for position {position} contain positive infinity")]
    InfiniteLogits {
        /// Position of the token that was to be drawn.
        position: i32,
    },
    /// A row of target logits has no finite value: every token is masked.
    #[error("target logits for position {position} mask every token")]
    MaskedLogits {
        /// Position of the token that was to be drawn.
        position: i32,
    },
}

impl Error {
    /// What a person can do about it, where that can be said in one line.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::EmptyPrompt { .. } => Some("give at least one prompt token, for example bos"),
            Self::PromptTooLong { .. } => Some("shorten the prompt or raise max_model_len"),
            Self::SpeculationCap { .. } => {
                Some("a request may only lower num_speculative_tokens; raise the engine's value")
            }
            Self::KvCapacity { .. } => Some("raise num_kv_blocks or lower max_tokens"),
            Self::DuplicateRequest { .. } => Some("use a fresh id for every request"),
            Self::StepOrder { .. } => {
                Some("a step is schedule, forward, verify, update, propose, in this order")
            }
            Self::IllegalDrafts { .. } => Some(
                "shared noise or point masses would bias the text; draw drafts from noise of their \
                 own, or verify coupled",
            ),
            Self::MissingDraftProbs { .. }
            | Self::InvalidDraftProb { .. }
            | Self::DraftProbsSum { .. } => {
                Some("send the float32 probabilities that truly drew the drafts")
            }
            Self::NanLogits { .. } | Self::InfiniteLogits { .. } => {
                Some("check the weights and the dtype of the target's forward pass")
            }
            Self::MaskedLogits { .. } => Some(
                "leave at least one token to allowed_token_ids, bad_words, min_tokens and \
                 logits_processor",
            ),
            Self::ProcessorFailed { .. } => Some(
                "it is called with float32 logits and the token ids of a path; it edits the row or \
                 returns another",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lower_case_without_a_full_stop() {
        let errors = [
            Error::EmptyPrompt { id: RequestId(3) },
            Error::KvCapacity {
                id: RequestId(3),
                needed: 9,
                total: 4,
            },
            Error::StepOrder {
                call: "update",
                reason: "no plan is in flight",
            },
            Error::NanLogits { position: 7 },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.starts_with(char::is_lowercase), "{text}");
            assert!(!text.ends_with('.'), "{text}");
            assert!(error.hint().is_some());
        }
    }
}
