"""Audio to bytes and files.

What it is: mono 24 kHz samples as WAV (float32 or 16 bit) or FLAC (16 or 24 bit), written all or nothing. WAV is written
here, so that equal samples give equal bytes (libsndfile stamps the time into float WAV files); FLAC is libsndfile's. What it
is not: playback, resampling, or a normalizer of loudness.
"""

from __future__ import annotations

import io
import secrets
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from kokoro_tvm.config import SAMPLE_RATE
from kokoro_tvm.errors import InputError, OutputError, ToolchainError

SUBTYPES = {".wav": ("FLOAT", "PCM_16"), ".flac": ("PCM_24", "PCM_16")}
"""Sample formats of each file type; the first is the default. Only FLOAT keeps the samples exactly."""


class ClippingWarning(UserWarning):
    """Samples beyond full scale were cut to it by an integer format."""


def write_audio(path: str | Path, samples: np.ndarray, subtype: str | None = None) -> Path:
    """Writes samples to a file; the type follows from the suffix, ``.wav`` or ``.flac``.

    The file appears complete or not at all, and a file already there is replaced only by a complete one.

    Args:
        path: Where to write; its directory must exist.
        samples: f32 [T], 24 kHz, full scale ±1.
        subtype: One of ``SUBTYPES[suffix]``; None for the default.

    Returns:
        The path written.

    Raises:
        OutputError: Unknown suffix or subtype, or the path cannot be written.
        InputError: The samples are not a finite float vector.
        ToolchainError: FLAC without the ``soundfile`` package.
    """
    path = Path(path)
    _replace(path, encode_audio(samples, path.suffix, subtype))
    return path


def encode_audio(samples: np.ndarray, suffix: str = ".wav", subtype: str | None = None) -> bytes:
    """The bytes of an audio file; arguments and errors as ``write_audio``."""
    kind = suffix.lower()
    if kind not in SUBTYPES:
        raise OutputError(f"audio file type {suffix!r} is unknown, expected one of {', '.join(SUBTYPES)}")
    subtype = subtype or SUBTYPES[kind][0]
    if subtype not in SUBTYPES[kind]:
        raise OutputError(f"{kind} cannot hold {subtype!r}, expected one of {', '.join(SUBTYPES[kind])}")
    samples = check_samples(samples)
    if subtype != "FLOAT":
        samples = _clip(samples, subtype)
    return _wav(samples, subtype) if kind == ".wav" else _flac(samples, subtype)


def concatenate(pieces: Iterable[np.ndarray], silence: float = 0.0) -> np.ndarray:
    """Joins pieces of audio, with ``silence`` seconds of zeros between two.

    Args:
        pieces: f32 [T_i] each; none gives an empty array.
        silence: Seconds, not negative.

    Returns:
        f32 [T].

    Raises:
        InputError: A piece is not a finite float vector, or ``silence`` is negative or not finite.
    """
    if not 0 <= silence < float("inf"):
        raise InputError(f"silence is {silence} s, expected a finite number of seconds, not negative")
    gap = np.zeros(round(silence * SAMPLE_RATE), dtype=np.float32)
    parts: list[np.ndarray] = []
    for piece in pieces:
        parts += [gap, check_samples(piece)] if parts else [check_samples(piece)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)


def check_samples(samples: np.ndarray) -> np.ndarray:
    """Returns samples as contiguous f32 [T].

    Raises:
        InputError: Not one-dimensional, not floating point, or not finite.
    """
    samples = np.asarray(samples)
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise InputError(f"audio is {samples.dtype} {list(samples.shape)}, expected float32 [T]")
    with np.errstate(over="ignore"):
        samples = np.ascontiguousarray(samples, dtype=np.float32)
    bad = samples.size - int(np.isfinite(samples).sum())
    if bad:
        raise InputError(f"audio holds {bad} samples of {samples.size} that are not finite; it was not written")
    return samples


def _clip(samples: np.ndarray, subtype: str) -> np.ndarray:
    over = int((np.abs(samples) > 1).sum())
    if over:
        warnings.warn(
            f"{over} of {samples.size} samples exceed full scale (peak {np.abs(samples).max():.3f}) and are clipped by "
            f"{subtype}; write FLOAT WAV to keep them",
            ClippingWarning,
            stacklevel=4,
        )
    return np.clip(samples, -1, 1)


def _wav(samples: np.ndarray, subtype: str) -> bytes:
    """A canonical RIFF file: format 3 (IEEE float, with the ``fact`` chunk it asks for) or format 1 (PCM)."""
    if subtype == "FLOAT":
        data = samples.astype("<f4").tobytes()
        header = _chunk(b"fmt ", struct.pack("<HHIIHHH", 3, 1, SAMPLE_RATE, 4 * SAMPLE_RATE, 4, 32, 0))
        header += _chunk(b"fact", struct.pack("<I", samples.size))
    else:
        data = np.rint(samples.astype(np.float64) * 32767).astype("<i2").tobytes()
        header = _chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16))
    if len(header) + len(data) + 12 >= 2**32:
        raise OutputError(f"{samples.size} samples exceed the 4 GiB of a WAV file; write the text in parts")
    return _chunk(b"RIFF", b"WAVE" + header + _chunk(b"data", data))


def _chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body


def _flac(samples: np.ndarray, subtype: str) -> bytes:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: libsndfile itself is missing
        raise ToolchainError(f"writing FLAC needs the soundfile package ({error}): pip install soundfile") from error
    if not samples.size:
        raise InputError("audio has no samples, which FLAC cannot hold; WAV can")
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SAMPLE_RATE, format="FLAC", subtype=subtype)
    return buffer.getvalue()


def _replace(path: Path, content: bytes) -> None:
    """Writes a file beside ``path`` and moves it there, so that no reader ever sees half of it."""
    if path.exists() and not path.is_file():
        raise OutputError(f"cannot write {path}: it exists and is not a regular file")
    # Resolved, so that a symbolic link stays and what it points to is replaced.
    target = path.resolve()
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
