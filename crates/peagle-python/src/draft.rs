//! Choosing drafts above temperature 0, across the bridge.

use std::ops::Range;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use peagle_core::draft::{self as core, DraftNoise, DraftScratch};
use peagle_core::{DraftMode, Error, Method};

use crate::arrays::{array, matrix, slice};
use crate::errors::raise;
use crate::plan::DraftPlan;

type Matrix<'py, T> = Bound<'py, PyArray2<T>>;

/// A draft mode by its word.
pub(crate) fn draft_mode(word: &str) -> PyResult<DraftMode> {
    let modes = [DraftMode::Greedy, DraftMode::Coupled, DraftMode::Sampled];
    by_word("drafts", word, modes, DraftMode::as_str)
}

/// A verification method by its word.
pub(crate) fn method(word: &str) -> PyResult<Method> {
    let methods = [Method::Coupled, Method::Rejection, Method::Block];
    by_word("verification", word, methods, Method::as_str)
}

fn by_word<T: Copy, const N: usize>(
    name: &str,
    word: &str,
    values: [T; N],
    as_str: fn(T) -> &'static str,
) -> PyResult<T> {
    let found = values.into_iter().find(|&value| as_str(value) == word);
    found.ok_or_else(|| {
        let known = values.map(as_str).join(", ");
        PyValueError::new_err(format!("{name} is {word:?}, expected one of {known}"))
    })
}

/// The draft rows of a plan.
struct DraftRows<'a> {
    /// `[R]`
    noise: &'a [DraftNoise],
    /// `[R + 1]`: rows of each request.
    starts: &'a [i32],
}

impl<'a> DraftRows<'a> {
    fn of(plan: &'a Bound<'_, DraftPlan>) -> Self {
        let (noise, starts) = plan.get().noise();
        Self { noise, starts }
    }

    fn len(&self) -> usize {
        self.starts.last().map_or(0, |&end| end as usize)
    }

    /// What the i-th request drafts by, if its temperature is above 0, and its rows.
    fn sampled(&self) -> impl Iterator<Item = (usize, DraftNoise, Range<usize>)> + '_ {
        let requests = self.noise.iter().zip(self.starts.windows(2)).enumerate();
        requests
            .filter(|(_, (noise, _))| noise.temperature > 0.0)
            .map(|(index, (noise, bounds))| (index, *noise, bounds[0] as usize..bounds[1] as usize))
    }

    /// What a row drafts by and its depth.
    fn depth_of(&self, row: usize) -> (DraftNoise, usize) {
        let request = self.starts.partition_point(|&start| start as usize <= row) - 1;
        (self.noise[request], row - self.starts[request] as usize)
    }
}

/// Logits over the draft vocabulary.
struct DraftLogits<'a> {
    values: &'a [f32],
    target_ids: &'a [i32],
}

impl DraftLogits<'_> {
    /// Checks that there are so many rows over the draft vocabulary.
    fn check(&self, shape: &[usize], rows: usize) -> Result<(), Error> {
        expect("number of draft logits rows", shape[0] as i64, rows)?;
        expect(
            "width of draft logits",
            shape[1] as i64,
            self.target_ids.len(),
        )
    }
}

fn expect(name: &'static str, got: i64, expected: usize) -> Result<(), Error> {
    let expected = expected as i64;
    if got == expected {
        return Ok(());
    }
    Err(Error::ShapeMismatch {
        name,
        got,
        expected,
    })
}

fn logits_of<'py>(logits: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray2<'py, f32>> {
    let logits = matrix::<f32>("logits", "float32", logits)?;
    if logits.is_c_contiguous() {
        return Ok(logits);
    }
    Err(PyValueError::new_err("logits is not contiguous"))
}

/// The best tokens of draft rows in a race of the drafter's law over the target's noise.
///
/// `rows` int32 [N] are indices of the plan's `draft_rows`, in any order and number; `logits` float32
/// [N, D] theirs; `target_ids` int32 [D] the target id of each draft id; `width` tokens of a row; `tau` a
/// temperature for each depth on top of the request's, the last one for all deeper ones. Returns the
/// logarithm of each token's share float32 and draft ids int32, both [N, width], best first: the share
/// is 1 / score over the sum of those of all `width`. Rows of requests at temperature 0 are NaN, and so are
/// rows with a NaN. The GIL is released.
///
/// Raises ShapeMismatchError for another number of rows or columns, ValueError for a row that the plan
/// does not have, a width outside 1..D or no tau above 0.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "as PyO3 extracts it")]
pub(crate) fn coupled_candidates<'py>(
    py: Python<'py>,
    plan: &Bound<'py, DraftPlan>,
    rows: &Bound<'py, PyArray1<i32>>,
    logits: &Bound<'py, PyAny>,
    target_ids: &Bound<'py, PyArray1<i32>>,
    width: usize,
    tau: Vec<f64>,
) -> PyResult<(Matrix<'py, f32>, Matrix<'py, i32>)> {
    let logits = logits_of(logits)?;
    let (rows, target_ids) = (rows.readonly(), target_ids.readonly());
    let rows = slice("rows", &rows)?;
    let draft_rows = DraftRows::of(plan);
    let draft_logits = DraftLogits {
        values: logits.as_slice()?,
        target_ids: slice("target_ids", &target_ids)?,
    };
    let shape = logits.shape();
    draft_logits
        .check(shape, rows.len())
        .map_err(|error| raise(py, &error))?;
    let count = draft_rows.len();
    if let Some(row) = rows.iter().find(|&&row| row < 0 || row as usize >= count) {
        let message = format!("draft row {row}, expected one of {count}");
        return Err(PyValueError::new_err(message));
    }
    if width == 0 || width > shape[1] {
        let message = format!("width is {width}, expected 1 to {}", shape[1]);
        return Err(PyValueError::new_err(message));
    }
    if tau.is_empty() || !tau.iter().all(|&tau| tau > 0.0 && tau.is_finite()) {
        let message = format!("tau is {tau:?}, expected one number above 0 or several");
        return Err(PyValueError::new_err(message));
    }
    let (shares, ids) = py.detach(|| coupled(&draft_rows, rows, &draft_logits, width, &tau));
    let shares = PyArray1::from_vec(py, shares).reshape([shape[0], width])?;
    let ids = PyArray1::from_vec(py, ids).reshape([shape[0], width])?;
    Ok((shares, ids))
}

fn coupled(
    draft_rows: &DraftRows<'_>,
    rows: &[i32],
    logits: &DraftLogits<'_>,
    width: usize,
    tau: &[f64],
) -> (Vec<f32>, Vec<i32>) {
    let count = rows.len() * width;
    let (mut shares, mut ids) = (vec![f32::NAN; count], vec![0; count]);
    let mut scratch = DraftScratch::default();
    let out = shares
        .chunks_exact_mut(width)
        .zip(ids.chunks_exact_mut(width));
    let logits_rows = logits.values.chunks_exact(logits.target_ids.len());
    for ((&row, values), (shares, ids)) in rows.iter().zip(logits_rows).zip(out) {
        let (noise, depth) = draft_rows.depth_of(row as usize);
        if noise.temperature > 0.0 {
            let noise = noise.at_depth(depth, tau[depth.min(tau.len() - 1)]);
            core::coupled_candidates(values, logits.target_ids, noise, &mut scratch, ids, shares);
        }
    }
    (shares, ids)
}

/// Draws the nodes of sampled drafts from noise of the drafter's own.
///
/// `logits` float32 [sum k, D], one row for each of the plan's `draft_rows`; `target_ids` int32 [D] the
/// target id of each draft id. `starts` int32 [R + 1] and `parents` int32 [N]
/// are the shapes of the trees, one for each request of the plan, fixed before anything is drawn; a
/// node of depth d takes the law of the request's d-th row. Siblings are drawn without replacement and
/// stand in draw order. Returns token ids int32 [N], all -1 for a request with a NaN in a row, and the
/// laws that drew them, float32 [sum k, D]; rows of requests at temperature 0 are 0. The GIL is
/// released.
///
/// Raises ShapeMismatchError for arrays that do not fit, InvalidTreeError for a shape that cannot be
/// drawn.
#[pyfunction]
pub(crate) fn sample_drafts<'py>(
    py: Python<'py>,
    plan: &Bound<'py, DraftPlan>,
    logits: &Bound<'py, PyAny>,
    target_ids: &Bound<'py, PyArray1<i32>>,
    starts: &Bound<'py, PyArray1<i32>>,
    parents: &Bound<'py, PyArray1<i32>>,
) -> PyResult<(Py<PyArray1<i32>>, Matrix<'py, f32>)> {
    let logits = logits_of(logits)?;
    let (target_ids, starts, parents) =
        (target_ids.readonly(), starts.readonly(), parents.readonly());
    let rows = DraftRows::of(plan);
    let draft_logits = DraftLogits {
        values: logits.as_slice()?,
        target_ids: slice("target_ids", &target_ids)?,
    };
    let shapes = Shapes {
        starts: slice("starts", &starts)?,
        parents: slice("parents", &parents)?,
    };
    let shape = logits.shape();
    let drawn = draft_logits
        .check(shape, rows.len())
        .and_then(|()| shapes.check(rows.noise.len()))
        .and_then(|()| py.detach(|| sampled(&rows, &draft_logits, &shapes)));
    let (tokens, probs) = drawn.map_err(|error| raise(py, &error))?;
    let probs = PyArray1::from_vec(py, probs).reshape([shape[0], shape[1]])?;
    Ok((array(py, tokens), probs))
}

/// The shapes of the trees of several requests.
struct Shapes<'a> {
    starts: &'a [i32],
    parents: &'a [i32],
}

impl Shapes<'_> {
    fn check(&self, requests: usize) -> Result<(), Error> {
        let len = self.starts.len() as i64;
        expect("length of draft starts", len, requests + 1)?;
        let last = i64::from(self.starts[requests]);
        expect("last draft start", last, self.parents.len())?;
        expect("first draft start", self.starts[0].into(), 0)?;
        let fallen = self.starts.windows(2).find(|pair| pair[1] < pair[0]);
        fallen.map_or(Ok(()), |pair| {
            expect("draft start", pair[1].into(), pair[0] as usize)
        })
    }
}

fn sampled(
    rows: &DraftRows<'_>,
    logits: &DraftLogits<'_>,
    shapes: &Shapes<'_>,
) -> Result<(Vec<i32>, Vec<f32>), Error> {
    let columns = logits.target_ids.len();
    let mut tokens = vec![-1; shapes.parents.len()];
    let mut probs = vec![0.0; logits.values.len()];
    let mut scratch = DraftScratch::default();
    for (index, noise, range) in rows.sampled() {
        let mut usable = true;
        for row in range.clone() {
            let row = row * columns..(row + 1) * columns;
            usable &= core::draft_probs(
                &logits.values[row.clone()],
                noise.temperature,
                &mut scratch,
                &mut probs[row],
            );
        }
        if usable {
            let nodes = shapes.starts[index] as usize..shapes.starts[index + 1] as usize;
            let drawn = core::sample_tree(
                &probs[range.start * columns..range.end * columns],
                logits.target_ids,
                &shapes.parents[nodes.clone()],
                noise,
                &mut scratch,
            )?;
            tokens[nodes].copy_from_slice(&drawn);
        }
    }
    Ok((tokens, probs))
}
