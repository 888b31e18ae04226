//! The way from a request's first row to one of its rows.
use super::plan::Request;

/// The window rows that a row attends to, itself last.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    /// The rows 0..length.
    Chain(usize),
    Tree(&'a [u32]),
}

impl<'a> Path<'a> {
    /// The path of `row`, written to `buffer` if need be.
    #[inline(always)]
    pub(super) fn new(
        request: Request<'_>,
        chain: bool,
        row: usize,
        buffer: &'a mut [u32],
    ) -> Self {
        if chain {
            return Self::Chain(row + 1);
        }
        let mut free = buffer.len();
        let mut next = row as i32;
        while next >= 0 {
            free -= 1;
            buffer[free] = next as u32;
            next = request.parents[next as usize];
        }
        Self::Tree(&buffer[free..])
    }

    #[inline(always)]
    pub(super) fn len(self) -> usize {
        match self {
            Self::Chain(length) => length,
            Self::Tree(rows) => rows.len(),
        }
    }

    /// The row at a depth.
    #[inline(always)]
    pub(super) fn row(self, depth: usize) -> usize {
        match self {
            Self::Chain(_) => depth,
            Self::Tree(rows) => rows[depth] as usize,
        }
    }
}
