"""The errors a caller can cause.

Every class here is a ``ValueError``: something the caller passed is wrong and the message says what was got, what was
expected and what to do. The command line turns them into one line and exit code 2. Broken invariants of our own are not
here: they raise ``AssertionError`` or ``RuntimeError`` and are bugs.
"""

from __future__ import annotations


class KokoroTvmError(ValueError):
    """Base of all errors that name a mistake in what was passed to kokoro-tvm."""


class InputError(KokoroTvmError):
    """A text, phoneme string, speed, seed or option that cannot be synthesized."""


class VoiceError(KokoroTvmError):
    """A voice that is missing, damaged, of the wrong shape or not finite."""


class CheckpointError(KokoroTvmError):
    """A checkpoint or configuration that is missing, damaged or does not match the architecture."""


class ArtifactError(KokoroTvmError):
    """A compiled artifact that is missing, damaged or was built for another machine or version."""


class OnnxError(KokoroTvmError):
    """An ONNX file that is missing, damaged or not a component of this layout."""


class CapacityError(KokoroTvmError):
    """An utterance that is longer than the capacity an artifact was compiled for."""


class OutputError(KokoroTvmError):
    """An output path that cannot be written."""


class ToolchainError(KokoroTvmError):
    """A package or tool that an optional feature needs and that is not installed."""
