//! The register tile of a linear: R rows by the sixteen columns of a panel.
use crate::element::Element;
use crate::panel::Line;
use crate::simd::Simd;

/// Most rows of a tile at any level.
pub(crate) const MAX_ROWS: usize = 28;

/// How far ahead of its use a line of weights is called to the L2 cache, in bytes.
const AHEAD: usize = 8192;

/// Steps of a block of packed activations.
pub(crate) const STEPS: usize = 128;

/// Cells of a packed row of `steps` steps.
pub(crate) fn padded(steps: usize) -> usize {
    steps.next_multiple_of(STEPS)
}

/// `sums[r][c] = sum over k of x[r][k] * w[k][c]` for the rows of one packed tile.
///
/// `x` holds blocks of [`STEPS`] steps, and in a block row after row, so that the rows of a
/// tile are a constant distance apart. Every sum runs over k upwards, one accumulator,
/// whatever `sums.len()` is: this is why a row's bits do not depend on the number of rows.
/// Rows: 1 to `S::MAX_ROWS`.
///
/// One vector of columns is enough: a broadcast costs no more than the product it feeds, so
/// many rows by one vector run at the peak, and a panel that comes from memory is read once
/// for all of them. Lines are asked for ahead of their use (those of the next panel at the end
/// of this one): without, 8 rows took 1.5 times as long on Zen 4, and 1 row 1.7 times on a Xeon.
#[inline(always)]
pub(crate) fn multiply<S: Simd, E: Element>(
    s: S,
    panel: &[Line],
    x: &[E::X<S>],
    sums: &mut [[f32; 16]],
) {
    macro_rules! by_rows {
        ($($rows:literal)*) => {
            match sums.len() {
                $($rows if $rows <= S::MAX_ROWS => {
                    rows::<S, E, $rows>(s, panel, x, sums.first_chunk_mut().expect("rows"));
                })*
                rows => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28);
}

#[inline(always)]
fn rows<S: Simd, E: Element, const R: usize>(
    s: S,
    panel: &[Line],
    x: &[E::X<S>],
    sums: &mut [[f32; 16]; R],
) {
    let mut acc = [s.splat(0.0); R];
    let (x, _) = x.as_chunks::<STEPS>();
    for (lines, x) in panel.chunks(STEPS).zip(x.as_chunks::<R>().0) {
        for (step, line) in lines.iter().enumerate().take(STEPS) {
            s.prefetch(line, AHEAD);
            let cells = E::cells(s, &line.0);
            for (acc, x) in acc.iter_mut().zip(x) {
                *acc = E::dot(s, x[step], cells, *acc);
            }
        }
    }
    for (sums, acc) in sums.iter_mut().zip(acc) {
        s.store(acc, sums);
    }
}
