//! Weights in the order in which a linear reads them.
use bytemuck::{Pod, Zeroable};
use memmap2::{Advice, MmapMut};

use crate::element::Element;

/// Output columns of a panel.
pub(crate) const WIDTH: usize = 32;

/// One step of a panel: a 32-bit cell (a number, or a pair of bfloat16 numbers of
/// neighbouring k) for each of its columns. Two cache lines.
#[repr(C, align(128))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Line(pub(crate) [[u32; 16]; 2]);

/// A weight matrix `[N, K]` as panels of [`WIDTH`] columns; inside a panel k is outermost, so
/// a panel is read once, front to back. Padding is zero.
pub(crate) struct Panels {
    memory: MmapMut,
    steps: usize,
}

impl Panels {
    /// Pack `weight`, row-major `[n, k]`.
    pub(crate) fn new<E: Element>(weight: &[E], n: usize, k: usize) -> Self {
        let (count, steps) = (n.div_ceil(WIDTH), k.div_ceil(E::STEP));
        let bytes = (count * steps).max(1) * size_of::<Line>();
        let mut memory = MmapMut::map_anon(bytes).expect("no memory for the weights");
        // Fewer page-table walks; a system without huge pages may refuse, which is fine.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(Advice::HugePage);
        let lines: &mut [Line] = bytemuck::cast_slice_mut(&mut memory);
        for (p, panel) in lines.chunks_exact_mut(steps.max(1)).take(count).enumerate() {
            let columns = WIDTH.min(n - p * WIDTH);
            for c in 0..columns {
                let column = &weight[(p * WIDTH + c) * k..][..k];
                for (line, cell) in panel.iter_mut().zip(column.chunks(E::STEP)) {
                    line.0[c / 16][c % 16] = E::pack_cell(cell);
                }
            }
        }
        Self { memory, steps }
    }

    /// Panel `index`, one [`Line`] per step.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> &[Line] {
        let lines: &[Line] = bytemuck::cast_slice(&self.memory);
        &lines[index * self.steps..][..self.steps]
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len()
    }
}
