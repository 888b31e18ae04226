//! The `peagle._core` extension module: conversions only, no decisions.
use pyo3::prelude::*;

mod kernels;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    kernels::register(m)?;
    Ok(())
}
