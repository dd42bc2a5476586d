"""From predicted durations to frames.

What it is: the reference's rounding of durations, and the expansion of token features to frames as a gather. What it is
not: a matrix product with a one-hot alignment, which gives the same values at a hundred times the cost.
"""

from __future__ import annotations

import math

import numpy as np

from kokoro_tvm.config import SAMPLES_PER_FRAME
from kokoro_tvm.errors import InputError

MAX_FRAMES = (2**31 - 1) // (SAMPLES_PER_FRAME * 9)
"""Frames of one utterance (2.7 hours): the noise tensor [600 M, 9] stays indexable with 32 bits."""


def check_speed(speed: float) -> float:
    """Returns ``speed`` as a float.

    Raises:
        InputError: Not a number, not finite, or not above zero.
    """
    if isinstance(speed, bool) or not isinstance(speed, int | float | np.integer | np.floating):
        raise InputError(f"speed is {speed!r}, expected a number above 0 (1 is normal, 2 twice as fast)")
    if not math.isfinite(speed) or speed <= 0:
        raise InputError(f"speed is {speed}, expected a finite number above 0 (1 is normal, 2 twice as fast)")
    return float(speed)


def frame_counts(duration: np.ndarray, speed: float = 1.0) -> np.ndarray:
    """Rounds predicted durations to whole frames: divide by the speed in float32, round half to even, at least 1.

    Args:
        duration: f32[N], frames per token before division by the speed; only the valid tokens.
        speed: Above 0; 2 halves every duration.

    Returns:
        ``pred_dur``, int64 [N], each at least 1.

    Raises:
        InputError: A bad speed, a wrong shape, a duration that is not finite, or more than ``MAX_FRAMES`` in total.
    """
    duration = np.asarray(duration, dtype=np.float32)
    if duration.ndim != 1 or not duration.size:
        raise InputError(f"duration has shape {list(duration.shape)}, expected [N] with N of at least 1")
    if not np.isfinite(duration).all():
        raise InputError("duration holds values that are not finite")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        frames = np.maximum(np.rint(duration / np.float32(check_speed(speed))), np.float32(1))
    # Summed in float64 before the cast: an overflowing float has no integer.
    if not frames.sum(dtype=np.float64) <= MAX_FRAMES:
        raise InputError(f"speed {speed} asks for more than {MAX_FRAMES} frames: raise it")
    return frames.astype(np.int64)


def frame_index(pred_dur: np.ndarray) -> np.ndarray:
    """The token each frame belongs to.

    Args:
        pred_dur: Integer [N], each at least 1.

    Returns:
        int64 [M] with ``M = sum(pred_dur)``, non-decreasing.

    Raises:
        InputError: ``pred_dur`` is not an integer vector of positive counts.
    """
    pred_dur = np.asarray(pred_dur)
    if pred_dur.ndim != 1 or not np.issubdtype(pred_dur.dtype, np.integer):
        raise InputError(f"pred_dur is {pred_dur.dtype} {list(pred_dur.shape)}, expected integers [N]")
    if pred_dur.size and pred_dur.min() < 1:
        raise InputError(f"pred_dur holds {pred_dur.min()}, every token needs at least 1 frame")
    return np.repeat(np.arange(pred_dur.size, dtype=np.int64), pred_dur)


def expand(features: np.ndarray, pred_dur: np.ndarray, axis: int = -1) -> np.ndarray:
    """Repeats every token's features for the frames it lasts.

    Args:
        features: [C, N] (``axis=-1``) or [N, C] (``axis=0``); any dtype, any further leading axes with ``axis=-1``.
        pred_dur: Integer [N].
        axis: Where the tokens are.

    Returns:
        The same layout with M frames in place of N tokens, contiguous.

    Raises:
        InputError: The token axis of ``features`` and ``pred_dur`` differ in length.
    """
    index = frame_index(pred_dur)
    tokens = features.shape[axis] if -features.ndim <= axis < features.ndim else None
    if tokens != len(pred_dur):
        raise InputError(
            f"features {list(features.shape)} have {tokens} tokens on axis {axis}, pred_dur has {len(pred_dur)}"
        )
    return np.ascontiguousarray(np.take(features, index, axis=axis))
