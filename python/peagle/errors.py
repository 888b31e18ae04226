"""Every error peagle raises on purpose derives from `PeagleError`.

The message says what is wrong, with the values; the attribute `hint` says what to do about it, or
is None. The classes of the scheduler and of verification come from one table in the Rust core;
those of files, models and prompts are defined here.
"""

from __future__ import annotations

from peagle._core import (
    DraftProbsSumError,
    DuplicateRequestError,
    EmptyPromptError,
    IllegalDraftsError,
    InfiniteLogitsError,
    InvalidConfigError,
    InvalidDraftProbError,
    InvalidDraftVocabularyError,
    InvalidMaxTokensError,
    InvalidMinPError,
    InvalidParameterError,
    InvalidTemperatureError,
    InvalidTokenError,
    InvalidTopKError,
    InvalidTopPError,
    InvalidTreeError,
    KvCapacityError,
    MaskedLogitsError,
    MissingDraftProbsError,
    NanLogitsError,
    PeagleError,
    ProcessorFailedError,
    PromptTooLongError,
    ShapeMismatchError,
    SpeculationCapError,
    StepOrderError,
    TokenOutsideVocabularyError,
    TooManyDraftsError,
    UnknownRequestError,
)

__all__ = [
    "BadWordError",
    "ChatTemplateError",
    "CheckpointError",
    "ConfigError",
    "DatasetError",
    "DatasetMissingError",
    "DemoPackageMissingError",
    "DemoTargetError",
    "DraftProbsSumError",
    "DraftVocabularyError",
    "DuplicateRequestError",
    "EmptyPromptError",
    "FileWriteError",
    "GenerationError",
    "HeadMismatchError",
    "HeadMissingError",
    "IllegalDraftsError",
    "InfiniteLogitsError",
    "InvalidConfigError",
    "InvalidDraftProbError",
    "InvalidDraftVocabularyError",
    "InvalidMaxTokensError",
    "InvalidMinPError",
    "InvalidParameterError",
    "InvalidTemperatureError",
    "InvalidTokenError",
    "InvalidTopKError",
    "InvalidTopPError",
    "InvalidTreeError",
    "KvCapacityError",
    "MaskHiddenError",
    "MaskedLogitsError",
    "MissingDraftProbsError",
    "NanLogitsError",
    "PeagleError",
    "ProcessorFailedError",
    "PromptError",
    "PromptTooLongError",
    "ShapeMismatchError",
    "SpeculationCapError",
    "StepOrderError",
    "StopStringError",
    "TokenOutsideVocabularyError",
    "TokenizerError",
    "TokenizerMissingError",
    "TooManyDraftsError",
    "TrainingDivergedError",
    "UnknownArgumentError",
    "UnknownRequestError",
]


class _HintedError(PeagleError):
    """An error made in Python, which may carry a hint."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(_HintedError):
    """An argument or a configuration file has a value that cannot be used."""


class UnknownArgumentError(_HintedError):
    """An argument has a name that nothing takes."""


class PromptError(_HintedError):
    """A prompt cannot be used: no tokens, ids outside the vocabulary, or too long."""


class StopStringError(_HintedError):
    """A stop string cannot be used."""


class BadWordError(_HintedError):
    """A bad word cannot be used."""


class GenerationError(_HintedError):
    """A request ended with an error."""


class CheckpointError(_HintedError):
    """A model folder is missing a tensor, has an unusable one, or cannot be read."""


class HeadMissingError(_HintedError):
    """A call needs a head, and none was loaded."""


class HeadMismatchError(_HintedError):
    """A head does not fit the target."""


class MaskHiddenError(_HintedError):
    """A head has no mask embedding: it is not a P-EAGLE head."""


class DraftVocabularyError(_HintedError):
    """A head's map from draft ids to target ids is missing or wrong."""


class TokenizerError(_HintedError):
    """A tokenizer cannot be read or used."""


class TokenizerMissingError(_HintedError):
    """A call needs a tokenizer, and the model folder has none."""


class ChatTemplateError(_HintedError):
    """A chat template is missing, malformed, or refuses the messages."""


class DatasetError(_HintedError):
    """A prompt file or set cannot be read."""


class DatasetMissingError(_HintedError):
    """A known prompt set is not installed; the hint is the install line."""


class DemoPackageMissingError(_HintedError):
    """The package with the demo target is not installed."""


class DemoTargetError(_HintedError):
    """The demo target's file is not the expected one."""


class TrainingDivergedError(_HintedError):
    """The loss of a training iteration is not a finite number."""


class FileWriteError(_HintedError):
    """A file cannot be written."""
