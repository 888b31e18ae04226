//! The two model dtypes: `f32` and [`Bf16`].
use bytemuck::{Pod, Zeroable};

use crate::simd::Simd;

/// A bfloat16 number, kept as its bits (numpy side: `uint16`).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Bits as numbers, in place.
    pub fn from_bits(bits: &[u16]) -> &[Self] {
        bytemuck::cast_slice(bits)
    }

    /// Bits as numbers, in place.
    pub fn from_bits_mut(bits: &mut [u16]) -> &mut [Self] {
        bytemuck::cast_slice_mut(bits)
    }
}

/// A dtype that weights, activations and the KV cache may have.
pub trait Element: Lanes {
    /// Name as torch spells it.
    const NAME: &'static str;

    /// The value as `f32` (exact).
    fn to_f32(self) -> f32;

    /// The nearest value of this dtype, ties to even; NaN stays NaN.
    fn from_f32(value: f32) -> Self;
}

/// How a dtype meets the vector unit; not for use outside this crate.
pub trait Lanes: Pod + Default + std::fmt::Debug + Send + Sync {
    /// What one step of a linear reads of one row: a number, or a pair of bfloat16 numbers.
    type X<S: Simd>: Pod + Send + Sync;

    /// Columns of `x` (rows of a panel, too) that one step consumes.
    const STEP: usize;

    /// Load sixteen numbers as `f32` lanes.
    fn load<S: Simd>(s: S, from: &[Self; 16]) -> S::V;

    /// Put `row` (`[K]`) into every `stride`-th place of `to`, zero-padded to whole steps.
    fn pack_row<S: Simd>(s: S, row: &[Self], to: &mut [Self::X<S>], stride: usize);

    /// Interleave `STEP` weights of one output column into a 32-bit cell of a panel.
    fn pack_cell(column: &[Self]) -> u32;

    /// `acc[r] += x[r] * w`, the only arithmetic of a linear.
    fn step<S: Simd, const R: usize>(s: S, w: &[u32; 16], x: &[Self::X<S>; R], acc: &mut [S::V; R]);
}

impl Element for f32 {
    const NAME: &'static str = "float32";

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Lanes for f32 {
    type X<S: Simd> = f32;
    const STEP: usize = 1;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self; 16]) -> S::V {
        s.load(from)
    }

    #[inline(always)]
    fn pack_row<S: Simd>(_: S, row: &[Self], to: &mut [f32], stride: usize) {
        for (cell, &x) in to.iter_mut().step_by(stride).zip(row) {
            *cell = x;
        }
    }

    #[inline(always)]
    fn pack_cell(column: &[Self]) -> u32 {
        column[0].to_bits()
    }

    #[inline(always)]
    fn step<S: Simd, const R: usize>(s: S, w: &[u32; 16], x: &[f32; R], acc: &mut [S::V; R]) {
        let w = s.load(bytemuck::cast_ref(w));
        for (acc, &x) in acc.iter_mut().zip(x) {
            *acc = s.mul_add(s.splat(x), w, *acc);
        }
    }
}

impl Element for Bf16 {
    const NAME: &'static str = "bfloat16";

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        Self(if value.is_nan() { quiet } else { rounded } as u16)
    }
}

impl Lanes for Bf16 {
    type X<S: Simd> = S::Pair;
    const STEP: usize = 2;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self; 16]) -> S::V {
        s.load_bf16(bytemuck::cast_ref(from))
    }

    #[inline(always)]
    fn pack_row<S: Simd>(s: S, row: &[Self], to: &mut [S::Pair], stride: usize) {
        let (pairs, odd) = row.as_chunks::<2>();
        let mut cells = to.iter_mut().step_by(stride);
        for (pair, cell) in pairs.iter().zip(cells.by_ref()) {
            *cell = s.pair(pair[0].0, pair[1].0);
        }
        if let (Some(cell), Some(last)) = (cells.next(), odd.first()) {
            *cell = s.pair(last.0, 0);
        }
    }

    #[inline(always)]
    fn pack_cell(column: &[Self]) -> u32 {
        let high = column.get(1).map_or(0, |w| w.0);
        u32::from(column[0].0) | u32::from(high) << 16
    }

    #[inline(always)]
    fn step<S: Simd, const R: usize>(s: S, w: &[u32; 16], x: &[S::Pair; R], acc: &mut [S::V; R]) {
        let w = s.load_pairs(w);
        for (acc, &x) in acc.iter_mut().zip(x) {
            *acc = s.dot(x, w, *acc);
        }
    }
}
