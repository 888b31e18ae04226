//! Rows that torch draws from on a device: their parameters out, the draws in.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use peagle_core::distribution::Draw;
use peagle_core::drawn::{BadRow, verify_drawn};
use peagle_core::{self as core, NoiseKey, Purpose, Window};

use crate::arrays::{array, array_of, slice};
use crate::errors::raise;
use crate::plan::Plan;
use crate::verify::Verdicts;

/// What draws from the rows of a plan depend on besides the logits; L rows.
#[pyclass(frozen, module = "peagle._core")]
pub(crate) struct RowParameters {
    /// float64 [L]; 0 = greedy.
    #[pyo3(get)]
    temperature: Py<PyArray1<f64>>,
    /// int64 [L]; 0 = all.
    #[pyo3(get)]
    top_k: Py<PyArray1<i64>>,
    /// float64 [L]; 1 = all.
    #[pyo3(get)]
    top_p: Py<PyArray1<f64>>,
    /// float64 [L]; 0 = none.
    #[pyo3(get)]
    min_p: Py<PyArray1<f64>>,
    /// uint32 [L, 2]: the keys of the noise.
    #[pyo3(get)]
    keys: Py<PyArray2<u32>>,
    /// int32 [L]: absolute positions of the tokens to be drawn.
    #[pyo3(get)]
    positions: Py<PyArray1<i32>>,
}

/// The parameters of the rows of a plan that have logits, in order. Raises ValueError for a plan whose
/// `needs_logits` is set.
#[pyfunction]
pub(crate) fn row_parameters(py: Python<'_>, plan: &Bound<'_, Plan>) -> PyResult<RowParameters> {
    let (_, windows) = plan.get().windows();
    if windows.iter().any(Window::needs_logits) {
        let message = "the plan needs its logits, expected one that needs draws alone";
        return Err(PyValueError::new_err(message));
    }
    let depths = |window: &Window| {
        let mut depths = window.tree.depths();
        depths.insert(0, 0);
        depths
    };
    let rows: Vec<(&Window, i32)> = windows
        .iter()
        .flat_map(|window| depths(window).into_iter().map(move |depth| (window, depth)))
        .collect();
    let keys = rows
        .iter()
        .flat_map(|(window, _)| window.seed.key(Purpose::Sample).words());
    let keys = PyArray1::from_vec(py, keys.collect()).reshape([rows.len(), 2])?;
    Ok(RowParameters {
        temperature: array_of(py, &rows, |(window, _)| window.sampling.temperature),
        top_k: array_of(py, &rows, |(window, _)| i64::from(window.sampling.top_k)),
        top_p: array_of(py, &rows, |(window, _)| window.sampling.top_p),
        min_p: array_of(py, &rows, |(window, _)| window.sampling.min_p),
        keys: keys.unbind(),
        positions: array_of(py, &rows, |(window, depth)| window.position + depth),
    })
}

/// Walks each request's token tree over draws that were made on a device.
///
/// `token_ids` int32 [L], `near_ties` bool [L] and `errors` uint8 [L] are those of the plan's
/// `logits_rows`; an error is 0 for none, 1 for a NaN in the row, 2 for positive infinity, 3 for no
/// finite value, and counts only where the walk reaches it. Raises ShapeMismatchError for other
/// lengths, ValueError for another error code.
#[pyfunction]
pub(crate) fn verify_drawn_rows(
    py: Python<'_>,
    plan: &Bound<'_, Plan>,
    token_ids: &Bound<'_, PyArray1<i32>>,
    near_ties: &Bound<'_, PyArray1<bool>>,
    errors: &Bound<'_, PyArray1<u8>>,
) -> PyResult<Verdicts> {
    let (token_ids, near_ties) = (token_ids.readonly(), near_ties.readonly());
    let errors = errors.readonly();
    let token_ids = slice("token_ids", &token_ids)?;
    let near_ties = slice("near_ties", &near_ties)?;
    let errors = slice("errors", &errors)?;
    for (name, len) in [("near_ties", near_ties.len()), ("errors", errors.len())] {
        if len != token_ids.len() {
            let mismatch = core::Error::ShapeMismatch {
                name,
                got: len as i64,
                expected: token_ids.len() as i64,
            };
            return Err(raise(py, &mismatch));
        }
    }
    let draws = token_ids.iter().zip(near_ties);
    let rows = draws.zip(errors).map(|((&token, &near_tie), &error)| {
        Ok(match error {
            0 => Ok(Draw { token, near_tie }),
            1 => Err(BadRow::Nan),
            2 => Err(BadRow::Infinite),
            3 => Err(BadRow::Masked),
            _ => {
                let message = format!("error code is {error}, expected 0 to 3");
                return Err(PyValueError::new_err(message));
            }
        })
    });
    let rows: Vec<_> = rows.collect::<PyResult<_>>()?;
    let (step, windows) = plan.get().windows();
    let found = py.detach(|| verify_drawn(step, windows, &rows));
    Verdicts::new(py, found.map_err(|error| raise(py, &error))?)
}

/// The 64 noise bits of each pair of a token and a position, uint64 [N].
///
/// `token_ids` and `positions` are uint32 [N]. `purpose` is 0 for the target's own sample, 1 for a
/// drafter's draw, 2 for the coin that accepts, 3 for the residual, 4 for the bonus token.
#[pyfunction]
pub(crate) fn noise_bits(
    py: Python<'_>,
    seed: u64,
    sample: u32,
    purpose: u32,
    token_ids: &Bound<'_, PyArray1<u32>>,
    positions: &Bound<'_, PyArray1<u32>>,
) -> PyResult<Py<PyArray1<u64>>> {
    let Some(purpose) = Purpose::from_number(purpose) else {
        let message = format!("purpose is {purpose}, expected 0 to 4");
        return Err(PyValueError::new_err(message));
    };
    let key = NoiseKey::new(seed, sample, purpose);
    let (token_ids, positions) = (token_ids.readonly(), positions.readonly());
    let token_ids = slice("token_ids", &token_ids)?;
    let positions = slice("positions", &positions)?;
    if positions.len() != token_ids.len() {
        let mismatch = core::Error::ShapeMismatch {
            name: "number of positions",
            got: positions.len() as i64,
            expected: token_ids.len() as i64,
        };
        return Err(raise(py, &mismatch));
    }
    let pairs = token_ids.iter().zip(positions);
    let bits = pairs.map(|(&token, &position)| key.bits(token, position));
    Ok(array(py, bits.collect()))
}

/// Adds the functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RowParameters>()?;
    module.add_function(wrap_pyfunction!(row_parameters, module)?)?;
    module.add_function(wrap_pyfunction!(verify_drawn_rows, module)?)?;
    module.add_function(wrap_pyfunction!(noise_bits, module)?)
}
