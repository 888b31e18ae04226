//! RMS normalisation and the gate of the feed-forward block, rounded as Hugging Face does.
use crate::element::Element;
use crate::error::{KernelError, check_len};
use crate::math::{exp, sum_lanes};
use crate::pool;
use crate::shared::Shared;
use crate::simd::{Dispatch, Level, Simd, Work};

/// Rows of `rms_norm` per task.
const ROWS: usize = 16;

/// `out[m] = round(x[m] / sqrt(mean(x[m]^2) + eps)) * weight`, rows of `weight.len()`.
///
/// `x` and `out` are `[M, K]`, `weight` is `[K]`. Sums are `f32` in an order that depends on
/// K alone; the normalised value is rounded to the dtype before the product, and the product
/// after it.
pub fn rms_norm<E: Element>(
    x: &[E],
    weight: &[E],
    eps: f32,
    out: &mut [E],
) -> Result<(), KernelError> {
    rms_norm_at(Level::best(), x, weight, eps, out)
}

/// [`rms_norm`] at a chosen CPU level.
pub fn rms_norm_at<E: Element>(
    level: Level,
    x: &[E],
    weight: &[E],
    eps: f32,
    out: &mut [E],
) -> Result<(), KernelError> {
    let k = weight.len();
    check_len("out", out.len(), x.len())?;
    if k == 0 || !x.len().is_multiple_of(k) {
        let rule = "the length of the rows of x, at least 1";
        return Err(KernelError::Size {
            what: "weight",
            got: k as i64,
            rule,
        });
    }
    let rows = x.len() / k;
    level.run(NormAll {
        x,
        weight,
        eps,
        out: Shared::new(out),
        rows,
    });
    Ok(())
}

struct NormAll<'a, E> {
    x: &'a [E],
    weight: &'a [E],
    eps: f32,
    out: Shared<'a, E>,
    rows: usize,
}

impl<E: Element> Dispatch for NormAll<'_, E> {
    fn run<S: Simd>(self, s: S) {
        let k = self.weight.len();
        pool::run(self.rows.div_ceil(ROWS), |task| {
            let from = task * ROWS;
            let count = ROWS.min(self.rows - from);
            // SAFETY: each task has its own rows.
            let out = unsafe { self.out.part(from * k, count * k) };
            let x = &self.x[from * k..][..count * k];
            s.enter(NormRows {
                x,
                weight: self.weight,
                eps: self.eps,
                out,
            });
        });
    }
}

struct NormRows<'a, E> {
    x: &'a [E],
    weight: &'a [E],
    eps: f32,
    out: &'a mut [E],
}

impl<S: Simd, E: Element> Work<S> for NormRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, s: S) {
        let k = self.weight.len();
        for (x, out) in self.x.chunks_exact(k).zip(self.out.chunks_exact_mut(k)) {
            norm_row(s, x, self.weight, self.eps, out);
        }
    }
}

/// One row of [`rms_norm`].
#[inline(always)]
pub(crate) fn norm_row<S: Simd, E: Element>(s: S, x: &[E], weight: &[E], eps: f32, out: &mut [E]) {
    let scale = 1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        let normalised = E::from_f32(x.to_f32() * scale);
        *out = E::from_f32(normalised.to_f32() * weight.to_f32());
    }
}

/// Vector j of sixteen numbers goes to accumulator j % 4, a short last one lane by lane.
#[inline(always)]
fn sum_of_squares<S: Simd, E: Element>(s: S, x: &[E]) -> f32 {
    let mut acc = [s.splat(0.0); 4];
    let (vectors, rest) = x.as_chunks::<16>();
    let (groups, last) = vectors.as_chunks::<4>();
    for group in groups {
        for (acc, vector) in acc.iter_mut().zip(group) {
            let v = E::load(s, vector);
            *acc = s.mul_add(v, v, *acc);
        }
    }
    for (acc, vector) in acc.iter_mut().zip(last) {
        let v = E::load(s, vector);
        *acc = s.mul_add(v, v, *acc);
    }
    let mut short = [E::default(); 16];
    short[..rest.len()].copy_from_slice(rest);
    let v = E::load(s, &short);
    acc[3] = s.mul_add(v, v, acc[3]);
    let mut lanes = [0.0; 16];
    s.store(
        s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])),
        &mut lanes,
    );
    sum_lanes(lanes)
}

/// `out[i] = round(silu(gate[i])) * up[i]` for one row `gate_up = [gate | up]`.
#[inline(always)]
pub(crate) fn silu_row<S: Simd, E: Element>(s: S, gate_up: &[E], out: &mut [E]) {
    let (gate, up) = gate_up.split_at(out.len());
    let (gates, rest) = gate.as_chunks::<16>();
    let whole = gates.len() * 16;
    let (outs, out_rest) = out.as_chunks_mut::<16>();
    let (ups, _) = up.as_chunks::<16>();
    for ((out, gate), up) in outs.iter_mut().zip(gates).zip(ups) {
        *out = silu_times(s, gate, up);
    }
    let mut short = [[E::default(); 16]; 2];
    short[0][..rest.len()].copy_from_slice(rest);
    short[1][..rest.len()].copy_from_slice(&up[whole..]);
    let last = silu_times(s, &short[0], &short[1]);
    out_rest.copy_from_slice(&last[..rest.len()]);
}

#[inline(always)]
fn silu_times<S: Simd, E: Element>(s: S, gate: &[E; 16], up: &[E; 16]) -> [E; 16] {
    let x = E::load(s, gate);
    let e = exp(s, s.sub(s.splat(0.0), x));
    let mut lanes = [0.0; 16];
    s.store(s.div(x, s.add(s.splat(1.0), e)), &mut lanes);
    let mut product = [E::default(); 16];
    for i in 0..16 {
        product[i] = E::from_f32(E::from_f32(lanes[i]).to_f32() * up[i].to_f32());
    }
    product
}
