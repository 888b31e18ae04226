//! The likeliest entries of rows of logits.
use crate::error::{KernelError, check_len};
use crate::math::{exp, sum_lanes};
use crate::simd::{Dispatch, Level, Simd, Work};

/// For each row of `logits` (`[rows, vocab]`) the `width` greatest entries: their log
/// probabilities, descending, and indices; the lower index comes first in a tie.
///
/// `log_probs` and `ids` are `[rows, width]`, `1 <= width <= vocab`. A row with a NaN has NaN log
/// probabilities.
pub fn top_log_probs(
    logits: &[f32],
    vocab: usize,
    width: usize,
    log_probs: &mut [f32],
    ids: &mut [i32],
) -> Result<(), KernelError> {
    if width == 0 || width > vocab {
        return Err(KernelError::Size {
            what: "width",
            got: width as i64,
            rule: "1 to the number of columns",
        });
    }
    let rows = logits.len() / vocab;
    check_len("logits", logits.len(), rows * vocab)?;
    check_len("log_probs", log_probs.len(), rows * width)?;
    check_len("ids", ids.len(), rows * width)?;
    let outputs = log_probs
        .chunks_exact_mut(width)
        .zip(ids.chunks_exact_mut(width));
    for (row, (log_probs, ids)) in logits.chunks_exact(vocab).zip(outputs) {
        greatest(row, log_probs, ids);
        let mut total = 0.0;
        Level::best().run(ExpSum {
            row,
            max: log_probs[0],
            total: &mut total,
        });
        let log_total = log_probs[0] + total.ln();
        for log_prob in log_probs.iter_mut() {
            *log_prob -= log_total;
        }
    }
    Ok(())
}

/// The greatest entries of a row, by insertion behind a threshold.
fn greatest(row: &[f32], values: &mut [f32], ids: &mut [i32]) {
    values.fill(f32::NEG_INFINITY);
    ids.fill(0);
    let last = values.len() - 1;
    let mut filled = 0;
    for (index, &x) in row.iter().enumerate() {
        if filled > last && x <= values[last] {
            continue;
        }
        let mut place = filled.min(last);
        while place > 0 && x > values[place - 1] {
            values[place] = values[place - 1];
            ids[place] = ids[place - 1];
            place -= 1;
        }
        values[place] = x;
        ids[place] = index as i32;
        filled += 1;
    }
}

/// The sum of e^(x - max) over a row; NaN if the row has one.
struct ExpSum<'a> {
    row: &'a [f32],
    max: f32,
    total: &'a mut f32,
}

impl Dispatch for ExpSum<'_> {
    fn run<S: Simd>(self, s: S) {
        s.enter(self);
    }
}

impl<S: Simd> Work<S> for ExpSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, s: S) {
        let max = s.splat(self.max);
        let mut acc = s.splat(0.0);
        let (vectors, rest) = self.row.as_chunks::<16>();
        for vector in vectors {
            acc = s.add(acc, exp(s, s.sub(s.load(vector), max)));
        }
        let mut last = [f32::NEG_INFINITY; 16];
        last[..rest.len()].copy_from_slice(rest);
        acc = s.add(acc, exp(s, s.sub(s.load(&last), max)));
        let mut lanes = [0.0; 16];
        s.store(acc, &mut lanes);
        *self.total = sum_lanes(lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(logits: &[f32], vocab: usize, width: usize) -> (Vec<f32>, Vec<i32>) {
        let rows = logits.len() / vocab;
        let mut log_probs = vec![0.0; rows * width];
        let mut ids = vec![0; rows * width];
        top_log_probs(logits, vocab, width, &mut log_probs, &mut ids).expect("good sizes");
        (log_probs, ids)
    }

    #[test]
    fn rows_agree_with_a_sort() {
        for vocab in [1, 5, 16, 33, 4096] {
            let row: Vec<f32> = (0..vocab as u32)
                .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_mul(i | 1) % 1000) as f32 / 50.0)
                .collect();
            let width = vocab.min(8);
            let (log_probs, ids) = top(&row, vocab, width);
            let mut order: Vec<usize> = (0..vocab).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            for (place, &index) in order[..width].iter().enumerate() {
                assert_eq!(ids[place], index as i32);
                let expected = f64::from(row[index]) - total.ln();
                assert!((f64::from(log_probs[place]) - expected).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn a_nan_spoils_its_row_only() {
        let (log_probs, _) = top(&[1.0, f32::NAN, 0.0, 1.0, 2.0, 3.0], 3, 2);
        assert!(log_probs[0].is_nan() && log_probs[1].is_nan());
        assert!(log_probs[2..].iter().all(|x| x.is_finite()));
    }

    #[test]
    fn the_lower_index_wins_a_tie() {
        let (_, ids) = top(&[1.0, 7.0, 7.0, 7.0, 0.0], 5, 3);
        assert_eq!(ids, [1, 2, 3]);
    }

    #[test]
    fn a_width_beyond_the_row_is_refused() {
        assert!(top_log_probs(&[1.0], 1, 2, &mut [0.0; 2], &mut [0; 2]).is_err());
        assert!(top_log_probs(&[1.0], 1, 0, &mut [], &mut []).is_err());
    }
}
