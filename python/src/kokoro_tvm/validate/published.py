"""What a correct build keeps of every tensor on the published weights, so that a loss is noticed.

What it is: the least signal-to-noise ratios that were measured there (``NOTES/007-fidelity.md`` has the utterances and the CPUs),
and the floors made of them. ``tolerances`` says what float32 must keep with any weights; on these much more is known. What it is
not: a judgement of the 8-bit rounding of the packaged weights, which the reference has too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeVar

from kokoro_tvm.validate.tolerances import AUDIO_CHAINED, BEHIND_DB, EXACT, Tolerance

Value = TypeVar("Value")

MARGIN_DB = 5.0
"""Below the least that was measured: other texts, voices and CPUs get 5 dB, and a loss of 10 fails."""

ISOLATED: dict[str, tuple[tuple[str, float], ...]] = {
    "bert": (("bert", 125.2), ("d_en", 123.1)),
    "duration": (("duration_encoder.*", 136.0), ("d", 137.8), ("duration.lstm", 137.3), ("duration", 137.7)),
    "text_encoder": (("text_encoder.cnn.*", 134.3), ("text_encoder.lstm", 138.8), ("t_en", 138.8)),
    "f0n": (
        ("f0n.shared", 138.7), ("f0n.f0.0", 134.4), ("f0n.f0.1", 139.4), ("f0n.f0.2", 136.1), ("f0", 136.7),
        ("f0n.n.0", 132.8), ("f0n.n.1", 137.3), ("f0n.n.2", 134.9), ("n", 138.3),
    ),
    "source": (("har_magnitude", 151.6), ("har_phase", 143.1)),
    "trunk": (
        ("decoder.f0", 143.3), ("decoder.n", 147.6), ("decoder.asr_res", 136.2), ("decoder.encode", 129.3), ("decoder.*", 127.8),
    ),
    "generator": (
        ("noise_conv.0", 140.3), ("noise_conv.1", 148.9), ("noise_res.0", 133.5), ("noise_res.1", 143.0), ("upsampled.*", 135.5),
        ("resblocks.0", 122.6), ("resblocks.1", 127.1), ("conv_post", 131.1), ("spectrum", 127.3), ("phase", 130.5),
        ("audio", 113.0),
    ),
    "decoder": (("audio", 112.1),),
}  # fmt: skip
"""Stage to its tensors (patterns), each with the least that was measured, in dB."""

CHAINED: dict[str, float] = {
    "d_en": 123.1, "d": 127.8, "duration": 138.1, "en": 128.5, "f0": 132.0, "n": 137.3, "t_en": 138.8, "asr": 139.0,
}  # fmt: skip
"""The same where every stage is fed by the one before."""

_SOURCE = Tolerance(
    "harmonic source, published weights",
    185.0,
    "what is measured is eager kokoro's own float64: its phase is a sum that reaches 3e5 radians at 30 s, where 191 dB are left",
)
_AUDIO_CHAINED = replace(
    AUDIO_CHAINED,
    name="audio, chained, published weights",
    floor_db=40.0,
    reason="51 dB is the least that was measured, 90 what no flipped bin leaves; one flip at ±π more costs 10 dB and more",
)
_BEHIND: dict[str, tuple[float, str]] = {
    "duration": (9.0, "a sum of fifty sigmoids over few tokens: PyTorch's own error varies by 13 dB between texts"),
    "resblocks.*": (9.0, "transforms along time multiply rounding, which PyTorch's direct sums do not; the audio gains it back"),
    "conv_post": (6.0, "as the residual blocks before it"),
    "spectrum": (6.0, "as the residual blocks before it"),
}
"""Tensors that may lie further behind float32 PyTorch than others: by how much, and why."""
_COMPENSATED = "sums are compensated here so that F0 keeps more than PyTorch's"
_AHEAD: dict[str, tuple[float, str]] = {
    "bert": (-5.0, _COMPENSATED), "d_en": (-5.0, _COMPENSATED), "duration_encoder.*": (-5.0, _COMPENSATED),
    "d": (-5.0, _COMPENSATED), "duration.lstm": (-5.0, _COMPENSATED), "f0n.shared": (-5.0, _COMPENSATED),
    "f0": (-2.0, _COMPENSATED), "n": (-2.0, _COMPENSATED),
}  # fmt: skip
"""Tensors that have to be closer to float64 than float32 PyTorch is, given the same inputs: by how much, and why."""


def on_published_weights(stage: str, tensor: str, mode: str, tolerance: Tolerance) -> Tolerance:
    """The tolerance of a float32 tensor on the published weights.

    Args:
        stage: Its stage in ``tolerances.STAGES``.
        tensor: Its name.
        mode: ``isolated`` or ``chained``.
        tolerance: What holds with any weights.
    """
    if tolerance is EXACT:
        return tolerance
    if tensor == "har_source":
        return _SOURCE
    if mode == "chained" and tensor == "audio":
        return _AUDIO_CHAINED
    least = CHAINED[tensor] if mode == "chained" else _first(ISOLATED[stage], tensor)
    reason = f"{least:g} dB is the least that was measured, {MARGIN_DB:g} dB are for other texts, voices and CPUs"
    known = (*_BEHIND.items(), *(_AHEAD.items() if mode == "isolated" else ()), ("*", (BEHIND_DB, "")))
    behind, why = _first(known, tensor)
    return Tolerance(
        f"{stage}: {tensor}, published weights", least - MARGIN_DB, f"{reason}{'; ' if why else ''}{why}", behind_db=behind
    )


def _first(patterns: Sequence[tuple[str, Value]], name: str) -> Value:
    """The value of the first pattern that fits."""
    return next(value for pattern, value in patterns if fnmatchcase(name, pattern))
