//! Plain arrays: what the compiler makes of them on any architecture.
use super::{Simd, Work};

#[derive(Clone, Copy)]
pub(super) struct Baseline;

/// Fused where the target always has it; a library call would be far too slow.
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[inline(always)]
fn zip(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Baseline {
    type V = [f32; 16];
    type Weights = [[f32; 16]; 2];
    type Pair = [f32; 2];
    const MAX_ROWS: usize = 2;

    #[inline]
    fn enter<W: Work<Self>>(self, work: W) -> W::Output {
        work.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 16]
    }

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; 16]) -> Self::V {
        from.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; 16]) {
        *to = v;
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| mul_add(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn keep_from(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { v[i] })
    }

    #[inline(always)]
    fn scale_pow2(self, v: Self::V, shifted: Self::V) -> Self::V {
        zip(v, shifted, |v, shifted| {
            f32::from_bits(v.to_bits().wrapping_add(shifted.to_bits() << 23))
        })
    }

    #[inline(always)]
    fn pair(self, low: u16, high: u16) -> Self::Pair {
        [low, high].map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn load_pairs(self, from: &[u32; 16]) -> Self::Weights {
        [
            from.map(|pair| f32::from_bits(pair << 16)),
            from.map(|pair| f32::from_bits(pair & 0xffff_0000)),
        ]
    }

    #[inline(always)]
    fn join_pairs(self, low: &[u16; 16], high: &[u16; 16]) -> Self::Weights {
        [self.load_bf16(low), self.load_bf16(high)]
    }

    #[inline(always)]
    fn dot(self, x: Self::Pair, w: Self::Weights, acc: Self::V) -> Self::V {
        let acc = self.mul_add(self.splat(x[0]), w[0], acc);
        self.mul_add(self.splat(x[1]), w[1], acc)
    }

    #[inline(always)]
    fn prefetch<T>(self, _from: &T, _bytes: usize) {}
}
