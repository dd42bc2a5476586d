"""One compiled component against the same component of eager kokoro in float64.

What it is: the isolated comparison behind ``--validate``. The component gets the reference's own inputs, rounded to what it
takes, as one ragged batch in buffers larger than the longest utterance and poisoned beyond each; the truth, and the error of
PyTorch in float32 as the yardstick, are computed from the same rounded inputs, utterance by utterance.
What it is not: the comparison of every inner stage, or of chained components.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

PHONEMES = ("wˈʌn", "ˌɑɹ ju kˈʌmɪŋ tənˈIt?", "ə")
"""A word, a question of a second and a half, a single phoneme."""
TOLERANCE = {name: DECODER if name == "decoder" else ENCODER for name in COMPONENTS}

_SPARE = 5
"""Rows of capacity beyond the longest utterance."""
_FORBIDDEN_ID = -1
"""Poison for token ids; reading it is out of bounds."""


@dataclass(frozen=True)
class ParityRecord:
    """One output of one component for one utterance of the batch.

    Attributes:
        component: Its name.
        output: The output's name.
        phonemes: What the utterance says.
        snr_db: See ``metrics.Measurement``.
        pytorch_db: The same of eager PyTorch in float32.
        max_abs: The largest absolute error.
        finite: Whether every valid value is finite.
        floor_db: The least acceptable ``snr_db``.
        passed: Of the right shape, finite, not below the floor, and zero beyond the valid length.
    """

    component: str
    output: str
    phonemes: str
    snr_db: float
    pytorch_db: float
    max_abs: float
    finite: bool
    floor_db: float
    passed: bool


def check_component(
    engine: Engine | OnnxEngine,
    model64: ReferenceModel,
    model32: ReferenceModel,
    name: str,
    phonemes: Sequence[str] = PHONEMES,
) -> list[ParityRecord]:
    """Compares every output of a component for every utterance of a ragged batch.

    Args:
        engine: With this component loaded.
        model64: The same weights, eager in float64.
        model32: The same in float32.
        name: The component.
        phonemes: What to say, one utterance each.

    Returns:
        One record per output and utterance.
    """
    component = COMPONENTS[name]
    inputs, lengths = zip(*(_reference_inputs(model64, component, p) for p in phonemes), strict=True)
    shape = {"B": len(phonemes), component.capacity: max(lengths) + _SPARE}
    results = engine.run(name, *(_padded(s, column, shape) for s, *column in zip(component.inputs, *inputs, strict=True)))
    tolerance = for_dtype(TOLERANCE[name], engine.manifest.dtype)
    records = []
    for row, said in enumerate(phonemes):
        truth, single = _computed(model64, name, inputs[row]), _computed(model32, name, inputs[row])
        for spec, result, exact, yardstick in zip(component.outputs, results, truth, single, strict=True):
            record = _judge(name, spec.name, said, result[row : row + 1], exact, yardstick, tolerance)
            records.append(record if result.shape == spec.resolve(**shape) else replace(record, passed=False))
    return records


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


def _computed(model: ReferenceModel, name: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
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


def _padded(spec: TensorSpec, arrays: Sequence[np.ndarray], shape: dict[str, int]) -> np.ndarray:
    """Every array [1, ...] at the start of a row of a batch, with poison behind it."""
    poison = _FORBIDDEN_ID if arrays[0].dtype == np.int64 else np.nan
    batch = np.full(spec.resolve(**shape), poison, arrays[0].dtype)
    for row, array in enumerate(arrays):
        batch[(row, *(slice(n) for n in array.shape[1:]))] = array[0]
    return batch


def _judge(
    component: str,
    output: str,
    phonemes: str,
    result: np.ndarray,
    truth: np.ndarray,
    single: np.ndarray,
    tolerance: Tolerance,
) -> ParityRecord:
    inside = tuple(slice(n) for n in truth.shape)
    found = compare(result[inside], truth)
    beyond = result.copy()
    beyond[inside] = 0
    yardstick = compare(single, truth)
    passed = tolerance.passes(found, yardstick) and not beyond.any()
    return ParityRecord(
        component, output, phonemes, found.snr_db, yardstick.snr_db, found.max_abs, found.finite == 1, tolerance.floor(yardstick),
        bool(passed),
    )  # fmt: skip
