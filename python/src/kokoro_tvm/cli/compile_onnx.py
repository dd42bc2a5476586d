"""``scripts/compile_onnx.py``: the five ONNX files to one library and one file of weights, without PyTorch.

What it is: options, the plan and the progress. What it is not: the compiler (``kokoro_tvm.compile``) or the reader of the files
(``kokoro_tvm.onnx``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kokoro_tvm.cli.common import compiler_packages, console, peak_memory, rows_table, single, warn_synthetic
from kokoro_tvm.config import DEFAULT_SEQ_LEN


def compile_onnx(
    onnx_dir: Annotated[Path, typer.Option(help="Made by kokoro-tvm export --format onnx.")] = Path("build/onnx"),
    target: Annotated[str, typer.Option(help="llvm.")] = "llvm",
    mcpu: Annotated[str | None, typer.Option(help="LLVM's name of the CPU, e.g. x86-64-v3; this CPU if absent.")] = None,
    seq_len: Annotated[int, typer.Option(help="Capacity in tokens, begin and end included.")] = DEFAULT_SEQ_LEN,
    aligned_len: Annotated[
        int | None, typer.Option(help="Capacity in frames of 25 ms; the most that seq-len can need if absent.")
    ] = None,
    lstm_method: Annotated[str, typer.Option(help="extern (the C++ recurrence) or tir.")] = "extern",
    dtype: Annotated[
        str, typer.Option(help="What the decoder's convolutions multiply: float32, or bf16 where the CPU has avx512bf16.")
    ] = "float32",
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Gets kokoro.so, kokoro_params.npz and manifest.json.")
    ] = Path("build"),
    dump_ir: Annotated[bool, typer.Option("--dump-ir", help="Leave the IR of every phase in the folder OUTPUT_DIR-ir.")] = False,
) -> None:
    """Compile the ONNX components into kokoro.so and kokoro_params.npz, an artifact like any other."""
    start = time.perf_counter()
    with compiler_packages():
        from kokoro_tvm.compile import CompileOptions, Origin, compile_bundle
        from kokoro_tvm.onnx.files import read_components
        from kokoro_tvm.onnx.relax import to_relax

    with console.status("reading the ONNX files"):
        components = read_components(onnx_dir)
    source = next(iter(components.values())).source
    origin = Origin(source.checkpoint, source.model)
    dump = output_dir.with_name(f"{output_dir.name}-ir") if dump_ir else None
    options = CompileOptions.resolve(origin, target, mcpu, seq_len, aligned_len, lstm_method, dump, dtype)
    made = f"{source.checkpoint.source}, exported by kokoro-tvm {source.kokoro_tvm}"
    console.print(rows_table([("components", str(onnx_dir)), ("checkpoint", made), *options.rows(), ("output", str(output_dir))]))
    warn_synthetic(source.checkpoint.synthetic)
    with console.status("compiling") as status:
        front = [to_relax(c) for c in components.values()]
        manifest = compile_bundle(front, origin, options, output_dir, lambda phase: status.update(f"compiling: {phase}"))
    files = {f for c in manifest.components.values() for f in (c.library, c.weights)}
    for file in sorted(files, key=lambda f: f.name):
        console.print(f"{output_dir / file.name}: {file.size / 2**20:.1f} MiB", highlight=False)
    console.print(f"{time.perf_counter() - start:.1f} s, peak memory {peak_memory():.1f} GiB")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program."""
    return single("compile_onnx", compile_onnx, argv)


if __name__ == "__main__":
    raise SystemExit(main())
