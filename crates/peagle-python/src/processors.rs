//! What a request asks of its logits: parameters in, log probabilities out.

use std::sync::Arc;

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError};
use pyo3::prelude::*;

use peagle_core::{CustomProcessor, LogitsProcessor, LogprobMode, TokenLogprobs, WantedLogprobs};

/// A Python callable as a processor: `callable(logits, token_ids)` with numpy arrays, float32
/// [vocabulary] and int32; it edits `logits` and returns None, or returns another float32 row.
struct Callable(Py<PyAny>);

/// The core's form of a callable.
pub(crate) fn custom(callable: Option<Py<PyAny>>) -> Option<CustomProcessor> {
    callable.map(|callable| CustomProcessor(Arc::new(Callable(callable))))
}

impl LogitsProcessor for Callable {
    fn process(&self, logits: &mut [f32], token_ids: &[i32]) -> Result<(), String> {
        Python::attach(|py| {
            self.call(py, logits, token_ids).map_err(|error| {
                if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                    interrupt_later(py);
                }
                error.to_string()
            })
        })
    }
}

impl Callable {
    fn call(&self, py: Python<'_>, logits: &mut [f32], token_ids: &[i32]) -> PyResult<()> {
        let row = PyArray1::from_slice(py, logits);
        let tokens = PyArray1::from_slice(py, token_ids);
        let returned = self.0.bind(py).call1((&row, tokens))?;
        let edited = if returned.is_none() {
            row.readonly()
        } else {
            row_of(&returned, logits.len())?
        };
        for (logit, &value) in logits.iter_mut().zip(edited.as_array()) {
            *logit = value;
        }
        Ok(())
    }
}

/// What a callable returned, as a row of so many logits.
fn row_of<'py>(
    returned: &Bound<'py, PyAny>,
    vocabulary: usize,
) -> PyResult<PyReadonlyArray1<'py, f32>> {
    match returned.extract::<PyReadonlyArray1<'py, f32>>() {
        Ok(row) if row.as_array().len() == vocabulary => Ok(row),
        _ => {
            let kind = returned.get_type();
            Err(PyTypeError::new_err(format!(
                "it returned a {}, expected a float32 array of {vocabulary} logits or None",
                kind.name()?
            )))
        }
    }
}

/// A Ctrl-C inside a processor is no fault of its request: the main thread gets it again.
fn interrupt_later(py: Python<'_>) {
    let sent = py
        .import("_thread")
        .and_then(|module| module.call_method0("interrupt_main"));
    if let Err(error) = sent {
        error.write_unraisable(py, None);
    }
}

/// What is to be reported of each token: `count` of the likeliest tokens beside it.
pub(crate) fn wanted_logprobs(count: Option<usize>, processed: bool) -> Option<WantedLogprobs> {
    let mode = if processed {
        LogprobMode::Processed
    } else {
        LogprobMode::Raw
    };
    count.map(|top| WantedLogprobs { mode, top })
}

/// Of one token: (token id, logprob, rank, [(token id, logprob), ...] of the likeliest).
pub(crate) type Reported = (i32, f64, usize, Vec<(i32, f64)>);

/// The Python form of log probabilities.
pub(crate) fn reported(logprobs: &[TokenLogprobs]) -> Vec<Reported> {
    let of_token = |of: &TokenLogprobs| (of.token, of.logprob, of.rank, of.top.clone());
    logprobs.iter().map(of_token).collect()
}
