//! The exponential function and sums in a fixed order.
use crate::simd::Simd;

/// e^x for every lane: relative error below 2e-7, 0 below -87.3, never above 2^127.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r is its Taylor polynomial of degree 7 (truncation
/// error 0.35^8 / 8! = 5e-9); n is added to the exponent bits.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    /// 1.5 * 2^23: adding it leaves the integer nearest to x in the low mantissa bits.
    const SHIFT: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first one times n is exact.
    const LN2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
    const TAYLOR: [f32; 8] = [
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let low = s.splat(-87.3);
    let clamped = s.min(s.splat(88.0), s.max(low, x));
    let shifted = s.mul_add(clamped, s.splat(std::f32::consts::LOG2_E), s.splat(SHIFT));
    let n = s.sub(shifted, s.splat(SHIFT));
    let r = s.mul_add(n, s.splat(-LN2[0]), clamped);
    let r = s.mul_add(n, s.splat(-LN2[1]), r);
    let mut sum = s.splat(TAYLOR[0]);
    for &term in &TAYLOR[1..] {
        sum = s.mul_add(sum, r, s.splat(term));
    }
    s.keep_from(x, low, s.scale_pow2(sum, shifted))
}

/// The sum of sixteen lanes, always in the same pairs.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// The greatest of sixteen lanes.
#[inline(always)]
pub(crate) fn max_lanes(lanes: [f32; 16]) -> f32 {
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}
