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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Dispatch, Level, Work};

    /// e^x of every number.
    struct Exp<'a>(&'a mut [f32]);

    impl Dispatch for Exp<'_> {
        fn run<S: Simd>(self, s: S) {
            s.enter(self);
        }
    }

    impl<S: Simd> Work<S> for Exp<'_> {
        type Output = ();

        #[inline(always)]
        fn run(self, s: S) {
            for x in self.0.as_chunks_mut::<16>().0 {
                s.store(exp(s, s.load(x)), x);
            }
        }
    }

    #[test]
    fn exp_is_accurate_at_every_level() {
        for level in Level::available() {
            let xs: Vec<f32> = (0..1 << 17).map(|i| (i as f32 - 65536.0) / 751.0).collect();
            let mut got = xs.clone();
            level.run(Exp(&mut got));
            let mut worst = 0.0_f64;
            for (&x, &got) in xs.iter().zip(&got) {
                let exact = f64::from(x).exp();
                worst = worst.max((f64::from(got) - exact).abs() / exact);
            }
            assert!(worst < 2e-7, "{}: {worst:e}", level.name());
        }
    }

    #[test]
    fn exp_at_the_ends() {
        for level in Level::available() {
            let mut x = [0.0; 16];
            x[..7].copy_from_slice(&[
                -88.0,
                f32::NEG_INFINITY,
                1e-30,
                500.0,
                f32::NAN,
                -0.0,
                -87.3,
            ]);
            level.run(Exp(&mut x));
            assert_eq!(
                [x[0], x[1], x[2], x[5]].map(f32::to_bits),
                [0.0_f32, 0.0, 1.0, 1.0].map(f32::to_bits)
            );
            assert!(x[3] > 1e38 && x[3].is_finite() && x[4].is_nan() && x[6] > 0.0);
        }
    }
}
