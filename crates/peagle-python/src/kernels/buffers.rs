//! Checked numpy arguments of the kernels, read and written in place.

use numpy::{
    PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use peagle_kernels::{self as kernels, Bf16, KernelError};

/// An axis of any length.
pub(super) const ANY: usize = usize::MAX;

/// A model dtype and the numpy dtype it travels as.
pub(super) trait Model: kernels::Element {
    type Raw: numpy::Element;
    const RAW: &'static str;

    fn wrap(raw: &[Self::Raw]) -> &[Self];
    fn wrap_mut(raw: &mut [Self::Raw]) -> &mut [Self];
}

impl Model for f32 {
    type Raw = f32;
    const RAW: &'static str = "float32";

    fn wrap(raw: &[f32]) -> &[f32] {
        raw
    }

    fn wrap_mut(raw: &mut [f32]) -> &mut [f32] {
        raw
    }
}

impl Model for Bf16 {
    type Raw = u16;
    const RAW: &'static str = "uint16";

    fn wrap(raw: &[u16]) -> &[Bf16] {
        Bf16::from_bits(raw)
    }

    fn wrap_mut(raw: &mut [u16]) -> &mut [Bf16] {
        Bf16::from_bits_mut(raw)
    }
}

pub(super) fn refuse(error: &KernelError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The array behind `value`, if its dtype, order and shape are right.
fn array<'a, 'py, T: numpy::Element>(
    name: &str,
    dtype: &str,
    value: &'a Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    let array = value
        .cast::<PyArrayDyn<T>>()
        .map_err(|_| PyTypeError::new_err(format!("{name} is not a numpy array of {dtype}")))?;
    let got = array.shape();
    let fits = |(&got, &wanted): (&usize, &usize)| wanted == ANY || got == wanted;
    if got.len() != shape.len() || !got.iter().zip(shape).all(fits) {
        let axis = |&wanted: &usize| match wanted {
            ANY => "*".to_owned(),
            wanted => wanted.to_string(),
        };
        let wanted = shape.iter().map(axis).collect::<Vec<_>>().join(", ");
        return Err(PyValueError::new_err(format!(
            "{name} has shape {got:?}, not [{wanted}]"
        )));
    }
    if !array.is_c_contiguous() {
        return Err(PyValueError::new_err(format!("{name} is not C-contiguous")));
    }
    Ok(array)
}

/// An array to read.
pub(super) struct Read<'py, T: numpy::Element>(PyReadonlyArrayDyn<'py, T>);

impl<'py, T: numpy::Element> Read<'py, T> {
    pub(super) fn new(
        name: &str,
        dtype: &str,
        value: &Bound<'py, PyAny>,
        shape: &[usize],
    ) -> PyResult<Self> {
        let array = array::<T>(name, dtype, value, shape)?;
        let borrowed = array.try_readonly().map_err(|_| busy(name))?;
        Ok(Self(borrowed))
    }

    pub(super) fn slice(&self) -> &[T] {
        self.0.as_slice().expect("contiguity was checked")
    }

    pub(super) fn axis(&self, axis: usize) -> usize {
        self.0.shape()[axis]
    }
}

/// An array to write.
pub(super) struct Write<'py, T: numpy::Element>(PyReadwriteArrayDyn<'py, T>);

impl<'py, T: numpy::Element> Write<'py, T> {
    pub(super) fn new(
        name: &str,
        dtype: &str,
        value: &Bound<'py, PyAny>,
        shape: &[usize],
    ) -> PyResult<Self> {
        let array = array::<T>(name, dtype, value, shape)?;
        let borrowed = array.try_readwrite().map_err(|_| busy(name))?;
        Ok(Self(borrowed))
    }

    pub(super) fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    pub(super) fn slice(&mut self) -> &mut [T] {
        self.0.as_slice_mut().expect("contiguity was checked")
    }
}

fn busy(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name} is read-only, or shares memory with another argument"
    ))
}

pub(super) fn read<'py, E: Model>(
    name: &str,
    value: &Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<Read<'py, E::Raw>> {
    Read::new(name, E::RAW, value, shape)
}

pub(super) fn write<'py, E: Model>(
    name: &str,
    value: &Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<Write<'py, E::Raw>> {
    Write::new(name, E::RAW, value, shape)
}

pub(super) fn is_bf16(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyArrayDyn<u16>>().is_ok()
}
