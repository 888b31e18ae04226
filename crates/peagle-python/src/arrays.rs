//! Flat arrays across the bridge: vectors move into numpy, numpy arrays are read in place.

use numpy::{Element, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// A vector as a numpy array, without a copy.
pub(crate) fn array<T: Element>(py: Python<'_>, values: Vec<T>) -> Py<PyArray1<T>> {
    PyArray1::from_vec(py, values).unbind()
}

/// A vector of small numbers as a numpy array of another type.
pub(crate) fn array_of<S, T: Element>(
    py: Python<'_>,
    values: &[S],
    convert: impl Fn(&S) -> T,
) -> Py<PyArray1<T>> {
    array(py, values.iter().map(convert).collect())
}

/// The elements of a one-dimensional, contiguous array.
pub(crate) fn slice<'a, T: Element>(
    name: &str,
    values: &'a PyReadonlyArray1<'_, T>,
) -> PyResult<&'a [T]> {
    values
        .as_slice()
        .map_err(|_| PyValueError::new_err(format!("{name} is not contiguous")))
}

/// A two-dimensional array of the wanted element type.
pub(crate) fn matrix<'py, T: Element>(
    name: &str,
    wanted: &str,
    values: &Bound<'py, PyAny>,
) -> PyResult<PyReadonlyArray2<'py, T>> {
    values.extract().map_err(|_| {
        let got = values
            .get_type()
            .name()
            .map_or_else(|_| String::new(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "{name} is a {got}, expected a two-dimensional {wanted} array"
        ))
    })
}
