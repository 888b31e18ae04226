//! The CPU kernels across the bridge: numpy arrays are read and written in place.
//!
//! bfloat16 arrays travel as their bits, uint16. Every array is C-contiguous.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use peagle_kernels::{self as kernels, Bf16, Level};

mod attention;
mod buffers;
mod linear;

use buffers::{ANY, Model, Write, is_bf16, read, refuse, write};
use linear::PackedLinear;

/// out [M, K] = round(x / sqrt(mean(x^2) + eps)) * weight [K], row by row; float32 inside.
///
/// uint16 arrays are bfloat16. Raises ValueError for a wrong shape, TypeError for a wrong dtype.
#[pyfunction]
fn rms_norm(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    weight: &Bound<'_, PyAny>,
    eps: f32,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    fn typed<E: Model>(
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        weight: &Bound<'_, PyAny>,
        eps: f32,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let x = read::<E>("x", x, &[ANY, ANY])?;
        let weight = read::<E>("weight", weight, &[x.axis(1)])?;
        let mut out = write::<E>("out", out, &[x.axis(0), x.axis(1)])?;
        let (x, weight) = (E::wrap(x.slice()), E::wrap(weight.slice()));
        let out = E::wrap_mut(out.slice());
        py.detach(|| kernels::rms_norm(x, weight, eps, out))
            .map_err(|error| refuse(&error))
    }
    if is_bf16(x) {
        typed::<Bf16>(py, x, weight, eps, out)
    } else {
        typed::<f32>(py, x, weight, eps, out)
    }
}

/// The `width` greatest entries of each row of logits float32 [M, N]: log probabilities, descending,
/// into log_probs float32 [M, width], indices into ids int32 [M, width]; the lower index comes first
/// in a tie.
///
/// A row with a NaN has NaN log probabilities. Raises ValueError for a wrong shape or width.
#[pyfunction]
fn top_log_probs(
    py: Python<'_>,
    logits: &Bound<'_, PyAny>,
    width: usize,
    log_probs: &Bound<'_, PyAny>,
    ids: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let logits = read::<f32>("logits", logits, &[ANY, ANY])?;
    let mut log_probs = write::<f32>("log_probs", log_probs, &[logits.axis(0), width])?;
    let mut ids = Write::<i32>::new("ids", "int32", ids, &[logits.axis(0), width])?;
    let vocab = logits.axis(1);
    let (logits, log_probs, ids) = (logits.slice(), log_probs.slice(), ids.slice());
    py.detach(|| kernels::top_log_probs(logits, vocab, width, log_probs, ids))
        .map_err(|error| refuse(&error))
}

/// Threads the CPU kernels use from now on, the caller's among them. Bits do not depend on it.
#[pyfunction]
fn set_num_threads(py: Python<'_>, threads: usize) -> PyResult<()> {
    if threads == 0 {
        return Err(PyValueError::new_err(
            "threads is 0, but must be at least 1",
        ));
    }
    py.detach(|| kernels::set_num_threads(threads));
    Ok(())
}

/// Threads the CPU kernels use; at first one per available core.
#[pyfunction]
fn num_threads() -> usize {
    kernels::num_threads()
}

/// The instructions the CPU kernels use: "avx512_bf16", "avx512", "avx2" or "baseline".
#[pyfunction]
fn simd_level() -> &'static str {
    Level::best().name()
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PackedLinear>()?;
    attention::register(module)?;
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(top_log_probs, module)?)?;
    module.add_function(wrap_pyfunction!(set_num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(simd_level, module)?)
}
