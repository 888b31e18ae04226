//! Plans for the target and the drafter, and the drafts that come back.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use peagle_core::{self as core, RequestId};

use crate::arrays::{array, array_of};
use crate::draft::draft_mode;

/// The rows of one forward pass: T rows of R requests.
#[pyclass(frozen, subclass, module = "peagle._core")]
pub(crate) struct Batch {
    /// int32 [T]: token ids; -1 for a drafter's mask row.
    #[pyo3(get)]
    input_ids: Py<PyArray1<i32>>,
    /// int32 [T]: positions of the rotary embedding.
    #[pyo3(get)]
    positions: Py<PyArray1<i32>>,
    /// int32 [T]: where each row's KV goes.
    #[pyo3(get)]
    slots: Py<PyArray1<i32>>,
    /// int32 [R + 1]: rows of request i are query_start[i]:query_start[i + 1].
    #[pyo3(get)]
    query_start: Py<PyArray1<i32>>,
    /// int32 [R]: slots of the request that come before its first row.
    #[pyo3(get)]
    context_lens: Py<PyArray1<i32>>,
    /// int32 [T]: the row's parent, counted from the request's first row; -1 = the last context slot.
    #[pyo3(get)]
    parents: Py<PyArray1<i32>>,
    /// int32 [R, M], padded with 0.
    #[pyo3(get)]
    block_tables: Py<PyArray2<i32>>,
    /// T.
    #[pyo3(get)]
    num_rows: usize,
    /// R.
    #[pyo3(get)]
    num_requests: usize,
}

impl Batch {
    fn new(py: Python<'_>, batch: core::Batch) -> PyResult<Self> {
        let (num_rows, num_requests) = (batch.num_rows(), batch.num_requests());
        let shape = [num_requests, batch.block_table_width];
        let block_tables = PyArray1::from_vec(py, batch.block_tables).reshape(shape)?;
        Ok(Self {
            input_ids: array(py, batch.input_ids),
            positions: array(py, batch.positions),
            slots: array(py, batch.slots),
            query_start: array(py, batch.query_start),
            context_lens: array(py, batch.context_lens),
            parents: array(py, batch.parents),
            block_tables: block_tables.unbind(),
            num_rows,
            num_requests,
        })
    }
}

#[pymethods]
impl Batch {
    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let batch = slf.get();
        let name = slf.get_type().name()?;
        Ok(format!(
            "{name}(requests={}, rows={})",
            batch.num_requests, batch.num_rows
        ))
    }
}

/// One step of the target. Sampling parameters, seeds and token trees stay inside, for `verify`.
#[pyclass(frozen, extends = Batch, module = "peagle._core")]
pub(crate) struct Plan {
    step: u64,
    windows: Vec<core::Window>,
    /// int64 [R].
    #[pyo3(get)]
    request_ids: Py<PyArray1<i64>>,
    /// int32 [L]: rows whose logits are wanted.
    #[pyo3(get)]
    logits_rows: Py<PyArray1<i32>>,
    /// int32 [R + 1]: request i has logits_rows[logits_start[i]:logits_start[i + 1]], maybe none.
    #[pyo3(get)]
    logits_start: Py<PyArray1<i32>>,
    /// Whether any of the requests may ever have drafts: only then are hidden states worth keeping.
    #[pyo3(get)]
    wants_hidden: bool,
    /// Whether any request has processors, wants log probabilities, or has sampled drafts to be compared
    /// with the target's law: draws that were made elsewhere are then not enough.
    #[pyo3(get)]
    needs_logits: bool,
}

impl Plan {
    pub(crate) fn new(py: Python<'_>, plan: core::Plan) -> PyResult<Py<Self>> {
        let this = Self {
            step: plan.step,
            needs_logits: plan.windows.iter().any(core::Window::needs_logits),
            windows: plan.windows,
            request_ids: array_of(py, &plan.request_ids, |id| id.0),
            logits_rows: array(py, plan.logits_rows),
            logits_start: array(py, plan.logits_start),
            wants_hidden: plan.wants_hidden,
        };
        let base = PyClassInitializer::from(Batch::new(py, plan.batch)?);
        Py::new(py, base.add_subclass(this))
    }

    pub(crate) fn windows(&self) -> (u64, &[core::Window]) {
        (self.step, &self.windows)
    }
}

/// One pass of the drafter: rows to catch up with the target, then mask rows.
///
/// The row of token t_j has position j - 1, reads the hidden state at slot(j - 1) and writes slot(j).
#[pyclass(frozen, extends = Batch, module = "peagle._core")]
pub(crate) struct DraftPlan {
    /// int64 [R].
    #[pyo3(get)]
    request_ids: Py<PyArray1<i64>>,
    /// int32 [T]: where the row's hidden state lies; -1 for a mask row.
    #[pyo3(get)]
    hidden_slots: Py<PyArray1<i32>>,
    /// int32 [R]: how many drafts to make; 0 = only catch up.
    #[pyo3(get)]
    k: Py<PyArray1<i32>>,
    /// int32 [sum k]: rows whose logits give drafts, request-major, by depth.
    #[pyo3(get)]
    draft_rows: Py<PyArray1<i32>>,
    /// int32 [R + 1]: request i has draft_rows[draft_start[i]:draft_start[i + 1]].
    #[pyo3(get)]
    draft_start: Py<PyArray1<i32>>,
    /// int32 [R]: the last committed token.
    #[pyo3(get)]
    last_token: Py<PyArray1<i32>>,
    /// float64 [R]: the requests' temperatures; 0 is greedy.
    #[pyo3(get)]
    temperature: Py<PyArray1<f64>>,
    /// uint64 [R]: the requests' seeds.
    #[pyo3(get)]
    seeds: Py<PyArray1<u64>>,
    /// int32 [R]: absolute position of the first draft, the number of committed tokens.
    #[pyo3(get)]
    first_position: Py<PyArray1<i32>>,
    noise: Vec<core::DraftNoise>,
    starts: Vec<i32>,
}

impl DraftPlan {
    /// What each request drafts by, and where its draft rows start.
    pub(crate) fn noise(&self) -> (&[core::DraftNoise], &[i32]) {
        (&self.noise, &self.starts)
    }

    pub(crate) fn new(py: Python<'_>, plan: core::DraftPlan) -> PyResult<Py<Self>> {
        let starts = plan.draft_start.clone();
        let this = Self {
            request_ids: array_of(py, &plan.request_ids, |id| id.0),
            hidden_slots: array(py, plan.hidden_slots),
            k: array(py, plan.k),
            draft_rows: array(py, plan.draft_rows),
            draft_start: array(py, plan.draft_start),
            last_token: array(py, plan.last_token),
            temperature: array_of(py, &plan.noise, |noise| noise.temperature),
            seeds: array_of(py, &plan.noise, |noise| noise.seed.value),
            first_position: array_of(py, &plan.noise, |noise| noise.position),
            noise: plan.noise,
            starts,
        };
        let base = PyClassInitializer::from(Batch::new(py, plan.batch)?);
        Py::new(py, base.add_subclass(this))
    }
}

/// What a proposer returned for a draft plan: one token tree for each request.
///
/// request_ids int64 [R], starts int32 [R + 1], token_ids int32 [N] in topological order, parents
/// int32 [N] counted from the request's first node, -1 = the last committed token. `mode` says how they
/// were chosen: "greedy", "coupled" or "sampled". Sampled ones carry the laws that drew them, as
/// rejection and block verification want them: draft_probs float32 [depths of all requests, D],
/// depth_starts int32 [R + 1] with the rows of request i at depth_starts[i]:depth_starts[i + 1], and
/// target_ids int32 [D], the target id of each draft id. Copied.
#[pyclass(frozen, module = "peagle._core")]
pub(crate) struct Drafts {
    pub(crate) inner: core::Drafts,
    /// int64 [R].
    #[pyo3(get)]
    request_ids: Py<PyArray1<i64>>,
    /// int32 [R + 1]: nodes of request i are starts[i]:starts[i + 1].
    #[pyo3(get)]
    starts: Py<PyArray1<i32>>,
    /// int32 [N]: node tokens, in topological order.
    #[pyo3(get)]
    token_ids: Py<PyArray1<i32>>,
    /// int32 [N]: the node's parent, counted from the request's first node.
    #[pyo3(get)]
    parents: Py<PyArray1<i32>>,
}

#[pymethods]
impl Drafts {
    #[new]
    #[pyo3(signature = (request_ids, starts, token_ids, parents, *, mode="greedy", draft_probs=None,
                        depth_starts=None, target_ids=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        request_ids: &Bound<'_, PyArray1<i64>>,
        starts: &Bound<'_, PyArray1<i32>>,
        token_ids: &Bound<'_, PyArray1<i32>>,
        parents: &Bound<'_, PyArray1<i32>>,
        mode: &str,
        draft_probs: Option<&Bound<'_, PyArray2<f32>>>,
        depth_starts: Option<&Bound<'_, PyArray1<i32>>>,
        target_ids: Option<&Bound<'_, PyArray1<i32>>>,
    ) -> PyResult<Self> {
        let ids = request_ids.readonly();
        let laws = match (draft_probs, depth_starts, target_ids) {
            (None, None, None) => None,
            (Some(probs), Some(starts), Some(target_ids)) => Some(core::DraftLaws {
                probs: probs.readonly().as_slice()?.into(),
                starts: starts.readonly().as_array().to_vec(),
                target_ids: target_ids.readonly().as_slice()?.into(),
            }),
            _ => {
                let message =
                    "draft_probs, depth_starts and target_ids come together or not at all";
                return Err(PyValueError::new_err(message));
            }
        };
        let inner = core::Drafts {
            mode: draft_mode(mode)?,
            laws,
            request_ids: ids.as_array().iter().copied().map(RequestId).collect(),
            starts: starts.readonly().as_array().to_vec(),
            token_ids: token_ids.readonly().as_array().to_vec(),
            parents: parents.readonly().as_array().to_vec(),
        };
        Ok(Self {
            inner,
            request_ids: request_ids.clone().unbind(),
            starts: starts.clone().unbind(),
            token_ids: token_ids.clone().unbind(),
            parents: parents.clone().unbind(),
        })
    }

    fn __len__(&self) -> usize {
        self.inner.request_ids.len()
    }

    fn __repr__(&self) -> String {
        let (requests, tokens) = (self.inner.request_ids.len(), self.inner.token_ids.len());
        format!("Drafts(requests={requests}, tokens={tokens})")
    }
}
