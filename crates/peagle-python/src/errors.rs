//! One Python exception class for each variant of the core's error, all under `PeagleError`.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use peagle_core::Error;

create_exception!(
    peagle.errors,
    PeagleError,
    PyException,
    "Base class of what peagle raises; `hint` says what to do about it, or is None."
);

/// The table: core variant, Python class, what it means.
macro_rules! exceptions {
    ($($variant:ident => $class:ident, $doc:literal;)*) => {
        $(create_exception!(peagle.errors, $class, PeagleError, $doc);)*

        /// Adds all classes to the module.
        pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let py = module.py();
            let base = py.get_type::<PeagleError>();
            base.setattr("hint", py.None())?;
            module.add("PeagleError", base)?;
            $(module.add(stringify!($class), py.get_type::<$class>())?;)*
            Ok(())
        }

        fn new_err(error: &Error) -> PyErr {
            let message = error.to_string();
            match error {
                $(Error::$variant { .. } => $class::new_err(message),)*
            }
        }
    };
}

exceptions! {
    InvalidConfig => InvalidConfigError, "A number of the scheduler's configuration is out of range.";
    EmptyPrompt => EmptyPromptError, "A request came without a prompt token.";
    PromptTooLong => PromptTooLongError, "A prompt leaves no room for one output token.";
    InvalidToken => InvalidTokenError, "A token id is negative.";
    InvalidMaxTokens => InvalidMaxTokensError, "max_tokens is below one.";
    InvalidTemperature => InvalidTemperatureError, "The temperature is negative or not finite.";
    InvalidTopP => InvalidTopPError, "top_p is outside (0, 1].";
    InvalidMinP => InvalidMinPError, "min_p is outside [0, 1].";
    InvalidTopK => InvalidTopKError, "top_k is negative.";
    InvalidParameter => InvalidParameterError, "A parameter of a request is outside its range.";
    TokenOutsideVocabulary => TokenOutsideVocabularyError, "A parameter names a token that the target does not have.";
    ProcessorFailed => ProcessorFailedError, "A request's own logits processor failed.";
    SpeculationCap => SpeculationCapError, "num_speculative_tokens is above the engine's cap.";
    KvCapacity => KvCapacityError, "A request could never fit into the KV pool.";
    DuplicateRequest => DuplicateRequestError, "A request id is already in use.";
    UnknownRequest => UnknownRequestError, "Drafts name a request that was not asked for any.";
    TooManyDrafts => TooManyDraftsError, "More draft tokens than a request may have.";
    InvalidTree => InvalidTreeError, "A token tree is malformed.";
    IllegalDrafts => IllegalDraftsError, "The verification method cannot take drafts chosen in this way.";
    MissingDraftProbs => MissingDraftProbsError, "Sampled drafts came without the probabilities that drew them.";
    InvalidDraftProb => InvalidDraftProbError, "A draft probability cannot be one, or is 0 for a drafted token.";
    DraftProbsSum => DraftProbsSumError, "The draft probabilities of a depth do not sum to 1.";
    InvalidDraftVocabulary => InvalidDraftVocabularyError, "The map from draft ids to target ids is unusable.";
    ShapeMismatch => ShapeMismatchError, "Arrays do not have the lengths that they should.";
    StepOrder => StepOrderError, "schedule and update were called out of turn.";
    NanLogits => NanLogitsError, "A row of target logits has a NaN.";
    InfiniteLogits => InfiniteLogitsError, "A row of target logits has positive infinity.";
    MaskedLogits => MaskedLogitsError, "A row of target logits has no finite value.";
}

/// The Python exception of a core error, with its hint.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let raised = new_err(error);
    match raised.value(py).setattr("hint", error.hint()) {
        Ok(()) => raised,
        Err(failed) => failed,
    }
}
