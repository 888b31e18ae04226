//! Linear layers with packed weights, and the operations fused into them.
//!
//! An output element is one accumulator that runs over k upwards (see [`crate::tile`]), then
//! `+ bias`, then `+ residual`, then one rounding. Neither the number of rows, nor the tiles
//! they fall into, nor the threads have a say in its value.
use std::ops::Range;

use crate::element::Element;
use crate::error::{KernelError, check_len};
use crate::norm::{norm_row, silu_row};
use crate::panel::{Line, Panels, WIDTH};
use crate::pool::{self, Claims};
use crate::scratch::{Buffer, lend};
use crate::shared::Shared;
use crate::simd::{Dispatch, Level, Simd, Work};
use crate::tile::{MAX_ROWS, STEPS, multiply, padded};

/// Packed activations are kept below this, so that they stay in the L2 cache.
const BLOCK_BYTES: usize = 512 << 10;

/// Panels that tile after tile meets while they stay in the L2 cache.
const GROUP_BYTES: usize = 128 << 10;

/// Most numbers of `x` that each thread packs for itself.
const PACK_ALONE: usize = 1 << 15;

/// `out = x W^T + b`, with `W` packed once.
pub struct PackedLinear<E> {
    level: Level,
    panels: Panels,
    bias: Option<Vec<f32>>,
    n: usize,
    k: usize,
    dtype: std::marker::PhantomData<E>,
}

/// What is done to a row before the product.
#[derive(Clone, Copy)]
enum Input<'a, E> {
    /// Rows `[K]` as they are.
    Plain,
    /// Rows `[K]`, RMS-normalised.
    Norm { weight: &'a [E], eps: f32 },
    /// Rows `[2K]`: silu of the first half times the second.
    Silu,
}

/// Where the sums go.
#[derive(Clone, Copy)]
enum Output<'a, E> {
    Store(Shared<'a, E>),
    StoreF32(Shared<'a, f32>),
    Add(Shared<'a, E>),
}

impl<E: Element> PackedLinear<E> {
    /// Pack `weight` (row-major `[n, k]`) and `bias` (`[n]`).
    pub fn new(weight: &[E], bias: Option<&[E]>, n: usize, k: usize) -> Result<Self, KernelError> {
        Self::with_level(Level::best(), weight, bias, n, k)
    }

    /// [`PackedLinear::new`] for a chosen CPU level.
    pub fn with_level(
        level: Level,
        weight: &[E],
        bias: Option<&[E]>,
        n: usize,
        k: usize,
    ) -> Result<Self, KernelError> {
        for (what, size) in [("out_features", n), ("in_features", k)] {
            if size == 0 {
                return Err(KernelError::Size {
                    what,
                    got: 0,
                    rule: "at least 1",
                });
            }
        }
        check_len("weight", weight.len(), n * k)?;
        if let Some(bias) = bias {
            check_len("bias", bias.len(), n)?;
        }
        let bias = bias.map(|bias| bias.iter().map(|b| b.to_f32()).collect());
        let panels = Panels::new(weight, n, k);
        Ok(Self {
            level,
            panels,
            bias,
            n,
            k,
            dtype: std::marker::PhantomData,
        })
    }

    /// K, the length of an input row.
    pub fn in_features(&self) -> usize {
        self.k
    }

    /// N, the length of an output row.
    pub fn out_features(&self) -> usize {
        self.n
    }

    /// Bytes of packed weights: what one call reads at least.
    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }

    /// `out = x W^T + b`, rounded once; `x` is `[M, K]`, `out` is `[M, N]`.
    pub fn forward(&self, x: &[E], out: &mut [E]) -> Result<(), KernelError> {
        let m = self.check(x, self.k, out.len())?;
        self.run(x, m, Input::Plain, Output::Store(Shared::new(out)));
        Ok(())
    }

    /// [`PackedLinear::forward`] without the rounding.
    pub fn forward_f32(&self, x: &[E], out: &mut [f32]) -> Result<(), KernelError> {
        let m = self.check(x, self.k, out.len())?;
        self.run(x, m, Input::Plain, Output::StoreF32(Shared::new(out)));
        Ok(())
    }

    /// `out = rms_norm(x) W^T + b`; `norm_weight` is `[K]`.
    pub fn forward_norm(
        &self,
        x: &[E],
        norm_weight: &[E],
        eps: f32,
        out: &mut [E],
    ) -> Result<(), KernelError> {
        check_len("norm_weight", norm_weight.len(), self.k)?;
        let m = self.check(x, self.k, out.len())?;
        let input = Input::Norm {
            weight: norm_weight,
            eps,
        };
        self.run(x, m, input, Output::Store(Shared::new(out)));
        Ok(())
    }

    /// [`PackedLinear::forward_norm`] without the last rounding.
    pub fn forward_norm_f32(
        &self,
        x: &[E],
        norm_weight: &[E],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len("norm_weight", norm_weight.len(), self.k)?;
        let m = self.check(x, self.k, out.len())?;
        let input = Input::Norm {
            weight: norm_weight,
            eps,
        };
        self.run(x, m, input, Output::StoreF32(Shared::new(out)));
        Ok(())
    }

    /// `residual += x W^T + b`, rounded once; `residual` is `[M, N]`.
    pub fn forward_add(&self, x: &[E], residual: &mut [E]) -> Result<(), KernelError> {
        let m = self.check(x, self.k, residual.len())?;
        self.run(x, m, Input::Plain, Output::Add(Shared::new(residual)));
        Ok(())
    }

    /// `residual += (silu(gate) * up) W^T + b`, rounded once; `gate_up` is `[M, 2K]`, gate
    /// first, `residual` is `[M, N]`.
    pub fn forward_silu_add(&self, gate_up: &[E], residual: &mut [E]) -> Result<(), KernelError> {
        let m = self.check(gate_up, 2 * self.k, residual.len())?;
        self.run(gate_up, m, Input::Silu, Output::Add(Shared::new(residual)));
        Ok(())
    }

    /// The number of rows of `x`, if the lengths agree.
    fn check(&self, x: &[E], width: usize, out: usize) -> Result<usize, KernelError> {
        let m = x.len() / width;
        check_len("x", x.len(), m * width)?;
        check_len("out", out, m * self.n)?;
        Ok(m)
    }

    fn run(&self, x: &[E], m: usize, input: Input<'_, E>, output: Output<'_, E>) {
        let width = x.len() / m.max(1);
        let most = (BLOCK_BYTES / (self.k * size_of::<E>())).max(4 * MAX_ROWS);
        let blocks = m.div_ceil(most).max(1);
        for block in 0..blocks {
            let (from, to) = (m * block / blocks, m * (block + 1) / blocks);
            let x = &x[from * width..to * width];
            let call = Call {
                linear: self,
                x,
                first: from,
                rows: to - from,
                input,
                output,
            };
            self.level.run(call);
        }
    }
}

/// Some rows of one call: they are packed, then every panel meets all of them.
struct Call<'a, E> {
    linear: &'a PackedLinear<E>,
    x: &'a [E],
    /// Row of the output where these begin.
    first: usize,
    rows: usize,
    input: Input<'a, E>,
    output: Output<'a, E>,
}

thread_local! {
    /// Packed activations of the call that this thread makes.
    static PACKED: Buffer = const { Buffer::new(Vec::new()) };
    /// A row after its [`Input`] operation.
    static ROW: Buffer = const { Buffer::new(Vec::new()) };
}

impl<E: Element> Dispatch for Call<'_, E> {
    fn run<S: Simd>(self, s: S) {
        let panels = self.linear.n.div_ceil(WIDTH);
        let cells = self.rows * padded(self.linear.k.div_ceil(E::STEP));
        let multiply = |packed: &[E::X<S>], claims: &mut Claims<'_>| {
            for panels in claims {
                s.enter(SomePanels::<S, E> {
                    call: &self,
                    packed,
                    panels,
                });
            }
        };
        if self.rows * self.linear.k <= PACK_ALONE {
            // Each thread packs for itself: less work than to fetch it from another core.
            pool::run_claims(panels, |claims| {
                lend::<E::X<S>, _>(&PACKED, cells, |packed| {
                    self.pack(s, 0..self.rows, Shared::new(packed));
                    multiply(packed, claims);
                });
            });
        } else {
            lend::<E::X<S>, _>(&PACKED, cells, |packed| {
                let shared = Shared::new(packed);
                pool::run(self.rows, |row| self.pack(s, row..row + 1, shared));
                pool::run_claims(panels, |claims| multiply(packed, claims));
            });
        }
    }
}

impl<E: Element> Call<'_, E> {
    /// Register tiles, as even as they come.
    fn tiles<S: Simd>(&self) -> usize {
        self.rows.div_ceil(S::MAX_ROWS)
    }

    /// Rows of one tile.
    fn tile<S: Simd>(&self, index: usize) -> Range<usize> {
        let tiles = self.tiles::<S>();
        self.rows * index / tiles..self.rows * (index + 1) / tiles
    }

    /// Fill the places of some rows in `packed`: tile after tile, inside as [`multiply`] wants.
    fn pack<S: Simd>(&self, s: S, rows: Range<usize>, packed: Shared<'_, E::X<S>>) {
        lend::<E, _>(&ROW, self.linear.k, |buffer| {
            // Entered here: a closure does not have the level's instructions.
            s.enter(SomeRows {
                call: self,
                rows,
                packed,
                buffer,
            });
        });
    }
}

/// Pack some rows.
struct SomeRows<'a, S: Simd, E: Element> {
    call: &'a Call<'a, E>,
    rows: Range<usize>,
    packed: Shared<'a, E::X<S>>,
    /// A row after its [`Input`] operation.
    buffer: &'a mut [E],
}

impl<S: Simd, E: Element> Work<S> for SomeRows<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, s: S) {
        let Self {
            call,
            rows,
            packed,
            buffer,
        } = self;
        let k = call.linear.k;
        let cells = padded(k.div_ceil(E::STEP));
        let mut tile = 0;
        for index in rows {
            while index >= call.tile::<S>(tile).end {
                tile += 1;
            }
            let tile = call.tile::<S>(tile);
            let row = match call.input {
                Input::Plain => &call.x[index * k..][..k],
                Input::Norm { weight, eps } => {
                    norm_row(s, &call.x[index * k..][..k], weight, eps, buffer);
                    &*buffer
                }
                Input::Silu => {
                    silu_row(s, &call.x[index * 2 * k..][..2 * k], buffer);
                    &*buffer
                }
            };
            for (block, row) in row.chunks(STEPS * E::STEP).enumerate() {
                let at = tile.start * cells + (block * tile.len() + index - tile.start) * STEPS;
                // SAFETY: only this task has this row's part of a block.
                E::pack_row(s, row, unsafe { packed.part(at, STEPS) });
            }
        }
    }
}

/// All rows of a call times some panels.
struct SomePanels<'a, S: Simd, E: Element> {
    call: &'a Call<'a, E>,
    packed: &'a [E::X<S>],
    panels: Range<usize>,
}

impl<S: Simd, E: Element> Work<S> for SomePanels<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, s: S) {
        let Self {
            call,
            packed,
            panels,
        } = self;
        let steps = call.linear.k.div_ceil(E::STEP);
        let cells = padded(steps);
        let group = (GROUP_BYTES / size_of::<Line>() / steps).max(1);
        let mut sums = [[0.0; WIDTH]; MAX_ROWS];
        for first in panels.clone().step_by(group) {
            for index in 0..call.tiles::<S>() {
                let rows = call.tile::<S>(index);
                let sums = &mut sums[..rows.len()];
                let x = &packed[rows.start * cells..rows.end * cells];
                for panel in first..(first + group).min(panels.end) {
                    multiply::<S, E>(s, call.linear.panels.get(panel), x, sums);
                    call.finish(rows.start, panel, sums);
                }
            }
        }
    }
}

impl<E: Element> Call<'_, E> {
    /// Bias, residual, rounding and store of a panel's columns, of the rows from `first` on.
    #[inline(always)]
    fn finish(&self, first: usize, panel: usize, sums: &mut [[f32; WIDTH]]) {
        let n = self.linear.n;
        let column = panel * WIDTH;
        let columns = WIDTH.min(n - column);
        if let Some(bias) = &self.linear.bias {
            for sums in &mut *sums {
                add(sums, &bias[column..]);
            }
        }
        let at = (self.first + first) * n + column;
        // SAFETY, thrice: only this task has these columns of these rows.
        match self.output {
            Output::Store(out) => {
                for (i, sums) in sums.iter().enumerate() {
                    round_to(unsafe { out.part(at + i * n, columns) }, sums);
                }
            }
            Output::StoreF32(out) => {
                for (i, sums) in sums.iter().enumerate() {
                    copy_to(unsafe { out.part(at + i * n, columns) }, sums);
                }
            }
            Output::Add(out) => {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let out = unsafe { out.part(at + i * n, columns) };
                    add(sums, out);
                    round_to(out, sums);
                }
            }
        }
    }
}

// Whole vectors have paths of their own below: a loop of a length known only at run time
// costs as much as the product itself.

/// `sums += from`, as far as it reaches.
#[inline(always)]
fn add<T: Element>(sums: &mut [f32; WIDTH], from: &[T]) {
    if let Some(from) = from.first_chunk::<WIDTH>() {
        for (sum, x) in sums.iter_mut().zip(from) {
            *sum += x.to_f32();
        }
    } else {
        for (sum, x) in sums.iter_mut().zip(from) {
            *sum += x.to_f32();
        }
    }
}

#[inline(always)]
fn round_to<E: Element>(out: &mut [E], sums: &[f32; WIDTH]) {
    let mut rounded = [E::default(); WIDTH];
    for (rounded, &sum) in rounded.iter_mut().zip(sums) {
        *rounded = E::from_f32(sum);
    }
    copy_to(out, &rounded);
}

#[inline(always)]
fn copy_to<T: Copy>(out: &mut [T], from: &[T; WIDTH]) {
    if let Some(out) = out.first_chunk_mut::<WIDTH>() {
        *out = *from;
    } else {
        out.copy_from_slice(&from[..out.len()]);
    }
}
