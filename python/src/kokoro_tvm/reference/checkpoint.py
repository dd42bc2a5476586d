"""Reading a published checkpoint, completely or not at all.

What it is: the way from ``kokoro-v1_0.pth`` and ``config.json``, or from a published ONNX export, to checked weights, and from
there to an eager model or back to a file. What it is not: a packer; nothing is folded or renamed beyond the ``module.`` prefix
(``onnx.published`` undoes what exporting did).

The ``.pth`` file maps each of ``model.PARTS`` to a state dict whose keys start with ``module.`` (it was saved from
``DataParallel``). Upstream's loader (``kokoro/model.py``, ``KModel.__init__``) falls back to ``strict=False`` for
these, which hides every missing key. Here each key is accounted for, with three deliberate exceptions:

* ``….norm.weight`` and ``….norm.bias`` of ``AdaIN1d`` may be absent: the file predates ``affine=True``, which upstream
  added around an exporter bug and leaves at its initial 1 and 0. Absent ones are filled in with these.
* ``pooler.…`` of ALBERT may be absent: ``CustomAlbert`` returns the last hidden state, nothing reads the pooler.
* ``embeddings.position_ids`` and ``embeddings.token_type_ids`` may be present: older transformers saved these constant
  buffers. They are dropped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from huggingface_hub import hf_hub_download, hf_hub_url
from huggingface_hub.utils import get_session

from kokoro_tvm.config import ModelConfig
from kokoro_tvm.errors import CheckpointError, ToolchainError
from kokoro_tvm.onnx import packaged
from kokoro_tvm.reference.model import PARTS, REPOSITORY, ReferenceModel, expected_shapes, published_config

CHECKPOINT_FILE = "kokoro-v1_0.pth"
CONFIG_FILE = "config.json"
PROVENANCE_FILE = "provenance.json"
"""Beside a weight file that was made from another: a :class:`Provenance`."""
HUB_TIMEOUT = 5.0
"""Seconds that the model hub has to answer."""
PUBLISHED_SHA256 = "496dba118d1a58f5f3db2efc88dbdc216e0483fc89fe6e47ee1f2c53f18ad1e4"
"""Of ``kokoro-v1_0.pth``, from the model card of ``hexgrad/Kokoro-82M``."""
SYNTHETIC_MARKER = "synthetic"
"""Top-level entry of the files that ``synthetic`` writes. Upstream's loader refuses a file that has it."""

State = dict[str, dict[str, torch.Tensor]]
"""Part → parameter name → tensor."""

_AFFINE = re.compile(r"\.norm\.(weight|bias)$")
_UNUSED = re.compile(r"^pooler\.(weight|bias)$")
_CONSTANT = re.compile(r"^embeddings\.(position_ids|token_type_ids)$")


@dataclass(frozen=True)
class Checkpoint:
    """Weights that match their configuration.

    Attributes:
        config: The configuration the weights were checked against.
        state: Part → parameter name (no ``module.``) → float32 tensor on the CPU; complete and finite.
        sha256: Of the weight file.
        synthetic: True for a file that ``synthetic.write_synthetic_checkpoint`` wrote.
        source: The weight file, or repository and file on the hub.
        precision: What the weights have gone through: ``float32``, or words such as ``8-bit, dequantised``.
        notice: What whoever asked for them should be told: where they were taken from instead; empty if nothing.
    """

    config: ModelConfig
    state: State = field(repr=False)
    sha256: str
    synthetic: bool
    source: str
    precision: str = "float32"
    notice: str = ""

    @property
    def published(self) -> bool:
        """Whether this is a published file of Kokoro-82M v1.0, byte for byte, in full precision or in 8 bits."""
        return self.sha256 in (PUBLISHED_SHA256, packaged.SHA256)


@dataclass(frozen=True)
class Provenance:
    """What a weight file was made from.

    Attributes:
        sha256: Of the weight file; of any other, this says nothing.
        precision: See :class:`Checkpoint`.
        source: Name of the file it was made from.
        source_sha256: That file's hash.
    """

    sha256: str
    precision: str
    source: str
    source_sha256: str

    def to_json(self) -> str:
        """The content of ``PROVENANCE_FILE``."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def load_checkpoint(
    model: Path | str | None = None, config: Path | str | None = None, sha256: str | None = None
) -> Checkpoint:
    """Reads and checks weights and configuration.

    Args:
        model: A ``.pth`` file, a directory that holds ``kokoro-v1_0.pth``, or a published export ending in ``.onnx``. Default:
            the published weights, from the model hub or, where that cannot be reached, from installed packages, in 8 bits.
        config: A ``config.json``. Default: the one beside the weights, or the published one.
        sha256: Without ``model``: which of the published weights are wanted, where something was made from one of them.

    Returns:
        Weights in float32 that cover every parameter of the architecture.

    Raises:
        CheckpointError: A file is missing, damaged or unsafe, the published weights cannot be had, or the weights do not
            match: one error then names every missing, unexpected, mis-shaped and non-finite tensor.
    """
    if model is None:
        return _published_checkpoint(sha256, config)
    if Path(model).suffix == ".onnx":
        return _load_onnx(Path(model), config)
    weights, settings = _locate(Path(model), config)
    return _load_pth(weights, settings, str(weights))


def _published_checkpoint(sha256: str | None, config: Path | str | None) -> Checkpoint:
    """The file on the model hub or in its client's cache, or, where that cannot be had, the 8-bit one of the installed packages.

    ``HF_HUB_OFFLINE`` and ``HF_HOME`` are the hub client's.
    """
    unreachable = ""
    if sha256 != packaged.SHA256:
        try:
            settings = Path(config) if config else _from_hub(CONFIG_FILE)
            return _load_pth(_from_hub(CHECKPOINT_FILE), settings, f"{REPOSITORY}/{CHECKPOINT_FILE}")
        except _HubError as error:
            unreachable = str(error)
    try:
        content = packaged.packaged_file()
    except CheckpointError as error:
        raise CheckpointError(
            f"{unreachable}{'; ' if unreachable else ''}{error}; or download {CHECKPOINT_FILE} and {CONFIG_FILE} of {REPOSITORY} "
            "on a machine with network access and name their directory as the checkpoint"
        ) from error
    checkpoint = checkpoint_from_onnx(content, packaged.SOURCE, ModelConfig.from_file(Path(config)) if config else None)
    return replace(checkpoint, notice=_notice(unreachable, checkpoint))


def _notice(unreachable: str, checkpoint: Checkpoint) -> str:
    reason = f"{unreachable}. " if unreachable else ""
    return f"{reason}Taking the weights from {checkpoint.source}: {checkpoint.precision}; licence {packaged.LICENCE}."


def _load_pth(weights: Path, settings: Path, source: str) -> Checkpoint:
    parsed = ModelConfig.from_file(settings)
    content = _unpickle(weights)
    synthetic = SYNTHETIC_MARKER in content
    content.pop(SYNTHETIC_MARKER, None)
    sha256 = _sha256(weights)
    precision = _recorded_precision(weights.with_name(PROVENANCE_FILE), sha256)
    return Checkpoint(parsed, _checked(content, parsed, source), sha256, synthetic, source, precision)


def checkpoint_from_onnx(content: bytes, source: str, config: ModelConfig | None = None) -> Checkpoint:
    """Checks the weights of a published ONNX export.

    Args:
        content: The whole file.
        source: Its name.
        config: The model's configuration. Default: the published one.

    Returns:
        Weights in float32, which cover every parameter of the architecture; ``sha256`` is that of ``content``.

    Raises:
        CheckpointError: It is no such export, or does not match the architecture.
        ToolchainError: The package that reads ONNX is not installed.
    """
    _require_onnx(source)
    from kokoro_tvm.onnx.published import read_published

    config = config or published_config()
    published = read_published(content, source)
    state = {part: {k: torch.from_numpy(v) for k, v in arrays.items()} for part, arrays in published.parts.items()}
    digest = hashlib.sha256(content).hexdigest()
    return Checkpoint(config, _checked(state, config, source), digest, False, source, published.precision)


def save_weights(checkpoint: Checkpoint, file: BinaryIO) -> None:
    """Writes the weights as upstream publishes them: ``module.`` prefixes, and no affine parameters of instance norms.

    Those are left out where they are 1 and 0, which is what leaving them out means. Same weights, same bytes.
    """
    content = {
        part: {f"module.{name}": value for name, value in values.items() if not _is_untouched_affine(part, name, value)}
        for part, values in checkpoint.state.items()
    }
    torch.save(content, file)


def build_model(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> ReferenceModel:
    """The eager model in evaluation mode, every parameter loaded strictly.

    Args:
        checkpoint: What ``load_checkpoint`` returned.
        dtype: ``torch.float32`` is upstream's arithmetic. ``torch.float64`` makes the oracle: all parameters are
            widened and the STFT gets a Hann window computed in float64 (upstream's is float32, ``TorchSTFT.__init__``).
    """
    with torch.random.fork_rng(devices=[]):  # the weights are overwritten: leave the caller's generator alone
        model = ReferenceModel(checkpoint.config)
    for part in PARTS:
        getattr(model, part).load_state_dict(checkpoint.state[part], strict=True)
    stft = model.decoder.generator.stft
    stft.window = torch.hann_window(stft.win_length, periodic=True, dtype=dtype)
    return model.to(dtype).requires_grad_(False)


def _load_onnx(path: Path, config: Path | str | None) -> Checkpoint:
    _require_onnx(str(path))
    from kokoro_tvm.onnx.untrusted import read_bytes

    beside = path.with_name(CONFIG_FILE)
    settings = Path(config) if config else beside if beside.is_file() else None
    parsed = ModelConfig.from_file(settings) if settings else None
    return checkpoint_from_onnx(read_bytes(path), str(path), parsed)


def _require_onnx(source: str) -> None:
    """Says what to install before something is imported that reads ONNX, which ``.pth`` files do not need."""
    if importlib.util.find_spec("onnx") is None:
        raise ToolchainError(f"reading {source} needs the package onnx: pip install 'kokoro-tvm[weights]'")


def _recorded_precision(path: Path, sha256: str) -> str:
    """What a :class:`Provenance` says of the weight file beside it; ``float32`` if there is none or it is of another file."""
    if not path.is_file():
        return "float32"
    try:
        provenance = Provenance(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; import the weights again, or remove it") from error
    return str(provenance.precision) if provenance.sha256 == sha256 else "float32"


def _locate(path: Path, config: Path | str | None) -> tuple[Path, Path]:
    """The weight file and the configuration file."""
    weights = path / CHECKPOINT_FILE if path.is_dir() else path
    if not weights.is_file():
        raise CheckpointError(f"no weight file {weights}: expected {CHECKPOINT_FILE} from {REPOSITORY}")
    settings = Path(config) if config else weights.parent / CONFIG_FILE
    if not settings.is_file():
        raise CheckpointError(f"no configuration {settings}: put {CONFIG_FILE} beside {weights.name} or name its path")
    return weights, settings


class _HubError(CheckpointError):
    """The hub cannot give a file."""


def _from_hub(filename: str) -> Path:
    """A file of the hub's cache, or downloaded.

    Raises:
        _HubError: Neither.
    """
    with suppress(Exception):  # whatever is wrong with the cache, a download mends it or says what it is
        return Path(hf_hub_download(repo_id=REPOSITORY, filename=filename, local_files_only=True))
    try:
        # The client tries again for half a minute, every time, where there is no network at all.
        get_session().head(hf_hub_url(REPOSITORY, filename), timeout=HUB_TIMEOUT)
        return Path(hf_hub_download(repo_id=REPOSITORY, filename=filename))
    except Exception as error:  # the hub client raises unrelated types for no network, offline mode, proxies and HTTP
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise _HubError(f"{filename} cannot be had from the model hub ({REPOSITORY}): {reason}") from error


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile pickle can fail in any way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"cannot read {path} as PyTorch weights (truncated or not a weight file?): {reason}"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} holds {type(content).__name__}, expected a dict with the entries {', '.join(PARTS)}"
        )
    return content


def _checked(content: dict[str, Any], config: ModelConfig, source: str) -> State:
    """``content`` without prefixes and with the optional parameters filled in, or one error with everything wrong."""
    problems: dict[str, list[str]] = {"missing": [], "unexpected": [], "mis-shaped": [], "non-finite": []}
    problems["unexpected"] += [str(k) for k in content if k not in PARTS]
    state: State = {}
    for part, shapes in expected_shapes(config).items():
        found = content.get(part)
        if isinstance(found, Mapping):
            state[part] = _checked_part(part, found, shapes, problems)
        else:
            problems["missing"].append(part)
    if any(problems.values()):
        lines = [f"{kind} ({len(names)}): {', '.join(names)}" for kind, names in problems.items() if names]
        raise CheckpointError(f"{source} does not match the architecture; " + "; ".join(lines))
    return state


def _checked_part(
    part: str, found: Mapping[str, Any], shapes: dict[str, torch.Size], problems: dict[str, list[str]]
) -> dict[str, torch.Tensor]:
    values = {str(k).removeprefix("module."): v for k, v in found.items()}
    problems["unexpected"] += [f"{part}.{k}" for k in values if k not in shapes and not _is_constant(part, k)]
    result = {}
    for name, shape in shapes.items():
        value = values.get(name, _default(part, name, shape))
        if value is None:
            problems["missing"].append(f"{part}.{name}")
        elif fault := _fault(value, shape):
            problems["mis-shaped"].append(f"{part}.{name} {fault}")
        elif not torch.isfinite(value.to(torch.float32)).all():
            problems["non-finite"].append(f"{part}.{name}")
        else:
            result[name] = value.to(torch.float32)
    return result


def _fault(value: Any, shape: torch.Size) -> str | None:
    if not isinstance(value, torch.Tensor):
        return f"(a {type(value).__name__}, expected a tensor)"
    if not value.is_floating_point() or value.layout != torch.strided:
        return f"(a {value.dtype} tensor, expected floating point)"
    return None if value.shape == shape else f"{list(value.shape)}, expected {list(shape)}"


def _default(part: str, name: str, shape: torch.Size) -> torch.Tensor | None:
    """The value of a parameter that the file may leave out; None for one that it must hold."""
    if part == "bert" and _UNUSED.match(name):
        return torch.zeros(shape)
    if part in ("predictor", "decoder") and _AFFINE.search(name):
        return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
    return None


def _is_untouched_affine(part: str, name: str, value: torch.Tensor) -> bool:
    default = _default(part, name, value.shape) if _AFFINE.search(name) else None
    return default is not None and torch.equal(value, default)


def _is_constant(part: str, name: str) -> bool:
    return part == "bert" and _CONSTANT.match(name) is not None


def _sha256(path: str | os.PathLike[str]) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
