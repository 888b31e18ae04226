//! Which tokens a history holds, and how often.

use crate::ids::TokenId;

/// Marks a token of the prompt; the bits below count the output.
const IN_PROMPT: u32 = 1 << 31;

/// How often the output holds each token, and whether the prompt does.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// `[vocabulary]`
    of: Vec<u32>,
    /// Tokens whose count is not zero, in the order of their first addition.
    seen: Vec<TokenId>,
}

impl Counts {
    /// Forgets everything and makes room for the tokens of a vocabulary.
    pub(super) fn reset(&mut self, vocabulary: usize) {
        for token in self.seen.drain(..) {
            self.of[token as usize] = 0;
        }
        self.of.resize(vocabulary, 0);
    }

    /// Each token of prompt and output once, and how often the output holds it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let count = |&token: &TokenId| (token as usize, self.of[token as usize] & !IN_PROMPT);
        self.seen.iter().map(count)
    }

    pub(super) fn add_prompt(&mut self, tokens: &[TokenId]) {
        for &token in tokens {
            self.update(token, |count| count | IN_PROMPT);
        }
    }

    pub(super) fn add_output(&mut self, tokens: &[TokenId]) {
        for &token in tokens {
            self.update(token, |count| count + 1);
        }
    }

    /// Calls `work` with the tokens of a path added, and takes them back.
    pub(super) fn with_path(&mut self, path: &[TokenId], work: impl FnOnce(&Self)) {
        let seen = self.seen.len();
        self.add_output(path);
        work(self);
        for &token in path {
            if let Some(count) = self.of.get_mut(token as usize) {
                *count -= 1;
            }
        }
        self.seen.truncate(seen);
    }

    /// Tokens outside the vocabulary have no logit to change.
    fn update(&mut self, token: TokenId, change: impl FnOnce(u32) -> u32) {
        if let Some(count) = self.of.get_mut(token as usize) {
            if *count == 0 {
                self.seen.push(token);
            }
            *count = change(*count);
        }
    }
}
