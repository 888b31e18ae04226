//! The register tile of a linear: R rows by the 32 columns of a panel.
use crate::element::Element;
use crate::panel::Line;
use crate::simd::Simd;

/// Accumulators of one row.
pub(crate) type Sums = [[f32; 16]; 2];

/// How far ahead of its use a line of weights is asked for, in bytes.
const AHEAD: usize = 2048;

/// `sums[r][c] = sum over k of x[r][k] * w[k][c]` for the rows of one packed tile.
///
/// `x` holds the rows interleaved: step, then row. Every sum runs over k upwards, one
/// accumulator, whatever `sums.len()` is: this is why a row's bits do not depend on the
/// number of rows. Rows: 1 to `S::MAX_ROWS`.
#[inline(always)]
pub(crate) fn multiply<S: Simd, E: Element>(
    s: S,
    panel: &[Line],
    x: &[E::X<S>],
    sums: &mut [Sums],
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
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

#[inline(always)]
fn rows<S: Simd, E: Element, const R: usize>(
    s: S,
    panel: &[Line],
    x: &[E::X<S>],
    sums: &mut [Sums; R],
) {
    let mut acc = [[s.splat(0.0); 2]; R];
    for (line, x) in panel.iter().zip(x.as_chunks::<R>().0) {
        s.prefetch(line, AHEAD);
        s.prefetch(line, AHEAD + 64);
        E::step(s, [&line.0[0], &line.0[1]], x, &mut acc);
    }
    for (sums, acc) in sums.iter_mut().zip(acc) {
        s.store(acc[0], &mut sums[0]);
        s.store(acc[1], &mut sums[1]);
    }
}
