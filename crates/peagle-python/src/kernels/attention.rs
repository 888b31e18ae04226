//! Paged attention and the moves of its cache.

use pyo3::prelude::*;

use peagle_kernels::{self as kernels, AttentionInput, AttentionShape, Bf16};

use super::buffers::{ANY, Model, Read, is_bf16, read, refuse, write};

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
    let (num_blocks, block_size) = (k_cache.shape()[0], k_cache.shape()[3]);
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
        let [num_blocks, num_kv_heads, head_dim, block_size] = *k_cache.shape() else {
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

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(attention, module)?)?;
    module.add_function(wrap_pyfunction!(copy_slots, module)?)
}
