//! Verification: which drafts the target keeps, and the token after them.
//!
//! All methods keep the target's law, on every path of a token tree.
//!
//! | method | rule | drafts |
//! | --- | --- | --- |
//! | coupled (greedy at temperature 0) | [`walk`]: follow the target's own draws | any |
//! | rejection | [`walk_rejection`]: accept with min(1, target / draft), recover from the residual | sampled |
//! | block | [`walk_block`]: accept the longest prefix of a chain by joint ratios | sampled chains |
//!
//! Under `coupled` each emitted token is the target's sample for the seed and the position, so text is a
//! function of the seed alone. Under `rejection` and `block` only its law is: which sample comes
//! depends on the drafts. Requests at temperature 0 are verified greedily under all of them.

mod block;
mod coupled;
mod draft_probs;
pub mod law;
mod rejection;
mod rows;

use std::panic::resume_unwind;
use std::thread;

pub use block::walk_block;
pub use coupled::walk;
pub use draft_probs::DraftProbs;
pub use rejection::walk_rejection;

use crate::distribution::{Draw, Sampling, Scratch};
use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};
use crate::logprobs::{TokenLogprobs, WantedLogprobs};
use crate::noise::Seed;
use crate::processors::{ProcessedRows, Processing, ProcessorScratch};
use crate::simd::{Bf16, F16, F32, Format};
use crate::tree::TokenTree;
use rows::Rows;

/// How drafts are verified at temperatures above 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Follow the target's own draws.
    #[default]
    Coupled,
    /// Rejection sampling.
    Rejection,
    /// Block verification.
    Block,
}

impl Method {
    /// The word in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coupled => "coupled",
            Self::Rejection => "rejection",
            Self::Block => "block",
        }
    }
}

/// What verification needs to know of one request of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// The request.
    pub request_id: RequestId,
    /// Index of its first row among the plan's rows with logits: that of the last committed token;
    /// one row for each node of the tree follows.
    pub first_row: usize,
    /// The drafts; empty without any.
    pub tree: TokenTree,
    /// Absolute position of the next token: the number of committed tokens.
    pub position: i32,
    /// The request's sampling parameters.
    pub sampling: Sampling,
    /// What its rows are processed with before they are sampled from.
    pub processing: Option<Processing>,
    /// Log probabilities to report of each token.
    pub logprobs: Option<WantedLogprobs>,
    /// What the request's noise is keyed by.
    pub seed: Seed,
    /// How its drafts are verified.
    pub method: Method,
    /// What sampled drafts were drawn from; read by rejection and block verification alone.
    pub draft_probs: Option<DraftProbs>,
}

impl Window {
    /// Whether the target's draws are not enough: rows must be processed, reported on, or compared with
    /// what drafts were drawn from.
    pub fn needs_logits(&self) -> bool {
        let compares = self.method != Method::Coupled && self.sampling.temperature > 0.0;
        compares || self.processing.is_some() || self.logprobs.is_some()
    }
}

/// Target logits, `[rows, vocabulary]` row-major, in the format the model produced.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// IEEE single precision.
    F32(&'a [f32]),
    /// Upper halves of singles.
    Bf16(&'a [u16]),
    /// IEEE half precision.
    F16(&'a [u16]),
}

impl Logits<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) | Self::F16(values) => values.len(),
        }
    }
}

/// What verification found, request by request; only requests that had logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdicts {
    /// The step of the plan.
    pub step: u64,
    /// `[R']`
    pub request_ids: Vec<RequestId>,
    /// `[R' + 1]`: tokens of request i are `token_ids[starts[i]..starts[i + 1]]`.
    pub starts: Vec<i32>,
    /// Emitted tokens, uncut: the accepted path and one more.
    pub token_ids: Vec<TokenId>,
    /// `[R']`: accepted draft tokens.
    pub accepted: Vec<i32>,
    /// Accepted tree nodes, request-major, `accepted[i]` of them each, in path order.
    pub paths: Vec<i32>,
    /// `[R']`: what was asked for of each emitted token, or nothing.
    pub logprobs: Vec<Vec<TokenLogprobs>>,
    /// `[R']`: why a request failed; it emitted nothing.
    pub errors: Vec<Option<Error>>,
    /// Draws whose two best scores differed by less than 1e-6 (relative).
    pub near_ties: u64,
}

/// The accepted path of one window and the tokens it emits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Walk {
    /// Emitted tokens: those of the accepted nodes and one more.
    pub token_ids: Vec<TokenId>,
    /// Accepted nodes, in path order.
    pub path: Vec<i32>,
    /// Of each emitted token, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Draws whose two best scores differed by less than 1e-6 (relative).
    pub near_ties: u64,
}

impl Walk {
    fn emit(&mut self, drawn: Draw) {
        self.token_ids.push(drawn.token);
        self.near_ties += u64::from(drawn.near_tie);
    }

    fn accept(&mut self, tree: &TokenTree, node: usize) {
        self.token_ids.push(tree.tokens()[node]);
        self.path.push(node as i32);
    }
}

/// Verifies all windows of a plan. Pure: the same arguments give the same verdicts, whatever the
/// number of threads.
///
/// `logits` holds `rows` rows, as many as the plan has rows with logits. Coupled and rejection read
/// only rows on accepted paths, block verification those past them too. Drafts without usable
/// [`DraftProbs`] are an error of their request where those are read. A row with NaN, positive infinity
/// or no finite value is an error of its request. Up to `threads` threads share the windows when there is
/// enough to draw.
pub fn verify(
    step: u64,
    windows: &[Window],
    logits: Logits<'_>,
    rows: usize,
    threads: usize,
) -> Result<Verdicts> {
    let mut expected = 0;
    for window in windows {
        if window.first_row != expected {
            return Err(Error::ShapeMismatch {
                name: "first row of a window",
                got: window.first_row as i64,
                expected: expected as i64,
            });
        }
        expected += 1 + window.tree.len();
    }
    if rows != expected {
        return Err(Error::ShapeMismatch {
            name: "number of logits rows",
            got: rows as i64,
            expected: expected as i64,
        });
    }
    let vocabulary = logits.len().checked_div(rows).unwrap_or(0);
    if rows > 0 && (vocabulary == 0 || vocabulary * rows != logits.len()) {
        return Err(Error::ShapeMismatch {
            name: "number of logits",
            got: logits.len() as i64,
            expected: (rows * vocabulary.max(1)) as i64,
        });
    }
    let walks = match logits {
        Logits::F32(values) => walk_all::<F32>(windows, values, vocabulary, threads),
        Logits::Bf16(values) => walk_all::<Bf16>(windows, values, vocabulary, threads),
        Logits::F16(values) => walk_all::<F16>(windows, values, vocabulary, threads),
    };
    let mut verdicts = Verdicts::new(step);
    for (window, walked) in windows.iter().zip(walks) {
        verdicts.push(window.request_id, walked);
    }
    Ok(verdicts)
}

/// Walks the windows in order, on as many threads as pay.
fn walk_all<F: Format>(
    windows: &[Window],
    values: &[F::Bits],
    vocabulary: usize,
    threads: usize,
) -> Vec<Result<Walk>> {
    let threads = useful_threads(windows, vocabulary).min(threads).max(1);
    let part_len = windows.len().div_ceil(threads).max(1);
    let (own, others) = windows.split_at(part_len.min(windows.len()));
    thread::scope(|scope| {
        let work = |part| move || walk_part::<F>(part, values, vocabulary);
        let others: Vec<_> = others
            .chunks(part_len)
            .map(|part| scope.spawn(work(part)))
            .collect();
        let mut walks = work(own)();
        for other in others {
            walks.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        walks
    })
}

/// How many threads have about a millisecond of drawing each; a row of greedy requests is only read.
fn useful_threads(windows: &[Window], vocabulary: usize) -> usize {
    const LOGITS_PER_THREAD: usize = 1 << 19;
    let sampled = windows
        .iter()
        .filter(|window| window.sampling.temperature > 0.0 || window.processing.is_some());
    let rows: usize = sampled.map(|window| 1 + window.tree.len()).sum();
    (rows * vocabulary / LOGITS_PER_THREAD).min(windows.len())
}

fn walk_part<F: Format>(
    windows: &[Window],
    values: &[F::Bits],
    vocabulary: usize,
) -> Vec<Result<Walk>> {
    let mut scratch = Scratch::default();
    let mut processor_scratch = ProcessorScratch::default();
    let walks = windows.iter().map(|window| {
        let rows = window.first_row..window.first_row + 1 + window.tree.len();
        let processing = window.processing.as_ref();
        let mut rows = Rows::<F> {
            window,
            values: &values[rows.start * vocabulary..rows.end * vocabulary],
            vocabulary,
            processed: processing
                .map(|it| ProcessedRows::new(it, vocabulary, &mut processor_scratch)),
            scratch: &mut scratch,
        };
        let mut walk = rows.walk()?;
        if let Some(wanted) = window.logprobs {
            walk.logprobs = rows.report(wanted, &walk)?;
        }
        Ok(walk)
    });
    walks.collect()
}

impl Verdicts {
    /// Verdicts of a step, none yet.
    pub fn new(step: u64) -> Self {
        Self {
            step,
            starts: vec![0],
            ..Self::default()
        }
    }

    /// Appends the outcome of one request.
    pub fn push(&mut self, request_id: RequestId, walked: Result<Walk>) {
        let (walk, error) = match walked {
            Ok(walk) => (walk, None),
            Err(error) => (Walk::default(), Some(error)),
        };
        self.request_ids.push(request_id);
        self.accepted.push(walk.path.len() as i32);
        self.token_ids.extend(walk.token_ids);
        self.paths.extend(walk.path);
        self.logprobs.push(walk.logprobs);
        self.starts.push(self.token_ids.len() as i32);
        self.errors.push(error);
        self.near_ties += walk.near_ties;
    }
}

#[cfg(test)]
mod tests;
