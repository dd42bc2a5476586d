"""The model's configuration, as published in ``config.json``.

What it is: a frozen, checked mirror of the file that the checkpoint is distributed with.
What it is not: options of the compiler or the runtime.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kokoro_tvm.errors import CheckpointError

SAMPLE_RATE = 24_000
"""Hz."""
SAMPLES_PER_FRAME = 600
"""Audio samples per duration frame (40 frames a second)."""
STYLE_ROWS = 510
"""Rows of a voice tensor, one per phoneme count; also the most phonemes of one window."""
PARTS = ("bert", "bert_encoder", "predictor", "text_encoder", "decoder")
"""The top-level entries of a published checkpoint, which are also the attributes of ``KModel``."""
DEFAULT_SEQ_LEN = 512
"""Tokens of the longest window: its phonemes and a marker at both ends."""


@dataclass(frozen=True)
class PlBertConfig:
    """ALBERT sizes (``config.json``: ``plbert``)."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    num_hidden_layers: int
    dropout: float


@dataclass(frozen=True)
class IstftNetConfig:
    """Vocoder sizes (``config.json``: ``istftnet``)."""

    upsample_kernel_sizes: tuple[int, ...]
    upsample_rates: tuple[int, ...]
    gen_istft_hop_size: int
    gen_istft_n_fft: int
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]
    resblock_kernel_sizes: tuple[int, ...]
    upsample_initial_channel: int


@dataclass(frozen=True)
class ModelConfig:
    """The whole of ``config.json``; unknown and missing keys are refused."""

    istftnet: IstftNetConfig
    dim_in: int
    dropout: float
    hidden_dim: int
    max_conv_dim: int
    max_dur: int
    multispeaker: bool
    n_layer: int
    n_mels: int
    n_token: int
    style_dim: int
    text_encoder_kernel_size: int
    plbert: PlBertConfig
    vocab: dict[str, int]

    def __post_init__(self) -> None:
        net = self.istftnet
        problems = []
        scale = net.gen_istft_hop_size
        for rate in net.upsample_rates:
            scale *= rate
        if 2 * scale != SAMPLES_PER_FRAME:
            problems.append(f"upsample_rates and gen_istft_hop_size give {2 * scale} samples a frame, not {SAMPLES_PER_FRAME}")
        if len(net.resblock_kernel_sizes) != len(net.resblock_dilation_sizes):
            problems.append("resblock_kernel_sizes and resblock_dilation_sizes differ in length")
        if len(net.upsample_kernel_sizes) != len(net.upsample_rates):
            problems.append("upsample_kernel_sizes and upsample_rates differ in length")
        if self.plbert.hidden_size % self.plbert.num_attention_heads:
            problems.append("plbert.hidden_size is not a multiple of plbert.num_attention_heads")
        bad = sorted(s for s, i in self.vocab.items() if not 0 < i < self.n_token)
        if bad:
            problems.append(f"vocab ids outside 1..{self.n_token - 1}: {bad[:5]}")
        if problems:
            raise CheckpointError("configuration: " + "; ".join(problems))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ModelConfig:
        """Builds a configuration from parsed JSON.

        Raises:
            CheckpointError: Naming every missing and unknown key at once.
        """
        raw = dict(raw)
        problems = _key_problems(cls, raw, "")
        for name, part in (("istftnet", IstftNetConfig), ("plbert", PlBertConfig)):
            if isinstance(raw.get(name), dict):
                problems += _key_problems(part, raw[name], f"{name}.")
        if problems:
            raise CheckpointError("configuration: " + "; ".join(problems))
        raw["istftnet"] = IstftNetConfig(**{k: _frozen(v) for k, v in raw["istftnet"].items()})
        raw["plbert"] = PlBertConfig(**raw["plbert"])
        return cls(**raw)

    @classmethod
    def from_file(cls, path: Path) -> ModelConfig:
        """Reads ``config.json``."""
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise CheckpointError(f"cannot read the configuration {path}: {error}") from error
        if not isinstance(raw, dict):
            raise CheckpointError(f"{path} holds {type(raw).__name__}, expected a JSON object")
        return cls.from_dict(raw)

    def to_dict(self) -> dict[str, Any]:
        """The published JSON form."""
        return json.loads(json.dumps(asdict(self)))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


def _key_problems(cls: type, raw: dict[str, Any], prefix: str) -> list[str]:
    known = {f.name for f in fields(cls)}
    problems = [f"missing {prefix}{k}" for k in sorted(known - raw.keys())]
    return problems + [f"unknown {prefix}{k}" for k in sorted(raw.keys() - known)]
