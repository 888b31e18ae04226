//! Numbers and comparisons that the kernel tests share.
#![allow(dead_code, unreachable_pub)]
use peagle_kernels::Element;

/// A small deterministic generator (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }

    /// In -1..1.
    pub fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn numbers<E: Element>(&mut self, count: usize) -> Vec<E> {
        (0..count).map(|_| E::from_f32(self.number())).collect()
    }

    /// 0..count in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

/// The bits, to be compared exactly.
pub fn bits<E: Element>(numbers: &[E]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_f32().to_bits()).collect()
}

/// Relative rounding error of a dtype.
pub fn epsilon<E: Element>() -> f64 {
    if E::NAME == "float32" {
        f64::from(f32::EPSILON)
    } else {
        1.0 / 256.0
    }
}

/// Each number of `got` within `tolerance` of `expected`.
pub fn assert_close<E: Element>(got: &[E], expected: &[f64], tolerance: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got.to_f32()) - expected).abs();
        let tolerance = tolerance(i);
        assert!(
            error <= tolerance,
            "[{i}]: {got:?}, not {expected}: {error} > {tolerance}"
        );
    }
}

/// Round to the dtype.
pub fn round<E: Element>(x: f64) -> f64 {
    f64::from(E::from_f32(x as f32).to_f32())
}

pub fn wide<E: Element>(numbers: &[E]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(x.to_f32())).collect()
}
