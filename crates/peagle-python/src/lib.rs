//! The `peagle._core` extension module: conversions only, no decisions.

#![allow(clippy::doc_markdown, reason = "the documentation is read in Python")]

use pyo3::prelude::*;

mod arrays;
mod draft;
mod drawn;
mod errors;
mod kernels;
mod plan;
mod processors;
mod scheduler;
mod verify;

/// Scheduler, verification and CPU kernels of peagle.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    scheduler::register(module)?;
    drawn::register(module)?;
    kernels::register(module)
}
