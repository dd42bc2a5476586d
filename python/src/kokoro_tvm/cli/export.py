"""``kokoro-tvm export``: the components in a format for others to run, inspect and compile.

What it is: options, progress and a table of what was written. What it is not: the exporter (``kokoro_tvm.export``) or the layout
of the files (``kokoro_tvm.onnx``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from kokoro_tvm.cli.common import announce, compiler_packages, console
from kokoro_tvm.errors import InputError
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.onnx.files import OnnxComponent
    from kokoro_tvm.reference.checkpoint import Checkpoint

FORMATS = ("onnx",)


def export(
    format_: Annotated[str, typer.Option("--format", help="onnx.")] = "onnx",
    component: Annotated[str, typer.Option(help=f"{', '.join(COMPONENTS)}, or all.")] = "all",
    checkpoint: Annotated[
        Path | None, typer.Option(help="kokoro-v1_0.pth, its folder or a published .onnx; the published weights if absent.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="config.json; the one beside the weights if absent.")] = None,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Gets one .onnx file per component; others in it stay.")
    ] = Path("build/onnx"),
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Run them in ONNX Runtime against eager PyTorch in float64; exit 1 below the floor."),
    ] = False,
) -> int:
    """Write the components as ONNX files, with lengths and noise as inputs and any batch size and length."""
    if format_ not in FORMATS:
        raise InputError(f"unknown format {format_!r}; expected {' or '.join(FORMATS)}")
    if component not in (*COMPONENTS, "all"):
        raise InputError(f"unknown component {component!r}; expected one of: {', '.join(COMPONENTS)}, all")
    names = list(COMPONENTS) if component == "all" else [component]
    with compiler_packages():
        from kokoro_tvm.export.onnx_graph import to_onnx
        from kokoro_tvm.export.program import export_program
        from kokoro_tvm.onnx.files import Source, write_component
        from kokoro_tvm.reference.checkpoint import build_model, load_checkpoint

    start = time.perf_counter()
    with console.status("reading the checkpoint") as status:
        loaded = load_checkpoint(checkpoint, config)
        model = build_model(loaded)
        source = Source.of(loaded.sha256, Path(loaded.source).name, loaded.synthetic, loaded.config, loaded.precision)
        for name in names:
            status.update(f"exporting {name}")
            write_component(output_dir, name, to_onnx(name, export_program(name, model)), source)
        status.update("reading what was written")
        written = _read(output_dir, names)
    console.print(_table(written))
    console.print(f"{output_dir}: {time.perf_counter() - start:.1f} s, from {loaded.source}")
    announce(loaded)
    return _validate(names, output_dir, loaded) if validate else 0


def _read(directory: Path, names: Sequence[str]) -> list[OnnxComponent]:
    from kokoro_tvm.onnx.files import read_component

    return [read_component(directory, name) for name in names]


def _table(components: Sequence[OnnxComponent]) -> Table:
    table = Table(title="ONNX components", title_justify="left")
    for column in ("file", "operators", "weights, MiB", "inputs", "outputs"):
        table.add_column(column, justify="right" if column in ("operators", "weights, MiB") else "left")
    for c in components:
        size = sum(w.nbytes for w in c.weights.values()) / 2**20
        inputs, outputs = (", ".join(v.name for v in values) for values in (c.graph.input, c.graph.output))
        table.add_row(c.path.name, str(sum(bool(n.domain) for n in c.graph.node)), f"{size:.1f}", inputs, outputs)
    return table


def _validate(names: Sequence[str], directory: Path, checkpoint: Checkpoint) -> int:
    from kokoro_tvm.cli.build import judge
    from kokoro_tvm.runtime.onnx_engine import OnnxEngine

    return judge(OnnxEngine(directory, components=names), names, checkpoint)[0]
