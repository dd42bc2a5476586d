"""``kokoro-tvm import``: a published ONNX export as a checkpoint that everything else reads, upstream's own loader included.

What it is: options, the folder's three files in place or untouched, and lines about what was read. What it is not: the reader of
the export (``onnx.published``) or the judge of its weights (``reference.checkpoint``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kokoro_tvm.cli.common import compiler_packages, console, rows_table
from kokoro_tvm.errors import CheckpointError, InputError, OutputError

if TYPE_CHECKING:
    from kokoro_tvm.config import ModelConfig
    from kokoro_tvm.reference.checkpoint import Checkpoint


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A published export: kokoro-v1.0.onnx, .fp16.onnx or .int8.onnx.")],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Gets kokoro-v1_0.pth, config.json and provenance.json.")
    ],
    config: Annotated[
        Path | None, typer.Option(help="config.json; the one beside the file if absent, else the published one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another checkpoint that lies there.")] = False,
) -> None:
    """Turn a published ONNX export into kokoro-v1_0.pth and config.json, with a note of what the weights went through."""
    if file.suffix != ".onnx":
        raise InputError(f"{file} does not end in .onnx; other checkpoints can be named as they are with --checkpoint")
    with compiler_packages():
        from kokoro_tvm.reference.checkpoint import CHECKPOINT_FILE, CONFIG_FILE, PROVENANCE_FILE, Provenance, load_checkpoint

    with console.status(f"reading {file.name}"):
        checkpoint = load_checkpoint(file, config)
    weights = output_dir / CHECKPOINT_FILE
    _check_config(output_dir / CONFIG_FILE, checkpoint.config, force)
    with console.status("writing the weights"):
        sha256 = _write_weights(weights, checkpoint, force)
    text = json.dumps(checkpoint.config.to_dict(), indent=2, ensure_ascii=False)
    _write(output_dir / CONFIG_FILE, lambda path: path.write_text(text + "\n", encoding="utf-8"))
    # Last: of weights that are not there yet, or no longer, it says nothing.
    provenance = Provenance(sha256, checkpoint.precision, file.name, checkpoint.sha256)
    _write(output_dir / PROVENANCE_FILE, lambda path: path.write_text(provenance.to_json(), encoding="utf-8"))
    console.print(rows_table(_rows(checkpoint, weights, sha256)))


def _rows(checkpoint: Checkpoint, weights: Path, sha256: str) -> list[tuple[str, str]]:
    counts = {part: (len(tensors), sum(t.numel() for t in tensors.values())) for part, tensors in checkpoint.state.items()}
    known = "as published by kokoro-onnx" if checkpoint.published else "not a file known byte for byte"
    return [
        ("read", f"{checkpoint.source}, sha256 {checkpoint.sha256} ({known})"),
        ("weights", checkpoint.precision),
        *((part, f"{tensors} tensors, {elements:,} values") for part, (tensors, elements) in counts.items()),
        ("licence", "Kokoro-82M's weights are licensed under Apache-2.0"),
        ("written", f"{weights}, sha256 {sha256}"),
    ]


def _check_config(path: Path, config: ModelConfig, force: bool) -> None:
    """Refuses a folder with the configuration of another model."""
    from kokoro_tvm.config import ModelConfig

    if not path.exists() or force:
        return
    try:
        same = ModelConfig.from_file(path) == config
    except CheckpointError:
        same = False
    if not same:
        raise OutputError(f"{path} is another configuration; use --force to replace it, or another folder")


def _write_weights(path: Path, checkpoint: Checkpoint, force: bool) -> str:
    """Writes the weights unless a file with others lies there; returns their file's hash."""
    from kokoro_tvm.artifact import file_record, staged
    from kokoro_tvm.reference.checkpoint import save_weights

    with staged(path) as temporary:
        with temporary.open("wb") as file:
            save_weights(checkpoint, file)
        sha256 = file_record(temporary).sha256
        if path.exists() and not force and not (path.is_file() and file_record(path).sha256 == sha256):
            raise OutputError(f"{path} has other weights; use --force to replace them, or another folder")
    return sha256


def _write(path: Path, write: Callable[[Path], object]) -> None:
    from kokoro_tvm.artifact import staged

    with staged(path) as temporary:
        write(temporary)
