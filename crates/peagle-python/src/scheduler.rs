//! The scheduler across the bridge: plans out, verdicts and drafts in.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use peagle_core::{self as core, RequestId, RequestParams, Sampling, SchedulerConfig};

use crate::arrays::{array, array_of, slice};
use crate::draft::{draft_mode, method};
use crate::errors::raise;
use crate::verify::Verdicts;

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
    /// Whether verification compares draft probabilities with the target's, so that the target's own
    /// draws are not enough.
    #[pyo3(get)]
    wants_probs: bool,
}

impl Plan {
    fn new(py: Python<'_>, plan: core::Plan) -> PyResult<Py<Self>> {
        let sampled = |window: &core::Window| {
            window.method != core::Method::Coupled && window.sampling.temperature > 0.0
        };
        let this = Self {
            step: plan.step,
            wants_probs: plan.windows.iter().any(sampled),
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

    fn new(py: Python<'_>, plan: core::DraftPlan) -> PyResult<Py<Self>> {
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
    inner: core::Drafts,
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

/// What a step brought one request.
#[pyclass(frozen, module = "peagle._core")]
pub(crate) struct RequestStep {
    /// The request.
    #[pyo3(get)]
    request_id: i64,
    /// Committed tokens, cut at the end of the request; an end token is among them.
    #[pyo3(get)]
    token_ids: Py<PyList>,
    /// None, "stop", "length" or "error".
    #[pyo3(get)]
    finish_reason: Option<&'static str>,
    /// What went wrong, if it ended with an error.
    #[pyo3(get)]
    error: Option<String>,
    /// Draft tokens verified.
    #[pyo3(get)]
    num_drafted: usize,
    /// Draft tokens accepted and committed.
    #[pyo3(get)]
    num_accepted: usize,
}

impl RequestStep {
    fn new(py: Python<'_>, step: &core::RequestStep) -> PyResult<Self> {
        Ok(Self {
            request_id: step.request_id.0,
            token_ids: PyList::new(py, &step.token_ids)?.unbind(),
            finish_reason: step
                .finish_reason
                .map(core::scheduler::FinishReason::as_str),
            error: step.error.as_ref().map(ToString::to_string),
            num_drafted: step.num_drafted,
            num_accepted: step.num_accepted,
        })
    }
}

#[pymethods]
impl RequestStep {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tokens = self.token_ids.bind(py).repr()?;
        let reason = self
            .finish_reason
            .map_or_else(|| "None".to_owned(), |r| format!("{r:?}"));
        Ok(format!(
            "RequestStep(request_id={}, token_ids={tokens}, finish_reason={reason})",
            self.request_id
        ))
    }
}

/// What a step brought.
#[pyclass(frozen, module = "peagle._core")]
pub(crate) struct StepOutput {
    /// RequestStep of each request that had a verdict and was not aborted meanwhile.
    #[pyo3(get)]
    outputs: Py<PyList>,
    /// int32: slots to copy the target's KV and hidden rows from, in order.
    #[pyo3(get)]
    moves_src: Py<PyArray1<i32>>,
    /// int32: slots to copy them to.
    #[pyo3(get)]
    moves_dst: Py<PyArray1<i32>>,
    /// The drafter's next pass.
    #[pyo3(get)]
    draft: Py<DraftPlan>,
}

impl StepOutput {
    fn new(py: Python<'_>, output: core::StepOutput) -> PyResult<Self> {
        let outputs = output
            .outputs
            .iter()
            .map(|step| Py::new(py, RequestStep::new(py, step)?));
        Ok(Self {
            outputs: PyList::new(py, outputs.collect::<PyResult<Vec<_>>>()?)?.unbind(),
            moves_src: array(py, output.moves_src),
            moves_dst: array(py, output.moves_dst),
            draft: DraftPlan::new(py, output.draft)?,
        })
    }
}

/// Which rows the target computes next, and what became of them.
///
/// A step is `schedule`, forward, `verify`, `update`, propose. `verification` is how drafts are verified
/// at temperatures above 0: "coupled", "rejection" or "block". Not for use from several threads at
/// once.
#[pyclass(module = "peagle._core")]
pub(crate) struct Scheduler {
    inner: core::Scheduler,
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (*, num_blocks, block_size, max_num_seqs, max_num_batched_tokens,
                        max_model_len, num_speculative_tokens, verification="coupled"))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        num_blocks: usize,
        block_size: usize,
        max_num_seqs: usize,
        max_num_batched_tokens: usize,
        max_model_len: usize,
        num_speculative_tokens: usize,
        verification: &str,
    ) -> PyResult<Self> {
        let config = SchedulerConfig {
            num_blocks,
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            num_speculative_tokens,
            verification: method(verification)?,
        };
        let inner = core::Scheduler::new(config).map_err(|error| raise(py, &error))?;
        Ok(Self { inner })
    }

    /// Puts a request at the end of the queue. An error leaves the scheduler as it was.
    ///
    /// `top_k` 0, `top_p` 1 and `min_p` 0 are off; temperature 0 is greedy. `seed` is an unsigned
    /// 64-bit number. `ignore_eos` disables `eos_token_ids` only. `num_speculative_tokens` None = the
    /// engine's number, 0 = no speculation. `max_tokens` may reach past `max_model_len`: the request
    /// then ends with "length" there.
    #[pyo3(signature = (request_id, prompt_token_ids, *, max_tokens, temperature=0.0, top_k=0,
                        top_p=1.0, min_p=0.0, seed=0, ignore_eos=false, eos_token_ids=Vec::new(),
                        stop_token_ids=Vec::new(), num_speculative_tokens=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn add(
        &mut self,
        py: Python<'_>,
        request_id: i64,
        prompt_token_ids: &Bound<'_, PyArray1<i32>>,
        max_tokens: i64,
        temperature: f64,
        top_k: i64,
        top_p: f64,
        min_p: f64,
        seed: u64,
        ignore_eos: bool,
        eos_token_ids: Vec<i32>,
        stop_token_ids: Vec<i32>,
        num_speculative_tokens: Option<i64>,
    ) -> PyResult<()> {
        let id = RequestId(request_id);
        let prompt = prompt_token_ids.readonly();
        let prompt = slice("prompt_token_ids", &prompt)?;
        let add = || {
            let max_tokens = usize::try_from(max_tokens)
                .map_err(|_| core::Error::InvalidMaxTokens { id, max_tokens })?;
            let kept = u64::try_from(top_k).map_err(|_| core::Error::InvalidTopK { id, top_k })?;
            let cap = self.inner.config().num_speculative_tokens;
            let num_speculative_tokens = num_speculative_tokens
                .map(|k| usize::try_from(k).map_err(|_| core::Error::SpeculationCap { id, k, cap }))
                .transpose()?;
            let top_k = u32::try_from(kept).unwrap_or(u32::MAX);
            let params = RequestParams {
                max_tokens,
                sampling: Sampling {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                },
                seed,
                ignore_eos,
                eos_token_ids,
                stop_token_ids,
                num_speculative_tokens,
            };
            self.inner.add(id, prompt, params)
        };
        add().map_err(|error| raise(py, &error))
    }

    /// Plans the next step. `drafts` is what the proposer made of the last draft plan; None means that
    /// it did not run: its catch-up rows are then asked for again.
    ///
    /// Raises IllegalDraftsError for drafts of a mode that the verification method cannot take,
    /// StepOrderError while a step is in flight, UnknownRequestError, TooManyDraftsError,
    /// InvalidTreeError or ShapeMismatchError for drafts that do not fit the draft plan. Drafts of
    /// requests that ended meanwhile are ignored.
    #[pyo3(signature = (drafts=None))]
    fn schedule(
        &mut self,
        py: Python<'_>,
        drafts: Option<&Bound<'_, Drafts>>,
    ) -> PyResult<Py<Plan>> {
        let drafts = drafts.map(|drafts| &drafts.get().inner);
        let plan = self
            .inner
            .schedule(drafts)
            .map_err(|error| raise(py, &error))?;
        Plan::new(py, plan)
    }

    /// Commits the verdicts of the plan in flight.
    ///
    /// `cuts` int32 [R']: how many tokens of the i-th verdict the stop-string check keeps, -1 = it
    /// found none. Raises StepOrderError when the verdicts are not those of the plan in flight,
    /// ShapeMismatchError for cuts that do not fit.
    #[pyo3(signature = (verdicts, cuts=None))]
    fn update(
        &mut self,
        py: Python<'_>,
        verdicts: &Bound<'_, Verdicts>,
        cuts: Option<&Bound<'_, PyArray1<i32>>>,
    ) -> PyResult<StepOutput> {
        let cuts = cuts.map(PyArrayMethods::readonly);
        let cuts = cuts.as_ref().map(|cuts| slice("cuts", cuts)).transpose()?;
        let output = self.inner.update(&verdicts.get().inner, cuts);
        StepOutput::new(py, output.map_err(|error| raise(py, &error))?)
    }

    /// Forgets a request at once and frees its blocks; whether it was known.
    ///
    /// A step in flight goes on; `update` does not report the request any more.
    fn abort(&mut self, request_id: i64) -> bool {
        self.inner.abort(RequestId(request_id))
    }

    /// Forgets the plan in flight, if there is one, as if it had never been made: its rows are planned
    /// again, its drafts are lost. For a forward pass that failed.
    fn cancel_step(&mut self) {
        self.inner.cancel_step();
    }

    /// Requests that have not ended.
    fn num_unfinished(&self) -> usize {
        self.inner.num_unfinished()
    }

    /// KV blocks nobody holds.
    fn free_blocks(&self) -> usize {
        self.inner.free_blocks()
    }

    /// KV blocks of the pool.
    #[getter]
    fn num_blocks(&self) -> usize {
        self.inner.config().num_blocks
    }

    /// Counters since the scheduler was made, and what it holds now.
    ///
    /// steps, windows (with a draft), drafted, accepted, committed, discarded_after_stop, preemptions,
    /// near_ties, accepted_by_position (list), running, waiting, free_blocks, used_blocks. The mean
    /// acceptance length with the extra token is 1 + accepted / windows.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.inner.stats();
        let dict = PyDict::new(py);
        dict.set_item("steps", stats.steps)?;
        dict.set_item("windows", stats.windows)?;
        dict.set_item("drafted", stats.drafted)?;
        dict.set_item("accepted", stats.accepted)?;
        dict.set_item("committed", stats.committed)?;
        dict.set_item("discarded_after_stop", stats.discarded_after_stop)?;
        dict.set_item("preemptions", stats.preemptions)?;
        dict.set_item("near_ties", stats.near_ties)?;
        dict.set_item("accepted_by_position", stats.accepted_by_position)?;
        dict.set_item("running", stats.running)?;
        dict.set_item("waiting", stats.waiting)?;
        dict.set_item("free_blocks", stats.free_blocks)?;
        dict.set_item("used_blocks", stats.used_blocks)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let stats = self.inner.stats();
        format!(
            "Scheduler(running={}, waiting={})",
            stats.running, stats.waiting
        )
    }
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Batch>()?;
    module.add_class::<Plan>()?;
    module.add_class::<DraftPlan>()?;
    module.add_class::<Drafts>()?;
    module.add_class::<RequestStep>()?;
    module.add_class::<StepOutput>()?;
    module.add_class::<Scheduler>()?;
    module.add_class::<Verdicts>()?;
    module.add_function(wrap_pyfunction!(crate::verify::verify, module)?)?;
    module.add_function(wrap_pyfunction!(crate::draft::coupled_candidates, module)?)?;
    module.add_function(wrap_pyfunction!(crate::draft::sample_drafts, module)?)
}
