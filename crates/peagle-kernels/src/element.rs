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

    /// What one step multiplies it with, for sixteen columns.
    type Cells<S: Simd>: Copy;

    /// Columns of `x` (rows of a panel, too) that one step consumes.
    const STEP: usize;

    /// Load sixteen numbers as `f32` lanes.
    fn load<S: Simd>(s: S, from: &[Self; 16]) -> S::V;

    /// Turn columns of a row into what steps read; the last step may be short of columns.
    fn pack_row<S: Simd>(s: S, row: &[Self], to: &mut [Self::X<S>]);

    /// Interleave `STEP` weights of one output column into a 32-bit cell of a panel.
    fn pack_cell(column: &[Self]) -> u32;

    /// One step of a panel's sixteen columns.
    fn cells<S: Simd>(s: S, cells: &[u32; 16]) -> Self::Cells<S>;

    /// The same out of `STEP` rows of sixteen numbers that are `stride` apart.
    fn cells_of_rows<S: Simd>(s: S, rows: &[Self], stride: usize) -> Self::Cells<S>;

    /// `acc + x * cells`: the only arithmetic of a linear, and of scores.
    fn dot<S: Simd>(s: S, x: Self::X<S>, cells: Self::Cells<S>, acc: S::V) -> S::V;
}

/// The first sixteen numbers.
#[inline(always)]
pub(crate) fn sixteen<E>(from: &[E]) -> &[E; 16] {
    from.first_chunk().expect("sixteen numbers")
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
    type Cells<S: Simd> = S::V;
    const STEP: usize = 1;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self; 16]) -> S::V {
        s.load(from)
    }

    #[inline(always)]
    fn pack_row<S: Simd>(_: S, row: &[Self], to: &mut [f32]) {
        to[..row.len()].copy_from_slice(row);
    }

    #[inline(always)]
    fn pack_cell(column: &[Self]) -> u32 {
        column[0].to_bits()
    }

    #[inline(always)]
    fn cells<S: Simd>(s: S, cells: &[u32; 16]) -> S::V {
        s.load(bytemuck::cast_ref(cells))
    }

    #[inline(always)]
    fn cells_of_rows<S: Simd>(s: S, rows: &[f32], _: usize) -> S::V {
        s.load(sixteen(rows))
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, x: f32, cells: S::V, acc: S::V) -> S::V {
        s.mul_add(s.splat(x), cells, acc)
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
    type Cells<S: Simd> = S::Weights;
    const STEP: usize = 2;

    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[Self; 16]) -> S::V {
        s.load_bf16(bytemuck::cast_ref(from))
    }

    #[inline(always)]
    fn pack_row<S: Simd>(s: S, row: &[Self], to: &mut [S::Pair]) {
        let (pairs, odd) = row.as_chunks::<2>();
        for (cell, pair) in to.iter_mut().zip(pairs) {
            *cell = s.pair(pair[0].0, pair[1].0);
        }
        if let Some(last) = odd.first() {
            to[pairs.len()] = s.pair(last.0, 0);
        }
    }

    #[inline(always)]
    fn pack_cell(column: &[Self]) -> u32 {
        let high = column.get(1).map_or(0, |w| w.0);
        u32::from(column[0].0) | u32::from(high) << 16
    }

    #[inline(always)]
    fn cells<S: Simd>(s: S, cells: &[u32; 16]) -> S::Weights {
        s.load_pairs(cells)
    }

    #[inline(always)]
    fn cells_of_rows<S: Simd>(s: S, rows: &[Self], stride: usize) -> S::Weights {
        let (low, high) = (sixteen(rows), sixteen(&rows[stride..]));
        s.join_pairs(bytemuck::cast_ref(low), bytemuck::cast_ref(high))
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, x: S::Pair, cells: S::Weights, acc: S::V) -> S::V {
        s.dot(x, cells, acc)
    }
}
