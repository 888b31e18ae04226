//! Linear layers whose weights the kernels keep in their own layout.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use peagle_kernels::{self as kernels, Bf16};

use super::buffers::{ANY, Model, read, refuse, write};

enum Weights {
    F32(kernels::PackedLinear<f32>),
    Bf16(kernels::PackedLinear<Bf16>),
}

/// Bind the weights of either dtype to a name.
macro_rules! with_weights {
    ($self:expr, $linear:ident => $body:expr) => {
        match &$self.0 {
            Weights::F32($linear) => $body,
            Weights::Bf16($linear) => $body,
        }
    };
}

/// A linear layer `x W^T + b` whose weights were copied into the kernels' layout.
///
/// Args:
///     weight: [N, K] of the model dtype (uint16 bits for bfloat16).
///     bias: [N] of the model dtype, or None.
///     dtype: "bfloat16" or "float32".
///
/// A row of a result has the same bits whatever the other rows, their number and the threads.
/// All `forward` methods release the GIL: until they return nothing may write their inputs or
/// touch their output. They raise ValueError for a wrong shape, TypeError for a wrong dtype.
#[pyclass(frozen, module = "peagle._core")]
pub(super) struct PackedLinear(Weights);

#[pymethods]
impl PackedLinear {
    #[new]
    #[pyo3(signature = (weight, bias, dtype))]
    fn new(
        py: Python<'_>,
        weight: &Bound<'_, PyAny>,
        bias: Option<&Bound<'_, PyAny>>,
        dtype: &str,
    ) -> PyResult<Self> {
        match dtype {
            "float32" => Ok(Self(Weights::F32(pack(py, weight, bias)?))),
            "bfloat16" => Ok(Self(Weights::Bf16(pack(py, weight, bias)?))),
            _ => Err(PyValueError::new_err(format!(
                "dtype is {dtype:?}, but must be \"bfloat16\" or \"float32\""
            ))),
        }
    }

    /// K.
    #[getter]
    fn in_features(&self) -> usize {
        with_weights!(self, linear => linear.in_features())
    }

    /// N.
    #[getter]
    fn out_features(&self) -> usize {
        with_weights!(self, linear => linear.out_features())
    }

    /// "bfloat16" or "float32".
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.0 {
            Weights::F32(_) => "float32",
            Weights::Bf16(_) => "bfloat16",
        }
    }

    /// Bytes of the packed weights.
    #[getter]
    fn nbytes(&self) -> usize {
        with_weights!(self, linear => linear.bytes())
    }

    fn __repr__(&self) -> String {
        format!(
            "PackedLinear(in_features={}, out_features={}, dtype=\"{}\")",
            self.in_features(),
            self.out_features(),
            self.dtype()
        )
    }

    /// out [M, N] = x [M, K] W^T + b, rounded once to the model dtype.
    fn forward(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_weights!(self, linear => forward(py, linear, x, out))
    }

    /// out float32 [M, N] = x [M, K] W^T + b, not rounded.
    fn forward_f32(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_weights!(self, linear => forward_f32(py, linear, x, out))
    }

    /// out [M, N] = RMSNorm(x [M, K]) W^T + b, rounded once.
    ///
    /// The normalised row is rounded to the model dtype before and after it is multiplied by
    /// norm_weight [K].
    fn forward_norm(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        norm_weight: &Bound<'_, PyAny>,
        eps: f32,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_weights!(self, linear => forward_norm(py, linear, x, norm_weight, eps, out))
    }

    /// `forward_norm` with an output in float32 that is not rounded: logits.
    fn forward_norm_f32(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        norm_weight: &Bound<'_, PyAny>,
        eps: f32,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_weights!(self, linear => forward_norm_f32(py, linear, x, norm_weight, eps, out))
    }

    /// residual [M, N] += x [M, K] W^T + b, rounded once.
    fn forward_add(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        residual: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_weights!(self, linear => forward_add(py, linear, x, residual))
    }

    /// residual [M, N] += (silu(gate) * up) W^T + b, rounded once; gate_up [M, 2K], gate first.
    ///
    /// silu(gate) and the product are each rounded to the model dtype.
    fn forward_silu_add(
        &self,
        py: Python<'_>,
        gate_up: &Bound<'_, PyAny>,
        residual: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_weights!(self, linear => forward_silu_add(py, linear, gate_up, residual))
    }
}

fn pack<E: Model>(
    py: Python<'_>,
    weight: &Bound<'_, PyAny>,
    bias: Option<&Bound<'_, PyAny>>,
) -> PyResult<kernels::PackedLinear<E>> {
    let weight = read::<E>("weight", weight, &[ANY, ANY])?;
    let (n, k) = (weight.axis(0), weight.axis(1));
    let bias = bias.map(|bias| read::<E>("bias", bias, &[n])).transpose()?;
    let (weight, bias) = (
        E::wrap(weight.slice()),
        bias.as_ref().map(|bias| E::wrap(bias.slice())),
    );
    py.detach(|| kernels::PackedLinear::new(weight, bias, n, k))
        .map_err(|error| refuse(&error))
}

fn forward<E: Model>(
    py: Python<'_>,
    linear: &kernels::PackedLinear<E>,
    x: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let x = read::<E>("x", x, &[ANY, linear.in_features()])?;
    let mut out = write::<E>("out", out, &[x.axis(0), linear.out_features()])?;
    let (x, out) = (E::wrap(x.slice()), E::wrap_mut(out.slice()));
    py.detach(|| linear.forward(x, out))
        .map_err(|error| refuse(&error))
}

fn forward_f32<E: Model>(
    py: Python<'_>,
    linear: &kernels::PackedLinear<E>,
    x: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let x = read::<E>("x", x, &[ANY, linear.in_features()])?;
    let mut out = write::<f32>("out", out, &[x.axis(0), linear.out_features()])?;
    let (x, out) = (E::wrap(x.slice()), out.slice());
    py.detach(|| linear.forward_f32(x, out))
        .map_err(|error| refuse(&error))
}

fn forward_norm<E: Model>(
    py: Python<'_>,
    linear: &kernels::PackedLinear<E>,
    x: &Bound<'_, PyAny>,
    norm_weight: &Bound<'_, PyAny>,
    eps: f32,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let norm = read::<E>("norm_weight", norm_weight, &[linear.in_features()])?;
    let x = read::<E>("x", x, &[ANY, linear.in_features()])?;
    let mut out = write::<E>("out", out, &[x.axis(0), linear.out_features()])?;
    let (x, norm, out) = (
        E::wrap(x.slice()),
        E::wrap(norm.slice()),
        E::wrap_mut(out.slice()),
    );
    py.detach(|| linear.forward_norm(x, norm, eps, out))
        .map_err(|error| refuse(&error))
}

fn forward_norm_f32<E: Model>(
    py: Python<'_>,
    linear: &kernels::PackedLinear<E>,
    x: &Bound<'_, PyAny>,
    norm_weight: &Bound<'_, PyAny>,
    eps: f32,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let norm = read::<E>("norm_weight", norm_weight, &[linear.in_features()])?;
    let x = read::<E>("x", x, &[ANY, linear.in_features()])?;
    let mut out = write::<f32>("out", out, &[x.axis(0), linear.out_features()])?;
    let (x, norm, out) = (E::wrap(x.slice()), E::wrap(norm.slice()), out.slice());
    py.detach(|| linear.forward_norm_f32(x, norm, eps, out))
        .map_err(|error| refuse(&error))
}

fn forward_add<E: Model>(
    py: Python<'_>,
    linear: &kernels::PackedLinear<E>,
    x: &Bound<'_, PyAny>,
    residual: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let x = read::<E>("x", x, &[ANY, linear.in_features()])?;
    let mut residual = write::<E>("residual", residual, &[x.axis(0), linear.out_features()])?;
    let (x, residual) = (E::wrap(x.slice()), E::wrap_mut(residual.slice()));
    py.detach(|| linear.forward_add(x, residual))
        .map_err(|error| refuse(&error))
}

fn forward_silu_add<E: Model>(
    py: Python<'_>,
    linear: &kernels::PackedLinear<E>,
    gate_up: &Bound<'_, PyAny>,
    residual: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let gate_up = read::<E>("gate_up", gate_up, &[ANY, 2 * linear.in_features()])?;
    let mut residual = write::<E>(
        "residual",
        residual,
        &[gate_up.axis(0), linear.out_features()],
    )?;
    let (gate_up, residual) = (E::wrap(gate_up.slice()), E::wrap_mut(residual.slice()));
    py.detach(|| linear.forward_silu_add(gate_up, residual))
        .map_err(|error| refuse(&error))
}
