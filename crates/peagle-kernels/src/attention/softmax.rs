//! Exponentials of a row of scores and their sum, in an order fixed by path positions.
use crate::math::{exp, max_lanes, sum_lanes};
use crate::simd::Simd;

/// Replace the scores of path positions `start..end` by e^(score - maximum); their sum.
///
/// Positions outside, as far as they share a vector with one inside, count as minus infinity.
#[inline(always)]
pub(super) fn softmax<S: Simd>(s: S, scores: &mut [f32], start: usize, end: usize) -> f32 {
    let (from, to) = (start / 16, end.div_ceil(16));
    scores[from * 16..start].fill(f32::NEG_INFINITY);
    scores[end..to * 16].fill(f32::NEG_INFINITY);
    let vectors = &mut scores.as_chunks_mut::<16>().0[from..to];
    let mut max = s.splat(f32::NEG_INFINITY);
    for vector in &*vectors {
        max = s.max(s.load(vector), max);
    }
    let mut lanes = [0.0; 16];
    s.store(max, &mut lanes);
    let max = s.splat(max_lanes(lanes));
    let mut sum = s.splat(0.0);
    for vector in vectors {
        let e = exp(s, s.sub(s.load(vector), max));
        s.store(e, vector);
        sum = s.add(sum, e);
    }
    s.store(sum, &mut lanes);
    sum_lanes(lanes)
}
