//! The CPU kernels across the bridge: numpy arrays are read and written in place.
//!
//! bfloat16 arrays travel as their bits, uint16. Every array is C-contiguous.

use numpy::{
    PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use peagle_kernels::{self as kernels, AttentionInput, AttentionShape, Bf16, KernelError, Level};

/// An axis of any length.
const ANY: usize = usize::MAX;

/// A model dtype and the numpy dtype it travels as.
trait Model: kernels::Element {
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

fn refuse(error: &KernelError) -> PyErr {
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
struct Read<'py, T: numpy::Element>(PyReadonlyArrayDyn<'py, T>);

impl<'py, T: numpy::Element> Read<'py, T> {
    fn new(name: &str, dtype: &str, value: &Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Self> {
        let array = array::<T>(name, dtype, value, shape)?;
        let borrowed = array.try_readonly().map_err(|_| busy(name))?;
        Ok(Self(borrowed))
    }

    fn slice(&self) -> &[T] {
        self.0.as_slice().expect("contiguity was checked")
    }

    fn axis(&self, axis: usize) -> usize {
        self.0.shape()[axis]
    }
}

/// An array to write.
struct Write<'py, T: numpy::Element>(PyReadwriteArrayDyn<'py, T>);

impl<'py, T: numpy::Element> Write<'py, T> {
    fn new(name: &str, dtype: &str, value: &Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Self> {
        let array = array::<T>(name, dtype, value, shape)?;
        let borrowed = array.try_readwrite().map_err(|_| busy(name))?;
        Ok(Self(borrowed))
    }

    fn slice(&mut self) -> &mut [T] {
        self.0.as_slice_mut().expect("contiguity was checked")
    }
}

fn busy(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name} is read-only, or shares memory with another argument"
    ))
}

fn read<'py, E: Model>(
    name: &str,
    value: &Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<Read<'py, E::Raw>> {
    Read::new(name, E::RAW, value, shape)
}

fn write<'py, E: Model>(
    name: &str,
    value: &Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<Write<'py, E::Raw>> {
    Write::new(name, E::RAW, value, shape)
}

fn is_bf16(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyArrayDyn<u16>>().is_ok()
}

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
pub(crate) struct PackedLinear(Weights);

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

/// Arguments of `attention` that do not depend on the dtype.
struct Indices<'py> {
    positions: Read<'py, i32>,
    slots: Read<'py, i32>,
    query_start: Read<'py, i32>,
    context_lens: Read<'py, i32>,
    block_tables: Read<'py, i32>,
    parents: Read<'py, i32>,
    cos: Read<'py, f32>,
    sin: Read<'py, f32>,
}

/// The numbers among the arguments of `attention`.
#[derive(Clone, Copy)]
struct Settings {
    eps: f32,
    num_heads: usize,
    num_kv_heads: usize,
    key_start: usize,
    scale: f32,
}

/// Rotates queries and keys, writes keys and values to the cache, attends in path order.
///
/// T rows of R requests; model dtype arrays are float32, or uint16 for bfloat16.
///
/// Args:
///     qkv: [T, (Hq + 2 Hk) * D] queries, keys, values.
///     out: [T, Hq * D], written.
///     k_cache: [num_blocks, Hk, D, B], written; B a multiple of 16, D of 8.
///     v_cache: [num_blocks, Hk, B, D], written.
///     positions: int32 [T], rows of `cos` and `sin`.
///     slots: int32 [T]; must be what the block table says of slot index context_len + i for
///         row i of a request.
///     query_start: int32 [R + 1].
///     context_lens: int32 [R], slot index of each request's first row.
///     block_tables: int32 [R, M].
///     parents: int32 [T], counted from the request's first row; -1 = the last context slot.
///     cos: float32 [P, D / 2]; the pairs (i, i + D / 2) are rotated.
///     sin: float32 [P, D / 2].
///     q_norm: [D] weight of an RMS norm over each query head before the rotation, or None.
///     k_norm: [D], the same for keys.
///     eps: of those norms.
///     num_heads: Hq.
///     num_kv_heads: Hk.
///     key_start: slots below it are never keys.
///     scale: factor of the scores.
///
/// A row attends to slots key_start..context_len, then its ancestors, then itself, and its bits
/// depend on nothing else. The GIL is released: nothing may write the arguments meanwhile.
///
/// Raises:
///     ValueError: a shape, an index or a slot that does not fit the others.
///     TypeError: a wrong dtype.
#[pyfunction]
#[pyo3(signature = (
    qkv, out, k_cache, v_cache, positions, slots, query_start, context_lens, block_tables,
    parents, cos, sin, q_norm, k_norm, eps, num_heads, num_kv_heads, key_start, scale
))]
#[expect(
    clippy::too_many_arguments,
    reason = "the arrays of a call stay separate in Python"
)]
fn attention(
    py: Python<'_>,
    qkv: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    k_cache: &Bound<'_, PyAny>,
    v_cache: &Bound<'_, PyAny>,
    positions: &Bound<'_, PyAny>,
    slots: &Bound<'_, PyAny>,
    query_start: &Bound<'_, PyAny>,
    context_lens: &Bound<'_, PyAny>,
    block_tables: &Bound<'_, PyAny>,
    parents: &Bound<'_, PyAny>,
    cos: &Bound<'_, PyAny>,
    sin: &Bound<'_, PyAny>,
    q_norm: Option<&Bound<'_, PyAny>>,
    k_norm: Option<&Bound<'_, PyAny>>,
    eps: f32,
    num_heads: usize,
    num_kv_heads: usize,
    key_start: usize,
    scale: f32,
) -> PyResult<()> {
    let int = "int32";
    let slots = Read::new("slots", int, slots, &[ANY])?;
    let context_lens = Read::new("context_lens", int, context_lens, &[ANY])?;
    let (rows, requests) = (slots.axis(0), context_lens.axis(0));
    let cos = Read::new("cos", "float32", cos, &[ANY, ANY])?;
    let indices = Indices {
        positions: Read::new("positions", int, positions, &[rows])?,
        query_start: Read::new("query_start", int, query_start, &[requests + 1])?,
        block_tables: Read::new("block_tables", int, block_tables, &[requests, ANY])?,
        parents: Read::new("parents", int, parents, &[rows])?,
        sin: Read::new("sin", "float32", sin, &[cos.axis(0), cos.axis(1)])?,
        cos,
        slots,
        context_lens,
    };
    let settings = Settings {
        eps,
        num_heads,
        num_kv_heads,
        key_start,
        scale,
    };
    let (arrays, norms) = ([qkv, out, k_cache, v_cache], [q_norm, k_norm]);
    if is_bf16(qkv) {
        typed_attention::<Bf16>(py, arrays, norms, &indices, settings)
    } else {
        typed_attention::<f32>(py, arrays, norms, &indices, settings)
    }
}

fn typed_attention<E: Model>(
    py: Python<'_>,
    [qkv, out, k_cache, v_cache]: [&Bound<'_, PyAny>; 4],
    norms: [Option<&Bound<'_, PyAny>>; 2],
    indices: &Indices<'_>,
    settings: Settings,
) -> PyResult<()> {
    let Settings {
        eps,
        num_heads,
        num_kv_heads,
        key_start,
        scale,
    } = settings;
    let (rows, dim) = (indices.slots.axis(0), 2 * indices.cos.axis(1));
    let qkv = read::<E>("qkv", qkv, &[rows, (num_heads + 2 * num_kv_heads) * dim])?;
    let mut out = write::<E>("out", out, &[rows, num_heads * dim])?;
    let mut k_cache = write::<E>("k_cache", k_cache, &[ANY, num_kv_heads, dim, ANY])?;
    let (num_blocks, block_size) = (k_cache.0.shape()[0], k_cache.0.shape()[3]);
    let v_shape = [num_blocks, num_kv_heads, block_size, dim];
    let mut v_cache = write::<E>("v_cache", v_cache, &v_shape)?;
    let norm = |name, norm: Option<_>| norm.map(|norm| read::<E>(name, norm, &[dim])).transpose();
    let (q_norm, k_norm) = (norm("q_norm", norms[0])?, norm("k_norm", norms[1])?);
    let shape = AttentionShape {
        num_heads,
        num_kv_heads,
        head_dim: dim,
        block_size,
        num_blocks,
    };
    let input = AttentionInput {
        qkv: E::wrap(qkv.slice()),
        positions: indices.positions.slice(),
        slots: indices.slots.slice(),
        query_start: indices.query_start.slice(),
        context_lens: indices.context_lens.slice(),
        block_tables: indices.block_tables.slice(),
        parents: indices.parents.slice(),
        cos: indices.cos.slice(),
        sin: indices.sin.slice(),
        q_norm: q_norm.as_ref().map(|norm| E::wrap(norm.slice())),
        k_norm: k_norm.as_ref().map(|norm| E::wrap(norm.slice())),
        eps,
        key_start,
        scale,
    };
    let (k_cache, v_cache) = (E::wrap_mut(k_cache.slice()), E::wrap_mut(v_cache.slice()));
    let out = E::wrap_mut(out.slice());
    py.detach(|| kernels::attention(shape, &input, k_cache, v_cache, out))
        .map_err(|error| refuse(&error))
}

/// Copies keys and values of slot src[i] to slot dst[i], one pair after the other.
///
/// Args:
///     k_cache: [num_blocks, Hk, D, B], written.
///     v_cache: [num_blocks, Hk, B, D], written.
///     src: int32 [N].
///     dst: int32 [N].
///
/// Raises ValueError for a slot outside the cache.
#[pyfunction]
fn copy_slots(
    k_cache: &Bound<'_, PyAny>,
    v_cache: &Bound<'_, PyAny>,
    src: &Bound<'_, PyAny>,
    dst: &Bound<'_, PyAny>,
) -> PyResult<()> {
    fn typed<E: Model>(
        k_cache: &Bound<'_, PyAny>,
        v_cache: &Bound<'_, PyAny>,
        src: &[i32],
        dst: &[i32],
    ) -> PyResult<()> {
        let mut k_cache = write::<E>("k_cache", k_cache, &[ANY; 4])?;
        let [num_blocks, num_kv_heads, head_dim, block_size] = *k_cache.0.shape() else {
            unreachable!("the shape was checked")
        };
        let v_shape = [num_blocks, num_kv_heads, block_size, head_dim];
        let mut v_cache = write::<E>("v_cache", v_cache, &v_shape)?;
        let num_heads = num_kv_heads;
        let shape = AttentionShape {
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            num_blocks,
        };
        let (k_cache, v_cache) = (E::wrap_mut(k_cache.slice()), E::wrap_mut(v_cache.slice()));
        kernels::copy_slots(shape, k_cache, v_cache, src, dst).map_err(|error| refuse(&error))
    }
    let src = Read::new("src", "int32", src, &[ANY])?;
    let dst = Read::new("dst", "int32", dst, &[src.axis(0)])?;
    if is_bf16(k_cache) {
        typed::<Bf16>(k_cache, v_cache, src.slice(), dst.slice())
    } else {
        typed::<f32>(k_cache, v_cache, src.slice(), dst.slice())
    }
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
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(attention, module)?)?;
    module.add_function(wrap_pyfunction!(top_log_probs, module)?)?;
    module.add_function(wrap_pyfunction!(copy_slots, module)?)?;
    module.add_function(wrap_pyfunction!(set_num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(simd_level, module)?)
}
