//! What a kernel refuses.
use thiserror::Error;

/// An argument that does not fit the others.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelError {
    /// A length that is not what the other arguments say.
    #[error("{what} has {got} elements, not {expected}")]
    Length {
        /// The argument.
        what: &'static str,
        /// Elements it has.
        got: usize,
        /// Elements it must have.
        expected: usize,
    },
    /// A size that no kernel takes.
    #[error("{what} is {got}, but must be {rule}")]
    Size {
        /// The argument.
        what: &'static str,
        /// Its value.
        got: i64,
        /// What it must be.
        rule: &'static str,
    },
    /// An entry of an index array that points nowhere.
    #[error("{what}[{at}] is {got}, outside {low}..{high}")]
    Index {
        /// The array.
        what: &'static str,
        /// The entry's own index.
        at: usize,
        /// The entry.
        got: i64,
        /// Lowest legal value.
        low: i64,
        /// One past the highest legal value.
        high: i64,
    },
    /// A row whose slot is not the one its request's block table names.
    #[error("slots[{row}] is {got}, but the block table says {expected}")]
    Slot {
        /// The row.
        row: usize,
        /// Its slot.
        got: i64,
        /// The slot it must have.
        expected: i64,
    },
}

/// `Ok` if `got == expected`.
pub(crate) fn check_len(
    what: &'static str,
    got: usize,
    expected: usize,
) -> Result<(), KernelError> {
    if got == expected {
        Ok(())
    } else {
        Err(KernelError::Length {
            what,
            got,
            expected,
        })
    }
}

/// `Ok` if `got` lies in `low..high`.
pub(crate) fn check_index(
    what: &'static str,
    at: usize,
    got: i32,
    low: i64,
    high: usize,
) -> Result<usize, KernelError> {
    let got = i64::from(got);
    if (low..high as i64).contains(&got) {
        Ok(got as usize)
    } else {
        Err(KernelError::Index {
            what,
            at,
            got,
            low,
            high: high as i64,
        })
    }
}
