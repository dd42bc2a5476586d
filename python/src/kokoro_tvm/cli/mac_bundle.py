"""``kokoro-tvm mac-bundle``: a folder that checks and times a metal-macos artifact on a Mac."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kokoro_tvm.cli.common import compiler_packages, console


def mac_bundle(
    artifact: Annotated[Path, typer.Option(help="An artifact for metal-macos.")] = Path("tvm_output_metal"),
    checkpoint: Annotated[
        Path | None, typer.Option(help="The weights it was compiled from; the published ones if absent.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="config.json; the one beside the weights if absent.")] = None,
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="The folder to be made.")] = Path("kokoro-mac"),
) -> None:
    """Bundle an artifact for metal-macos with TVM's runtime, expected values and a program that checks it on a Mac."""
    from kokoro_tvm.artifact import read_manifest

    with compiler_packages():
        from kokoro_tvm.mac_bundle import make_bundle
        from kokoro_tvm.reference.checkpoint import load_checkpoint

    with console.status("reading the checkpoint"):
        weights = load_checkpoint(checkpoint, config, read_manifest(artifact).checkpoint.sha256)
    make_bundle(artifact, weights, output_dir, lambda name, phase: console.print(f"{name}: {phase}"))
    console.print(f"{output_dir}: copy it to a Mac and run verify.command there. It has not been run on a Mac yet.")
