//! Rotary embedding of queries and keys, and the write to the cache.
use super::plan::MAX_DIM;
use super::{AttentionInput, AttentionShape};
use crate::element::Element;
use crate::norm::norm_row;
use crate::shared::Shared;
use crate::simd::{Simd, Work};

/// Where the results go.
#[derive(Clone, Copy)]
pub(super) struct Targets<'a, E> {
    /// `[T, Hq * D]`
    pub(super) queries: Shared<'a, E>,
    pub(super) k_cache: Shared<'a, E>,
    pub(super) v_cache: Shared<'a, E>,
}

/// All rows of one key head with the queries of its group. A key head has its own part of
/// every target, so the heads can be done at the same time, whatever the slots are.
pub(super) struct KvHead<'a, E> {
    pub(super) shape: AttentionShape,
    pub(super) input: &'a AttentionInput<'a, E>,
    pub(super) kv_head: usize,
    pub(super) targets: Targets<'a, E>,
}

impl<S: Simd, E: Element> Work<S> for KvHead<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, s: S) {
        for row in 0..self.input.slots.len() {
            self.row(s, row);
        }
    }
}

/// Cosines and sines of one position, rounded to the dtype.
struct Angle {
    cos: [f32; MAX_DIM / 2],
    sin: [f32; MAX_DIM / 2],
}

impl<E: Element> KvHead<'_, E> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize) {
        let (shape, input) = (self.shape, self.input);
        let (dim, group) = (shape.head_dim, shape.group());
        let angle = self.angle(row);
        let qkv = &input.qkv[row * shape.row()..][..shape.row()];
        let mut head = [E::default(); MAX_DIM];
        let head = &mut head[..dim];
        for query in self.kv_head * group..(self.kv_head + 1) * group {
            normalise(s, &qkv[query * dim..][..dim], input.q_norm, input.eps, head);
            rotate(head, &angle);
            let at = (row * shape.num_heads + query) * dim;
            // SAFETY: only this task has this key head's queries.
            let to = unsafe { self.targets.queries.part(at, dim) };
            to.copy_from_slice(head);
        }
        let key = (shape.num_heads + self.kv_head) * dim;
        normalise(s, &qkv[key..][..dim], input.k_norm, input.eps, head);
        rotate(head, &angle);
        let value = key + shape.num_kv_heads * dim;
        self.write(input.slots[row] as usize, head, &qkv[value..][..dim]);
    }

    #[inline(always)]
    fn angle(&self, row: usize) -> Angle {
        let half = self.shape.head_dim / 2;
        let at = self.input.positions[row] as usize * half;
        let mut angle = Angle {
            cos: [0.0; MAX_DIM / 2],
            sin: [0.0; MAX_DIM / 2],
        };
        for i in 0..half {
            angle.cos[i] = round::<E>(self.input.cos[at + i]);
            angle.sin[i] = round::<E>(self.input.sin[at + i]);
        }
        angle
    }

    /// Key and value to the row's slot.
    #[inline(always)]
    fn write(&self, slot: usize, key: &[E], value: &[E]) {
        let (size, dim) = (self.shape.block_size, self.shape.head_dim);
        let (block, at) = (slot / size, slot % size);
        let tile = (block * self.shape.num_kv_heads + self.kv_head) * self.shape.tile();
        // SAFETY: only this task has this key head's part of a block.
        let keys = unsafe { self.targets.k_cache.part(tile, self.shape.tile()) };
        for (keys, &x) in keys.chunks_exact_mut(size).zip(key) {
            keys[at] = x;
        }
        // SAFETY: as above.
        let values = unsafe { self.targets.v_cache.part(tile + at * dim, dim) };
        values.copy_from_slice(value);
    }
}

/// The head's RMS norm, where the model has one.
#[inline(always)]
fn normalise<S: Simd, E: Element>(s: S, x: &[E], weight: Option<&[E]>, eps: f32, out: &mut [E]) {
    match weight {
        Some(weight) => norm_row(s, x, weight, eps, out),
        None => out.copy_from_slice(x),
    }
}

/// Turn the pairs (i, i + D/2), rounding after each product and after the sum.
#[inline(always)]
fn rotate<E: Element>(head: &mut [E], angle: &Angle) {
    let (low, high) = head.split_at_mut(head.len() / 2);
    for (((low, high), &cos), &sin) in low.iter_mut().zip(high).zip(&angle.cos).zip(&angle.sin) {
        let (a, b) = (low.to_f32(), high.to_f32());
        *low = E::from_f32(round::<E>(a * cos) + round::<E>(-b * sin));
        *high = E::from_f32(round::<E>(b * cos) + round::<E>(a * sin));
    }
}

#[inline(always)]
fn round<E: Element>(x: f32) -> f32 {
    E::from_f32(x).to_f32()
}
