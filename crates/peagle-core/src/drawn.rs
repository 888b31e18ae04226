//! Verification of rows that another device has already drawn from.
//!
//! On an accelerator the logits stay where they are: each row is reduced there to the target's own
//! draw, by the rule of [`crate::distribution::draw`] over the same noise, and only the draws come
//! here.

use crate::distribution::Draw;
use crate::error::{Error, Result};
use crate::verify::{Verdicts, Window, walk};

/// Why a row could not be drawn from, by what its logits hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRow {
    /// A NaN.
    Nan,
    /// Positive infinity.
    Infinite,
    /// No finite value.
    Masked,
}

impl BadRow {
    fn at(self, position: i32) -> Error {
        match self {
            Self::Nan => Error::NanLogits { position },
            Self::Infinite => Error::InfiniteLogits { position },
            Self::Masked => Error::MaskedLogits { position },
        }
    }
}

/// Walks the windows of a plan over the draws of all its rows with logits, in order.
///
/// Same verdicts as [`crate::verify::verify`] over the logits that were drawn from; a bad row counts
/// only where the walk reaches it. For windows that do not need their logits
/// ([`Window::needs_logits`]).
pub fn verify_drawn(
    step: u64,
    windows: &[Window],
    rows: &[std::result::Result<Draw, BadRow>],
) -> Result<Verdicts> {
    let expected: usize = windows.iter().map(|window| 1 + window.tree.len()).sum();
    if rows.len() != expected {
        return Err(Error::ShapeMismatch {
            name: "number of drawn rows",
            got: rows.len() as i64,
            expected: expected as i64,
        });
    }
    let mut verdicts = Verdicts::new(step);
    for window in windows {
        let walked = walk(&window.tree, |row, depth| {
            rows[window.first_row + row].map_err(|bad| bad.at(window.position + depth))
        });
        verdicts.push(window.request_id, walked);
    }
    Ok(verdicts)
}
