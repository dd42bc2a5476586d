"""Sets the engines up: weights, artifact and ONNX graphs of one checkpoint, made once and kept.

What it is: files in a cache folder whose names say what they depend on, and how long each took to make. What it is not: a
measurement of running. ``bench.client`` gives each step a process of its own: none of it runs in the one that measures.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kokoro_tvm.bench.peers import DECODER, SUBJECTS, WHOLE, Files
from kokoro_tvm.errors import ArtifactError

if TYPE_CHECKING:
    import torch

OPSET = 17
SETUP = "setup.json"
_EXAMPLE = "həlˈO wˈɜɹld, ðə kwˈɪk bɹˈWn fˈɑks."
_PACKAGE = Path(__file__).resolve().parents[1]
_COMPILES = ("config.py", "compile.py", "targets.py", "ops.py", "stages.py", "artifact.py", "export", "kernels", "passes")
"""Sources that decide what an artifact is."""


@dataclass(frozen=True)
class Weights:
    """One checkpoint, ready for every engine.

    Attributes:
        files: Where everything lies or will lie.
        source: Where they came from and their precision, for reports.
        synthetic: Whether it is nobody's voice.
        vocabulary: Phoneme to token id.
    """

    files: Files
    source: str
    synthetic: bool
    vocabulary: dict[str, int]


def weights(cache: Path, checkpoint: Path | None, artifact: Path | None) -> Weights:
    """Finds the checkpoint and writes it as kokoro reads it.

    Args:
        cache: Folder for everything that is made.
        checkpoint: A weight file or its folder; the published weights if None.
        artifact: An artifact to measure; one in the cache if None.

    Raises:
        CheckpointError: The checkpoint was named and cannot be read.
        ArtifactError: The artifact is of another checkpoint.
    """
    from kokoro_tvm.artifact import read_manifest
    from kokoro_tvm.reference.checkpoint import CHECKPOINT_FILE, CONFIG_FILE, load_checkpoint, save_weights

    compiled_from = read_manifest(artifact).checkpoint if artifact is not None else None
    loaded = load_checkpoint(checkpoint, sha256=compiled_from.sha256 if compiled_from else None)
    folder = cache / f"weights-{loaded.sha256[:12]}"
    compiled = cache / f"artifact-{loaded.sha256[:12]}-{_digest(_COMPILES)}"
    files = Files(
        checkpoint=checkpoint,
        sha256=loaded.sha256,
        weights=folder / CHECKPOINT_FILE,
        config=folder / CONFIG_FILE,
        artifact=artifact or compiled,
        artifact_bf16=compiled.with_name(f"{compiled.name}-bf16"),
        onnx=cache / f"onnx-{loaded.sha256[:12]}-{importlib.metadata.version('torch')}-{_digest(('bench/prepare.py',))}",
        voice=folder / "voice.bin" if loaded.synthetic else None,
    )
    if compiled_from is not None and compiled_from.sha256 != loaded.sha256:
        raise ArtifactError(f"{artifact} was compiled from {compiled_from.source}, not from {loaded.source}: name its checkpoint")

    def make(target: Path) -> None:
        with (target / CHECKPOINT_FILE).open("wb") as file:
            save_weights(loaded, file)
        (target / CONFIG_FILE).write_text(json.dumps(loaded.config.to_dict(), ensure_ascii=False), encoding="utf-8")
        if loaded.synthetic:
            from kokoro_tvm.reference.synthetic import write_synthetic_voice

            write_synthetic_voice(target / "voice.bin")

    _once(folder, make)
    return Weights(files, f"{loaded.source}, {loaded.precision}", loaded.synthetic, loaded.config.vocab)


def artifact(files: Files, dtype: str = "float32") -> float | None:
    """Compiles an artifact for this CPU unless it is there; returns the seconds that took, None if that is not known."""
    from kokoro_tvm.compile import CompileOptions, compile_artifact
    from kokoro_tvm.reference.checkpoint import load_checkpoint
    from kokoro_tvm.stages import COMPONENTS

    # An artifact's folder holds nothing but what belongs to it.
    folder = files.artifact_bf16 if dtype == "bf16" else files.artifact
    note = folder.with_name(f"{folder.name}.{SETUP}")
    if not folder.is_dir():
        start = time.perf_counter()
        checkpoint = load_checkpoint(files.checkpoint, sha256=files.sha256)
        compile_artifact(tuple(COMPONENTS), checkpoint, CompileOptions.resolve(checkpoint, dtype=dtype), folder)
        note.write_text(json.dumps({"seconds": time.perf_counter() - start}), encoding="utf-8")
    return json.loads(note.read_text(encoding="utf-8"))["seconds"] if note.is_file() else None


def onnx(files: Files) -> float:
    """Exports kokoro's own graph, as its ``examples/export.py`` does, unless it is there; returns the seconds that took."""

    def make(target: Path) -> None:
        start = time.perf_counter()
        for subject in SUBJECTS:
            _export(subject, files, target / f"{subject}.onnx")
        (target / SETUP).write_text(json.dumps({"seconds": time.perf_counter() - start}), encoding="utf-8")

    _once(files.onnx, make)
    return json.loads((files.onnx / SETUP).read_text(encoding="utf-8"))["seconds"]


def _export(subject: str, files: Files, path: Path) -> None:
    import torch
    from kokoro.model import KModelForONNX

    from kokoro_tvm.bench.peers.pytorch import load_kmodel

    model = load_kmodel(files, disable_complex=True)
    ids = torch.tensor([[0, *(i for p in _EXAMPLE if (i := model.vocab.get(p)) is not None), 0]])
    style = torch.randn(1, 256, generator=torch.Generator().manual_seed(0)) * 0.16
    if subject == WHOLE:
        module: torch.nn.Module = KModelForONNX(model).eval()
        inputs: tuple[torch.Tensor, ...] = (ids, style, torch.ones(1))
        names, outputs = ("input_ids", "style", "speed"), ("waveform", "duration")
        axes = {"input_ids": {1: "n"}, "waveform": {0: "t"}, "duration": {0: "n"}}
    else:
        assert subject == DECODER
        frames = 40
        module, curve = model.decoder, torch.linspace(100.0, 200.0, 2 * frames)[None]
        inputs = (torch.randn(1, model.bert_encoder.out_features, frames), curve, curve.clone() / 100, style[:, :128])
        names, outputs = ("asr", "f0", "n", "style"), ("audio",)
        axes = {"asr": {2: "m"}, "f0": {1: "2m"}, "n": {1: "2m"}, "audio": {2: "t"}}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, inputs, str(path), input_names=names, output_names=outputs, dynamic_axes=axes, opset_version=OPSET,
            do_constant_folding=True, dynamo=False,
        )  # fmt: skip


def _digest(sources: tuple[str, ...]) -> str:
    digest = hashlib.sha256(importlib.metadata.version("apache-tvm").encode())
    for source in sources:
        path = _PACKAGE / source
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _once(folder: Path, make: Callable[[Path], Any]) -> None:
    """Makes a folder under another name first: what was interrupted is not taken for finished."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        make(scratch)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
