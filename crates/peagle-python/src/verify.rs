//! Verification across the bridge.

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use peagle_core::{self as core, Logits};

use crate::arrays::{array, array_of, matrix};
use crate::errors::raise;
use crate::plan::Plan;

/// What verification found, for the R' requests of a plan that had logits.
#[pyclass(frozen, module = "peagle._core")]
pub(crate) struct Verdicts {
    pub(crate) inner: core::Verdicts,
    /// int64 [R'].
    #[pyo3(get)]
    request_ids: Py<PyArray1<i64>>,
    /// int32 [R' + 1]: tokens of request i are token_ids[starts[i]:starts[i + 1]].
    #[pyo3(get)]
    starts: Py<PyArray1<i32>>,
    /// int32: emitted tokens, not cut at any end condition.
    #[pyo3(get)]
    token_ids: Py<PyArray1<i32>>,
    /// int32 [R']: accepted draft tokens.
    #[pyo3(get)]
    accepted: Py<PyArray1<i32>>,
    /// (request_id, message) of each request whose logits were unusable.
    #[pyo3(get)]
    errors: Py<PyList>,
    /// Draws whose two best scores differed by less than 1e-6 (relative).
    #[pyo3(get)]
    near_ties: u64,
}

impl Verdicts {
    pub(crate) fn new(py: Python<'_>, inner: core::Verdicts) -> PyResult<Self> {
        let failed = inner.request_ids.iter().zip(&inner.errors);
        let errors =
            failed.filter_map(|(id, error)| error.as_ref().map(|error| (id.0, error.to_string())));
        Ok(Self {
            request_ids: array_of(py, &inner.request_ids, |id| id.0),
            starts: array(py, inner.starts.clone()),
            token_ids: array(py, inner.token_ids.clone()),
            accepted: array(py, inner.accepted.clone()),
            errors: PyList::new(py, errors.collect::<Vec<_>>())?.unbind(),
            near_ties: inner.near_ties,
            inner,
        })
    }
}

#[pymethods]
impl Verdicts {
    fn __len__(&self) -> usize {
        self.inner.request_ids.len()
    }

    fn __repr__(&self) -> String {
        format!(
            "Verdicts(requests={}, tokens={}, errors={})",
            self.inner.request_ids.len(),
            self.inner.token_ids.len(),
            self.inner.errors.iter().flatten().count(),
        )
    }
}

/// Verifies each request's token tree by the scheduler's method. Pure, and the GIL is released.
///
/// `logits` is [L, V], one row for each of the plan's `logits_rows`: np.float32 for "float32",
/// np.uint16 views for "bfloat16" and "float16". It is read in place: nothing may write it meanwhile.
/// Temperature 0 follows the argmax (ties to the lowest id). Above it "coupled" follows the target's
/// own draws, exponential races over noise keyed by (seed, token, position); "rejection" and "block"
/// accept sampled drafts against the probabilities that came with them, and unusable ones are an error
/// of their request. A row with NaN, positive infinity or no finite value
/// is an error of its request alone. Large batches of sampled requests share the kernels' number of
/// threads, which changes no result.
///
/// Raises TypeError for another array type, ValueError for another dtype or layout,
/// ShapeMismatchError when the number of rows is not the plan's.
#[pyfunction]
pub(crate) fn verify(
    py: Python<'_>,
    plan: &Bound<'_, Plan>,
    logits: &Bound<'_, PyAny>,
    dtype: &str,
) -> PyResult<Verdicts> {
    let (step, windows) = plan.get().windows();
    let threads = peagle_kernels::num_threads();
    let not_contiguous = |_| PyValueError::new_err("logits is not contiguous");
    let found = if dtype == "float32" {
        let logits = matrix::<f32>("logits", "float32", logits)?;
        let rows = logits.as_array().nrows();
        let values = logits.as_slice().map_err(not_contiguous)?;
        py.detach(|| core::verify::verify(step, windows, Logits::F32(values), rows, threads))
    } else {
        let of_bits = match dtype {
            "bfloat16" => Logits::Bf16,
            "float16" => Logits::F16,
            _ => {
                let message = format!(
                    "dtype is {dtype:?}, expected \"float32\", \"bfloat16\" or \"float16\""
                );
                return Err(PyValueError::new_err(message));
            }
        };
        let logits = matrix::<u16>("logits", "uint16", logits)?;
        let rows = logits.as_array().nrows();
        let values = logits.as_slice().map_err(not_contiguous)?;
        py.detach(|| core::verify::verify(step, windows, of_bits(values), rows, threads))
    };
    Verdicts::new(py, found.map_err(|error| raise(py, &error))?)
}
