"""How much error each stage may have, and why.

What it is: named floors for signal-to-noise ratios against eager kokoro in float64, and the table of stages that own them. A gate
is ``snr >= floor`` on a measurement that could be made; NaN, a missing tensor and another shape do not pass it.
What it is not: a wish. Float32 keeps 24 bits: one rounding leaves 150 dB, a sum of K·C products of one sign-mixed layer 130 to
140 dB, a stack of a dozen layers 105 to 125 dB. Floors lie below what a correct build reaches and far above what any fault does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from kokoro_tvm.validate.metrics import Measurement

BEHIND_DB = 3.0
"""How far a tensor may lie behind float32 PyTorch's: twice its error, as another order of sums may give."""
ONE_ROUNDING_DB = 150.0
"""What one rounding to float32 leaves: PyTorch is asked for no more."""


@dataclass(frozen=True)
class Tolerance:
    """A floor and the reason for its value.

    Attributes:
        name: For reports.
        floor_db: Least acceptable signal-to-noise ratio; infinite asks for equality.
        reason: Why it is what it is.
        behind_db: How far it may lie behind float32 PyTorch on the same tensor; infinite where that is no yardstick.
    """

    name: str
    floor_db: float
    reason: str
    behind_db: float = BEHIND_DB

    def floor(self, pytorch: Measurement | None) -> float:
        """The floor, raised to ``behind_db`` below what float32 PyTorch keeps of the same tensor, in dB."""
        if pytorch is None or not pytorch.comparable:
            return self.floor_db
        return max(self.floor_db, min(pytorch.snr_db, ONE_ROUNDING_DB) - self.behind_db)

    def passes(self, measured: Measurement | None, pytorch: Measurement | None = None) -> bool:
        """The gate; fails closed.

        Args:
            measured: What is judged, against float64.
            pytorch: Float32 PyTorch on the same tensor, against float64; None asks for ``floor_db`` alone.
        """
        return measured is not None and measured.comparable and measured.snr_db >= self.floor(pytorch)


EXACT = Tolerance("exact", math.inf, "whole numbers: one duration that differs moves everything behind it")
REWRITE = Tolerance("rewrite", 180.0, "float64 against float64: another order of sums and folded weight norms cost 1e-15 a layer")
REWRITE_SOURCE = Tolerance(
    "rewrite of the source",
    160.0,
    "eager kokoro sums the phase unwrapped: at 30 s float64 rounds 3e5 radians to 3e-10, 191 dB; weak bins' angles magnify 30 dB",
)
REWRITE_CHAINED = Tolerance(
    "rewrite, chained", 90.0, "float64 F0 with 1e-15 of error becomes 1e-10 in the source's phase; a bin at ±π then may flip"
)
ENCODER = Tolerance("encoder", 100.0, "float32 networks of up to a dozen layers and four LSTMs in a row keep 100 dB")
ENCODER_CHAINED = Tolerance("encoder, chained", 95.0, "the same, fed with the float32 results of the stages before")
CURVES_CHAINED = Tolerance("curves, chained", 90.0, "F0 and N see every encoder's rounding, and F0 has steps at voicing borders")
TRUNK = Tolerance("decoder blocks", 100.0, "five residual blocks in float32")
SOURCE = Tolerance("harmonic source", 95.0, "the phase sums up 600 samples a frame; float64 inside keeps float32's digits")
SPECTRUM = Tolerance("source spectrum", 95.0, "the source's digits: the transform itself runs in float64")
GENERATOR = Tolerance(
    "generator",
    105.0,
    "with the source's spectrum given nothing is ill-conditioned: forty float32 layers. Transforms along time multiply rounding "
    "by up to 16.5 dB a layer (11 taps), which PyTorch's direct sums do not",
    behind_db=16.5,
)
DECODER = Tolerance("decoder", 90.0, "from equal F0, N, text features and noise: the generator's error and the source's phases")
AUDIO_CHAINED = Tolerance(
    "audio, chained",
    10.0,
    "F0 rounded to float32 leaves 35 dB, F0 at 100 dB 10 to 25, as bins at ±π flip (all in float64); other noise -1 dB",
)

_AMPLIFICATION_BF16 = {2: 1.67, 3: 6.0, 7: 15.4, 11: 24.3}
"""Taps to what the scheme for bfloat16 products multiplies the power of rounding errors by, compared with a direct sum: the mean
over a tile's rows of the square of what ``winograd.amplification`` takes the largest of."""
_TRUNK_BF16 = 10 * _AMPLIFICATION_BF16[3]
_GENERATOR_BF16 = 2 * _AMPLIFICATION_BF16[2] + 6 * _AMPLIFICATION_BF16[7] + 12 * _AMPLIFICATION_BF16[11]


def _rounded(name: str, amplification: float, reason: str) -> Tolerance:
    """What bfloat16 products may cost.

    Rounding values with a normal distribution to 8 bits adds 0.18 of the squared unit roundoff to their power, 55.6 dB; a product
    has two factors. Errors of layers in a row are taken as independent, so that their powers add up, and twice that power is
    allowed: a model of the network that was chosen with the outcome known. It tells a wrong kernel from a right one, and does
    not say whether rounding can be heard: that is ``speech.gates``'s to judge.

    Args:
        name: For reports.
        amplification: What each layer's transform multiplies the power by, summed up over the longest row of layers.
        reason: Which layers.
    """
    unit_roundoff = 2.0**-8
    power = 2 * (2 * 0.18 * unit_roundoff**2) * amplification
    floor = round(-10 * math.log10(power), 1)
    return Tolerance(f"{name}, bf16", floor, f"two factors of 8 bits, {reason}", behind_db=math.inf)


_ROUNDED_BF16 = {
    TRUNK: _rounded("decoder blocks", _TRUNK_BF16, "ten layers of three taps in a row"),
    GENERATOR: _rounded("generator", _GENERATOR_BF16, "the first noise block, two rates and a residual block at each, in a row"),
    DECODER: _rounded("decoder", _TRUNK_BF16 + _GENERATOR_BF16, "the layers of trunk and generator in a row"),
}

_HALF_DB = 55.0
"""What float16 products cost a layer, in dB: float32 PyTorch keeps 126 of one convolution, two factors of 11 bits leave 71.
How errors grow from layer to layer is the model's doing, whatever their size: floors are float32's, less this. As with bfloat16
they tell a wrong kernel from a right one; whether it can be heard is for ``speech.gates``."""


def _half(tolerance: Tolerance) -> Tolerance:
    reason = f"float32's, less the {_HALF_DB:g} dB that two factors of 11 bits cost a layer"
    return Tolerance(f"{tolerance.name}, fp16", tolerance.floor_db - _HALF_DB, reason, behind_db=math.inf)


_ROUNDED = {
    dtype: {**rounded, AUDIO_CHAINED: replace(AUDIO_CHAINED, name=f"audio, chained, {dtype}", behind_db=math.inf)}
    for dtype, rounded in (("bf16", _ROUNDED_BF16), ("fp16", {t: _half(t) for t in (TRUNK, GENERATOR, DECODER)}))
}


def for_dtype(tolerance: Tolerance, dtype: str) -> Tolerance:
    """What a tensor may lose in an artifact of this ``dtype``: float32's tolerance where nothing is rounded."""
    return _ROUNDED.get(dtype, {}).get(tolerance, tolerance)


_OPERATORS = {
    "conv1d": Tolerance("convolution", 115.0, "sums of 128 float32 products; transforms along time magnify their rounding"),
    "conv_transpose1d": Tolerance("transposed convolution", 115.0, "as a convolution of a few taps"),
    "bilstm": Tolerance("LSTM", 115.0, "gates of 896 products, and a state carried through every step"),
    "adain": Tolerance("AdaIN", 115.0, "statistics over time and a shift that is the difference of two of its terms"),
    "istft": Tolerance("inverse STFT", 115.0, "exp, sine and cosine in float32"),
    "harmonic_source": Tolerance("harmonic source", 120.0, "float64 inside, float32 noise added"),
    "stft": Tolerance("STFT", 95.0, "float64 inside; phases of ±π are compared as they are, not modulo 2π"),
}
_OPERATORS_BF16 = {
    "conv1d": _rounded("convolution", max(_AMPLIFICATION_BF16.values()), "magnified by transforms along time"),
    "conv_transpose1d": _rounded("transposed convolution", _AMPLIFICATION_BF16[2], "two taps a phase, magnified a little"),
}
_MOVES = Tolerance("copy", math.inf, "moves values")
_OTHER = Tolerance("operator", 120.0, "a few float32 operations per value")


def operator_tolerance(operator: str, dtype: str = "float32") -> Tolerance:
    """What one operator may lose on given inputs, in a component whose convolutions multiply ``dtype``."""
    if operator in _OPERATORS_BF16 and dtype == "bf16":
        return _OPERATORS_BF16[operator]
    if operator in ("conv1d", "conv_transpose1d") and dtype == "fp16":
        return _half(_OPERATORS[operator])
    moves = ("to_rows", "to_columns", "mask_rows", "concat", "append_style")
    return _MOVES if operator in moves else _OPERATORS.get(operator, _OTHER)


@dataclass(frozen=True)
class Stage:
    """A part of the pipeline that is compared by itself.

    Attributes:
        name: For reports.
        component: The compiled component it belongs to.
        inputs: Names of its inputs in ``reference.trace``, or ``input_ids``, ``prosody``, ``timbre``, ``noise`` and ``x`` (the
            last decoder block's output).
        tensors: Patterns of the tensors it computes, inner ones first, each with its tolerance.
        lengths: The input whose last axis has one entry per token or frame, times ``rate``.
        rate: See above.
        rewrite: What the rewrite may lose in float64.
    """

    name: str
    component: str
    inputs: tuple[str, ...]
    tensors: tuple[tuple[str, Tolerance], ...]
    lengths: str
    rate: int = 1
    rewrite: Tolerance = REWRITE

    def tolerance(self, tensor: str) -> Tolerance | None:
        """The tolerance of one of its tensors; None if it does not compute it."""
        return next((t for pattern, t in self.tensors if fnmatchcase(tensor, pattern)), None)

    def expected(self, names: Sequence[str]) -> list[str]:
        """Those of ``names`` that this stage has to compute, in order."""
        return [n for n in names if self.tolerance(n) is not None]


STAGES: tuple[Stage, ...] = (
    Stage("bert", "bert", ("input_ids",), (("bert", ENCODER), ("d_en", ENCODER)), "input_ids"),
    Stage(
        "duration",
        "duration",
        ("d_en", "prosody"),
        (("duration_encoder.*", ENCODER), ("d", ENCODER), ("duration.lstm", ENCODER), ("duration", ENCODER)),
        "d_en",
    ),
    Stage("text_encoder", "text_encoder", ("input_ids",), (("text_encoder.*", ENCODER), ("t_en", ENCODER)), "input_ids"),
    Stage("f0n", "f0n", ("en", "prosody"), (("f0n.*", ENCODER), ("f0", ENCODER), ("n", ENCODER)), "en"),
    Stage(
        "source",
        "decoder",
        ("f0", "noise"),
        (("har_source", SOURCE), ("har_magnitude", SPECTRUM), ("har_phase", SPECTRUM)),
        "f0",
        rate=2,
        rewrite=REWRITE_SOURCE,
    ),
    Stage("trunk", "decoder", ("asr", "f0", "n", "timbre"), (("decoder.*", TRUNK),), "asr"),
    Stage(
        "generator",
        "decoder",
        ("x", "timbre", "har_magnitude", "har_phase"),
        tuple(
            (pattern, GENERATOR)
            for pattern in ("noise_*", "upsampled.*", "resblocks.*", "conv_post", "spectrum", "phase", "audio")
        ),
        "x",
        rate=2,
    ),
    Stage(
        "decoder",
        "decoder",
        ("asr", "f0", "n", "timbre", "noise"),
        (("audio", DECODER),),
        "asr",
        rewrite=REWRITE_SOURCE,
    ),
)
"""In pipeline order. ``source``, ``trunk`` and ``generator`` are the parts of the decoder, each with the reference's inputs."""

CHAINED: dict[str, tuple[str, Tolerance]] = {
    "d_en": ("bert", ENCODER_CHAINED),
    "d": ("duration", ENCODER_CHAINED),
    "duration": ("duration", ENCODER_CHAINED),
    "pred_dur": ("duration", EXACT),
    "en": ("duration", ENCODER_CHAINED),
    "f0": ("f0n", CURVES_CHAINED),
    "n": ("f0n", CURVES_CHAINED),
    "t_en": ("text_encoder", ENCODER_CHAINED),
    "asr": ("text_encoder", ENCODER_CHAINED),
    "samples": ("decoder", EXACT),
    "audio": ("decoder", AUDIO_CHAINED),
}
"""Tensor to the stage that makes it and its tolerance when every stage is fed by the one before."""
