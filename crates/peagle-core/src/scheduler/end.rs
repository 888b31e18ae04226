//! The end of a request: one function, one table.

use crate::ids::TokenId;
use crate::request::Request;

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or `max_model_len`.
    Length,
    /// The target's logits were unusable.
    Error,
}

impl FinishReason {
    /// The word in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Error => "error",
        }
    }
}

/// Where and why a request ends inside the tokens of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Tokens of the window that are committed.
    pub(crate) kept: usize,
    pub(crate) reason: FinishReason,
}

/// The earliest end inside `tokens`, which `request` is about to commit; on the same token the
/// earlier line of the table wins, so stop beats length.
///
/// `cut` is how many tokens the stop-string check keeps, if it found one; like end and stop tokens, it
/// ends nothing among the first `min_tokens` output tokens, which that check knows. An end token
/// counts as a committed token.
pub(crate) fn earliest_end(
    request: &Request,
    tokens: &[TokenId],
    cut: Option<usize>,
    max_model_len: usize,
) -> Option<End> {
    use FinishReason::{Length, Stop};
    let params = &request.params;
    let first_of = |ids: &[TokenId]| {
        let mut endings = (0..tokens.len()).filter(|&at| ids.contains(&tokens[at]));
        endings
            .find(|at| request.output_len() + at >= params.min_tokens)
            .map(|at| at + 1)
    };
    let limit_at = |limit: usize, have: usize| {
        Some(limit.saturating_sub(have)).filter(|&kept| kept <= tokens.len())
    };
    let end_token = if params.ignore_eos {
        None
    } else {
        first_of(&params.eos_token_ids)
    };
    [
        (end_token, Stop),
        (first_of(&params.stop_token_ids), Stop),
        (cut, Stop),
        (limit_at(params.max_tokens, request.output_len()), Length),
        (limit_at(max_model_len, request.len()), Length),
    ]
    .into_iter()
    .filter_map(|(kept, reason)| kept.map(|kept| End { kept, reason }))
    .min_by_key(|end| end.kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RequestId;
    use crate::request::RequestParams;

    const EOS: TokenId = 90;
    const STOP: TokenId = 91;

    /// A window of `len` tokens with `token` at `at`.
    fn window(len: usize, token: TokenId, at: usize) -> Vec<TokenId> {
        (0..len)
            .map(|i| if i == at { token } else { i as TokenId })
            .collect()
    }

    fn request(max_tokens: usize, ignore_eos: bool) -> Request {
        let params = RequestParams {
            max_tokens,
            ignore_eos,
            eos_token_ids: vec![EOS],
            stop_token_ids: vec![STOP],
            ..RequestParams::default()
        };
        Request::new(RequestId(1), &[1, 2, 3], params, 0).unwrap()
    }

    #[test]
    fn the_earliest_end_wins_and_stop_beats_length() {
        for len in 1..=8 {
            for at in 0..len {
                for limit in 1..=10 {
                    for by_context in [false, true] {
                        for kind in ["eos", "stop id", "stop string"] {
                            let token = if kind == "eos" { EOS } else { STOP };
                            let token = if kind == "stop string" { 50 } else { token };
                            let cut = (kind == "stop string").then_some(at + 1);
                            let max_tokens = if by_context { 1000 } else { limit };
                            let max_model_len = if by_context { 3 + limit } else { 1000 };
                            let end = earliest_end(
                                &request(max_tokens, false),
                                &window(len, token, at),
                                cut,
                                max_model_len,
                            );
                            let expected = if at < limit {
                                End {
                                    kept: at + 1,
                                    reason: FinishReason::Stop,
                                }
                            } else {
                                End {
                                    kept: limit,
                                    reason: FinishReason::Length,
                                }
                            };
                            assert_eq!(end, Some(expected), "{kind} {len} {at} {limit}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn ignore_eos_keeps_stop_ids() {
        let request = request(100, true);
        assert_eq!(earliest_end(&request, &window(4, EOS, 1), None, 1000), None);
        let end = earliest_end(&request, &window(4, STOP, 1), None, 1000);
        assert_eq!(
            end,
            Some(End {
                kept: 2,
                reason: FinishReason::Stop
            })
        );
    }

    #[test]
    fn nothing_ends_inside_a_plain_window() {
        assert_eq!(
            earliest_end(&request(100, false), &[1, 2, 3], None, 1000),
            None
        );
    }
}
