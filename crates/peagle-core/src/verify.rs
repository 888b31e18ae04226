//! Verification: walk each request's token tree with the target's own draws.
//!
//! At each node, starting at the last committed token, the target draws the next token: the largest
//! logit at temperature 0, else an exponential race over noise keyed by (seed, token, position). If
//! the drawn token is a child of the node the walk steps into it, else it stops. Every draw is
//! emitted. Each emitted token is therefore a sample of the target given its own prefix, whatever
//! was drafted: text is a function of the seed alone. (Coupling in this form: Daliri, Musco, Suresh,
//! arXiv 2408.07978.)

use crate::distribution::{Draw, Sampling, Scratch, draw};
use crate::error::{Error, Result};
use crate::ids::{RequestId, TokenId};
use crate::noise::NoiseKey;
use crate::simd::{Bf16, F16, F32, Format};
use crate::tree::TokenTree;

/// What verification needs to know of one request of a plan.
#[derive(Clone, Debug, PartialEq)]
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
    /// The request's noise.
    pub key: NoiseKey,
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
    /// `[R']`: why a request failed; it emitted nothing.
    pub errors: Vec<Option<Error>>,
    /// Draws whose two best scores differed by less than 1e-6 (relative).
    pub near_ties: u64,
}

/// The accepted path of one window and the tokens it emits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Emitted tokens: those of the accepted nodes and one more.
    pub token_ids: Vec<TokenId>,
    /// Accepted nodes, in path order.
    pub path: Vec<i32>,
    /// Draws whose two best scores differed by less than 1e-6 (relative).
    pub near_ties: u64,
}

/// Walks a tree: `draw(row, depth)` draws the token that follows the node of a row of the window
/// (row 0 = the last committed token, row `i + 1` = node i); `depth` is the node's.
pub fn walk(tree: &TokenTree, mut draw: impl FnMut(usize, i32) -> Result<Draw>) -> Result<Walk> {
    let mut found = Walk::default();
    let mut node = -1;
    loop {
        let drawn = draw((node + 1) as usize, found.path.len() as i32)?;
        found.token_ids.push(drawn.token);
        found.near_ties += u64::from(drawn.near_tie);
        match tree.child_with_token(node, drawn.token) {
            Some(child) => node = child as i32,
            None => return Ok(found),
        }
        found.path.push(node);
    }
}

/// Verifies all windows of a plan. Pure: the same arguments give the same verdicts.
///
/// `logits` holds `rows` rows, as many as the plan has rows with logits. Only rows on accepted paths
/// are read. A row with NaN, positive infinity or no finite value is an error of its request.
pub fn verify(step: u64, windows: &[Window], logits: Logits<'_>, rows: usize) -> Result<Verdicts> {
    let expected: usize = windows.iter().map(|window| 1 + window.tree.len()).sum();
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
    Ok(match logits {
        Logits::F32(values) => verify_rows::<F32>(step, windows, values, vocabulary),
        Logits::Bf16(values) => verify_rows::<Bf16>(step, windows, values, vocabulary),
        Logits::F16(values) => verify_rows::<F16>(step, windows, values, vocabulary),
    })
}

fn verify_rows<F: Format>(
    step: u64,
    windows: &[Window],
    values: &[F::Bits],
    vocabulary: usize,
) -> Verdicts {
    let mut scratch = Scratch::default();
    let mut verdicts = Verdicts::new(step);
    for window in windows {
        let walked = walk(&window.tree, |row, depth| {
            let start = (window.first_row + row) * vocabulary;
            let row = &values[start..start + vocabulary];
            draw::<F>(
                row,
                &window.sampling,
                window.key,
                window.position + depth,
                &mut scratch,
            )
        });
        verdicts.push(window.request_id, walked);
    }
    verdicts
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
        self.starts.push(self.token_ids.len() as i32);
        self.errors.push(error);
        self.near_ties += walk.near_ties;
    }
}

#[cfg(test)]
mod tests;
