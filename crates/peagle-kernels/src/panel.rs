//! Weights in the order in which a linear reads them.
use bytemuck::{Pod, Zeroable};

use crate::arena::Block;
use crate::element::Element;

/// Output columns of a panel.
pub(crate) const WIDTH: usize = 16;

/// One step of a panel: a 32-bit cell (a number, or a pair of bfloat16 numbers of
/// neighbouring k) for each of its columns. One cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Line(pub(crate) [u32; WIDTH]);

/// A weight matrix `[N, K]` as panels of [`WIDTH`] columns; inside a panel k is outermost, so
/// a panel is read once, front to back. Padding is zero.
pub(crate) struct Panels {
    memory: Block,
    steps: usize,
}

impl Panels {
    /// Pack `weight`, row-major `[n, k]`.
    pub(crate) fn new<E: Element>(weight: &[E], n: usize, k: usize) -> Self {
        let (count, steps) = (n.div_ceil(WIDTH), k.div_ceil(E::STEP));
        let bytes = (count * steps).max(1) * size_of::<Line>();
        let mut memory = Block::new(bytes);
        let lines: &mut [Line] = bytemuck::cast_slice_mut(memory.bytes_mut());
        for (p, panel) in lines.chunks_exact_mut(steps.max(1)).take(count).enumerate() {
            let columns = WIDTH.min(n - p * WIDTH);
            for c in 0..columns {
                let column = &weight[(p * WIDTH + c) * k..][..k];
                for (line, cell) in panel.iter_mut().zip(column.chunks(E::STEP)) {
                    line.0[c] = E::pack_cell(cell);
                }
            }
        }
        Self { memory, steps }
    }

    /// Panel `index`, one [`Line`] per step.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> &[Line] {
        let lines: &[Line] = bytemuck::cast_slice(self.memory.bytes());
        &lines[index * self.steps..][..self.steps]
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes().len()
    }
}
