//! Loops over a row of logits, compiled for each SIMD level and chosen at run time.
//!
//! The loops are plain Rust over fixed lanes, so every level performs the same operations in the same
//! order and gives the same bits. A row stays in its own format; a chunk at a time is widened to f32.

#![expect(
    clippy::inline_always,
    reason = "loop bodies must be compiled inside each SIMD level"
)]
#![expect(clippy::float_cmp, reason = "ties are exact")]

use pulp::{Arch, Simd, WithSimd};

mod race;
mod smallest;
mod weights;

pub(crate) use race::{Race, race_listed, race_row};
pub(crate) use smallest::Smallest;
pub(crate) use weights::{collect, fill_weights, least, weight_at_least, weight_sum};

/// Elements whose maximum is kept by [`scan`].
pub(crate) const CHUNK: usize = 128;
const LANES: usize = 16;
/// Below this exponent a weight counts as `exp(LOWEST)` in screens and sums.
const LOWEST: f32 = -86.0;

/// The format of a row of logits.
pub trait Format: Copy + Send + Sync + 'static {
    /// One stored element.
    type Bits: Copy + Send + Sync + 'static;
    /// The element as f32, exactly.
    fn widen(bits: Self::Bits) -> f32;
}

/// IEEE single precision.
#[derive(Clone, Copy, Debug)]
pub struct F32;

/// The upper half of an IEEE single.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

/// IEEE half precision.
#[derive(Clone, Copy, Debug)]
pub struct F16;

impl Format for F32 {
    type Bits = f32;
    #[inline(always)]
    fn widen(bits: f32) -> f32 {
        bits
    }
}

impl Format for Bf16 {
    type Bits = u16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
}

impl Format for F16 {
    type Bits = u16;
    /// Shifting the fields into place leaves the exponent 112 too low; one exact product repairs it
    /// for normal and subnormal numbers, and what lands at 2^16 or above was infinite or NaN.
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
        let magnitude = f32::from_bits((u32::from(bits) & 0x7FFF) << 13) * REBIAS;
        let special = u32::from(magnitude >= 65536.0) * 0x7F80_0000;
        f32::from_bits(magnitude.to_bits() | special | (u32::from(bits) & 0x8000) << 16)
    }
}

/// The SIMD level the loops run at on this machine.
pub fn simd_path() -> &'static str {
    let debug = format!("{:?}", Arch::new());
    match debug.split('(').next().unwrap_or_default() {
        "V4" => "avx512",
        "V3" => "avx2",
        "Neon" | "NeonFcma" => "neon",
        _ => "baseline",
    }
}

/// What one pass over a row finds.
pub(crate) struct Scanned {
    pub(crate) max: f32,
    pub(crate) has_nan: bool,
}

struct Scan<'a, F: Format> {
    row: &'a [F::Bits],
    maxima: &'a mut Vec<f32>,
}

impl<F: Format> WithSimd for Scan<'_, F> {
    type Output = Scanned;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Scanned {
        let mut nan = [0_u32; LANES];
        let mut max = f32::NEG_INFINITY;
        for chunk in self.row.chunks(CHUNK) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            let (whole, rest) = chunk.as_chunks::<LANES>();
            for group in whole {
                for lane in 0..LANES {
                    let value = F::widen(group[lane]);
                    lanes[lane] = if value > lanes[lane] {
                        value
                    } else {
                        lanes[lane]
                    };
                    nan[lane] |= u32::from(value.is_nan());
                }
            }
            for (lane, &bits) in rest.iter().enumerate() {
                let value = F::widen(bits);
                lanes[lane] = if value > lanes[lane] {
                    value
                } else {
                    lanes[lane]
                };
                nan[lane] |= u32::from(value.is_nan());
            }
            let chunk_max = widest(lanes);
            max = if chunk_max > max { chunk_max } else { max };
            self.maxima.push(chunk_max);
        }
        Scanned {
            max,
            has_nan: nan.iter().any(|&lane| lane != 0),
        }
    }
}

#[inline(always)]
fn widest(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            let other = lanes[lane + width];
            lanes[lane] = if other > lanes[lane] {
                other
            } else {
                lanes[lane]
            };
        }
        width /= 2;
    }
    lanes[0]
}

/// One pass: the row's maximum, whether it has a NaN, and the maximum of each chunk in `maxima`.
pub(crate) fn scan<F: Format>(row: &[F::Bits], maxima: &mut Vec<f32>) -> Scanned {
    maxima.clear();
    maxima.reserve(row.len().div_ceil(CHUNK));
    Arch::new().dispatch(Scan::<F> { row, maxima })
}

struct StreamingMax<'a>(&'a [f32]);

impl WithSimd for StreamingMax<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 4 * LANES];
        for group in self.0.as_chunks::<{ 4 * LANES }>().0 {
            for (lane, &value) in lanes.iter_mut().zip(group) {
                *lane = if value > *lane { value } else { *lane };
            }
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// The largest of `values` (a multiple of 64 of them): the floor that benchmarks compare with.
#[doc(hidden)]
pub fn streaming_max(values: &[f32]) -> f32 {
    Arch::new().dispatch(StreamingMax(values))
}

/// The index of the first element equal to the row's maximum.
pub(crate) fn first_max<F: Format>(row: &[F::Bits], maxima: &[f32], max: f32) -> usize {
    let chunk = maxima.iter().position(|&m| m == max).unwrap_or(0);
    let start = chunk * CHUNK;
    let found = row[start..].iter().position(|&bits| F::widen(bits) == max);
    start + found.unwrap_or(0)
}

/// `exp(x)` for `x` in [-86, 0], relative error below 3e-7, the same bits at every SIMD level.
#[inline(always)]
pub(crate) fn exp32(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    let mut value = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        value = value * rest + coefficient;
    }
    f32::from_bits(value.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// How logits become weights: `exp((logit - max) / temperature)`.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) max: f32,
    pub(crate) inverse_temperature: f32,
}

impl Scale {
    /// The scale of a row with this maximum.
    pub(crate) fn new(max: f32, temperature: f64) -> Self {
        Self {
            max,
            inverse_temperature: (1.0 / temperature).min(f64::from(f32::MAX)) as f32,
        }
    }

    /// `(logit - max) / temperature` in f32, at least [`LOWEST`]; monotone in the logit.
    #[inline(always)]
    pub(crate) fn exponent(self, logit: f32) -> f32 {
        let exponent = (logit - self.max) * self.inverse_temperature;
        if exponent > LOWEST { exponent } else { LOWEST }
    }

    /// The weight in f32.
    #[inline(always)]
    pub(crate) fn weight(self, logit: f32) -> f32 {
        exp32(self.exponent(logit))
    }
}
