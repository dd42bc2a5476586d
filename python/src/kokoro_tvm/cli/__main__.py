"""``kokoro-tvm``: the table of subcommands.

What it is: names, help lines and where each is found; nothing heavy is imported before a command runs. What it is not: any
of the commands.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kokoro_tvm.cli.build import build_command
from kokoro_tvm.cli.common import application, run
from kokoro_tvm.cli.export import export
from kokoro_tvm.cli.import_checkpoint import import_checkpoint
from kokoro_tvm.cli.info import info
from kokoro_tvm.cli.mac_bundle import mac_bundle
from kokoro_tvm.cli.phonemize import phonemize
from kokoro_tvm.cli.synth import synth
from kokoro_tvm.cli.synthetic_checkpoint import synthetic_checkpoint
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

DELEGATES = {
    "port-encoder": ("port_encoder", "Compile one or all encoders (also: port_encoder)."),
    "port-decoder": ("port_decoder", "Compile the decoder (also: port_decoder)."),
    "validate-steps": ("validate_steps", "Compare every stage with eager PyTorch in float64 (also: validate_steps)."),
    "validate-e2e": ("validate_e2e", "Compare whole utterances with eager PyTorch (also: validate_e2e)."),
    "validate-speech": ("validate_speech", "Have a recogniser write down what is said (also: validate_speech)."),
}
"""Subcommands that are programs of their own: module and help line."""

BENCHMARKS = {
    "bench": ("bench", "bench", "Time this engine against PyTorch, ONNX Runtime and OpenVINO."),
    "profile": ("profiling", "profile", "Every kernel's time against what this CPU can do."),
    "tune": ("tune", "tune", "Measure the fastest kernel parameters for a CPU, here or through RPC."),
    "bench-lstm": ("bench_bilstm", "main", "Time the bidirectional LSTM against PyTorch's."),
    "bench-capacity": ("bench_capacity", "bench_capacity", "Time and memory of short utterances in large buffers."),
}
"""Benchmarks: module, function and help line."""


def application_table() -> typer.Typer:
    """``kokoro-tvm`` with all its subcommands."""
    app = application(help="Kokoro-82M text-to-speech, compiled ahead of time with Apache TVM.")
    app.callback(invoke_without_command=True)(_options)
    app.command("compile", help="Compile all five components into one artifact.")(build_command(tuple(COMPONENTS)))
    app.command("export")(export)
    app.command("import")(import_checkpoint)
    app.command("synth")(synth)
    app.command("phonemize")(phonemize)
    app.command("voices")(_voices)
    app.command("info")(info)
    app.command("mac-bundle")(mac_bundle)
    app.command("synthetic-checkpoint")(synthetic_checkpoint)
    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    for name, (module, line) in DELEGATES.items():
        app.command(name, help=line, context_settings=passed_on)(_delegate(module))
    for name, (module, function, line) in BENCHMARKS.items():
        app.command(name, help=line, context_settings=passed_on)(_benchmark(name, module, function))
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``kokoro-tvm``; returns its exit code."""
    if argv is None and "synth" in sys.argv[1:2]:
        with _torch_left_out():
            import tvm_ffi  # noqa: F401
    return run("kokoro-tvm", application_table(), argv)


@contextmanager
def _torch_left_out() -> Iterator[None]:
    """Lets imports within believe that PyTorch is not installed, where none has been imported yet.

    tvm_ffi imports it if it can, for tensors we do not have: more than a second of start-up.
    """
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]


def _options(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    if version:
        print(importlib.metadata.version("kokoro-tvm"))
        raise typer.Exit()
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def _voices(
    voices_dir: Annotated[list[Path] | None, typer.Argument(help="Folders with voices; the package's own if absent.")] = None,
) -> None:
    """List the voices that folders hold, or those that need no download."""
    from kokoro_tvm.errors import VoiceError
    from kokoro_tvm.runtime.voices import SHIPPED, voice_names

    folders = voices_dir or [SHIPPED]
    names = voice_names(folders)
    if not names:
        raise VoiceError(f"no voices in {', '.join(map(str, folders))}")
    print("\n".join(names))


def _delegate(module: str) -> Callable[[typer.Context], int]:
    def command(ctx: typer.Context) -> int:
        return importlib.import_module(f"kokoro_tvm.cli.{module}").main(ctx.args)

    return command


def _benchmark(name: str, module: str, function: str) -> Callable[[typer.Context], int]:
    def command(ctx: typer.Context) -> int:
        from kokoro_tvm.cli.common import single

        benchmark = getattr(importlib.import_module(f"kokoro_tvm.cli.{module}"), function)
        return single(f"kokoro-tvm {name}", benchmark, ctx.args)

    return command


if __name__ == "__main__":
    raise SystemExit(main())
