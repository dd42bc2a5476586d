"""One compiled component against the same component of eager kokoro in float64.

What it is: the isolated comparison behind ``--validate``. The component gets the reference's own inputs, rounded to what it
takes, in buffers larger than the utterance and poisoned beyond it; the truth is computed from the same rounded inputs.
What it is not: the comparison of every inner stage, or of chained components.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kokoro_tvm.reference import components as eager
from kokoro_tvm.reference.model import ReferenceModel
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.runtime import alignment
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.stages import COMPONENTS, Component, TensorSpec
from kokoro_tvm.validate.metrics import compare
from kokoro_tvm.validate.tolerances import DECODER, ENCODER, Tolerance, for_dtype

if TYPE_CHECKING:
    from kokoro_tvm.runtime.onnx_engine import OnnxEngine

PHONEMES = "ˌɑɹ ju kˈʌmɪŋ tənˈIt?"
"""A question of a second and a half."""
TOLERANCE = {name: DECODER if name == "decoder" else ENCODER for name in COMPONENTS}

_SPARE = 5
"""Rows of capacity beyond the utterance."""
_FORBIDDEN_ID = -1
"""Poison for token ids; reading it is out of bounds."""


@dataclass(frozen=True)
class ParityRecord:
    """One output of one component.

    Attributes:
        component: Its name.
        output: The output's name.
        snr_db: See ``metrics.Measurement``.
        max_abs: The largest absolute error.
        finite: Whether every valid value is finite.
        floor_db: The least acceptable ``snr_db``.
        passed: Finite, not below the floor, and zero beyond the valid length.
    """

    component: str
    output: str
    snr_db: float
    max_abs: float
    finite: bool
    floor_db: float
    passed: bool


def check_component(
    engine: Engine | OnnxEngine, model64: ReferenceModel, name: str, phonemes: str | None = None
) -> list[ParityRecord]:
    """Compares every output of a component.

    Args:
        engine: With this component loaded.
        model64: The same weights, eager in float64.
        name: The component.
        phonemes: What to say; ``PHONEMES`` if None.

    Returns:
        One record per output, in order.
    """
    component = COMPONENTS[name]
    inputs, length = _reference_inputs(model64, component, PHONEMES if phonemes is None else phonemes)
    truth = _truth(model64, name, inputs)
    capacity = {component.capacity: length + _SPARE}
    padded = [_padded(spec, array, capacity) for spec, array in zip(component.inputs, inputs, strict=True)]
    results = engine.run(name, *padded)
    tolerance = for_dtype(TOLERANCE[name], engine.manifest.dtype)
    pairs = zip(component.outputs, results, truth, strict=True)
    return [_judge(name, spec, result, exact, tolerance) for spec, result, exact in pairs]


def _reference_inputs(model: ReferenceModel, component: Component, phonemes: str) -> tuple[list[np.ndarray], int]:
    """The inputs as eager kokoro computes them, rounded to their dtypes, unpadded; and their length."""
    ids = eager.token_ids(model, phonemes)
    row = eager.style_row(synthetic_voice(0), ids)
    prosody = row[:, eager.PREDICTOR_STYLE]
    d_en = eager.run_bert(model, ids)
    d, duration = eager.run_duration(model, d_en, prosody)
    pred_dur = alignment.frame_counts(duration[0].float().numpy())
    frames = int(pred_dur.sum())
    en = torch.from_numpy(alignment.expand(d.transpose(1, 2).numpy(), pred_dur))
    tensors = {"input_ids": ids, "d_en": d_en, "en": en, "style": prosody}
    if component.name == "decoder":
        f0, n = eager.run_f0n(model, en, prosody)
        asr = torch.from_numpy(alignment.expand(eager.run_text_encoder(model, ids).numpy(), pred_dur))
        noise = eager.seeded_noise(0)(frames)
        tensors |= {"asr": asr, "f0": f0, "n": n, "noise": noise, "style": row[:, eager.DECODER_STYLE]}
    length = ids.shape[1] if component.capacity == "N" else frames
    tensors[component.lengths] = torch.tensor([length])
    return [tensors[s.name].numpy().astype(s.dtype) for s in component.inputs], length


def _truth(model: ReferenceModel, name: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    component = COMPONENTS[name]
    tensors = [torch.from_numpy(a) for a, s in zip(inputs, component.inputs, strict=True) if s.name != component.lengths]
    functions: dict[str, Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]] = {
        "bert": eager.run_bert,
        "duration": eager.run_duration,
        "text_encoder": eager.run_text_encoder,
        "f0n": eager.run_f0n,
        "decoder": eager.run_decoder,
    }
    result = functions[name](model, *tensors)
    return [o.numpy() for o in (result if isinstance(result, tuple) else (result,))]


def _padded(spec: TensorSpec, array: np.ndarray, capacity: dict[str, int]) -> np.ndarray:
    """``array`` at the start of a buffer for ``capacity``, with poison behind it."""
    poison = _FORBIDDEN_ID if array.dtype == np.int64 else np.nan
    buffer = np.full(spec.resolve(B=1, **capacity), poison, array.dtype)
    buffer[tuple(slice(n) for n in array.shape)] = array
    return buffer


def _judge(
    component: str, spec: TensorSpec, result: np.ndarray, truth: np.ndarray, tolerance: Tolerance
) -> ParityRecord:
    inside = tuple(slice(n) for n in truth.shape)
    found = compare(result[inside], truth)
    beyond = result.copy()
    beyond[inside] = 0
    floor = tolerance.floor_db
    # A comparison with NaN is false: what cannot be measured does not pass.
    passed = found.comparable and found.snr_db >= floor and not beyond.any()
    return ParityRecord(component, spec.name, found.snr_db, found.max_abs, found.finite == 1, floor, bool(passed))
