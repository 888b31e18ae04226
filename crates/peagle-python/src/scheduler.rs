//! The scheduler across the bridge: plans out, verdicts and drafts in.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use peagle_core::{self as core, Processors, RequestId, RequestParams, Sampling, SchedulerConfig};

use crate::arrays::{array, slice};
use crate::draft::method;
use crate::errors::raise;
use crate::plan::{Batch, DraftPlan, Drafts, Plan};
use crate::processors::{Reported, custom, reported, wanted_logprobs};
use crate::verify::Verdicts;

/// What a step brought one request.
#[pyclass(frozen, module = "peagle._core")]
pub(crate) struct RequestStep {
    /// The request.
    #[pyo3(get)]
    request_id: i64,
    /// Committed tokens, cut at the end of the request; an end token is among them.
    #[pyo3(get)]
    token_ids: Py<PyList>,
    /// (token id, logprob, rank, [(token id, logprob), ...] of the likeliest) of each committed token,
    /// if the request asked for them.
    #[pyo3(get)]
    logprobs: Vec<Reported>,
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
            logprobs: reported(&step.logprobs),
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
    /// then ends with "length" there. Tokens in `eos_token_ids` and `stop_token_ids` are masked until
    /// there are `min_tokens`. `bad_words` are token sequences; `logits_processor` is called with a
    /// node's logits, np.float32 [V], and the token ids that lead to it, np.int32, and edits the row or
    /// returns another. `logprobs` asks for the log probability of each token and of so many likeliest
    /// ones, of the target's own law or, with `processed_logprobs`, of the one that is sampled from.
    #[pyo3(signature = (request_id, prompt_token_ids, *, max_tokens, temperature=0.0, top_k=0,
                        top_p=1.0, min_p=0.0, seed=0, ignore_eos=false, eos_token_ids=Vec::new(),
                        stop_token_ids=Vec::new(), num_speculative_tokens=None, min_tokens=0,
                        allowed_token_ids=None, bad_words=Vec::new(), logit_bias=Vec::new(),
                        logits_processor=None, repetition_penalty=1.0, frequency_penalty=0.0,
                        presence_penalty=0.0, logprobs=None, processed_logprobs=false))]
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
        min_tokens: i64,
        allowed_token_ids: Option<Vec<i32>>,
        bad_words: Vec<Vec<i32>>,
        logit_bias: Vec<(i32, f32)>,
        logits_processor: Option<Py<PyAny>>,
        repetition_penalty: f64,
        frequency_penalty: f64,
        presence_penalty: f64,
        logprobs: Option<usize>,
        processed_logprobs: bool,
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
            let min_tokens =
                usize::try_from(min_tokens).map_err(|_| core::Error::InvalidParameter {
                    id,
                    name: "min_tokens",
                    value: min_tokens.to_string(),
                    expected: "a number from 0 to max_tokens",
                })?;
            let params = RequestParams {
                max_tokens,
                min_tokens,
                sampling: Sampling {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                },
                processors: Processors {
                    allowed_token_ids,
                    bad_words,
                    logit_bias,
                    custom: custom(logits_processor),
                    repetition_penalty,
                    frequency_penalty,
                    presence_penalty,
                },
                logprobs: wanted_logprobs(logprobs, processed_logprobs),
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
