"""``kokoro-tvm tune``: the fastest kernel parameters for a CPU, measured.

What it is: options, and where the records go. What it is not: the measurement (``kokoro_tvm.tune``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kokoro_tvm.cli.common import check_writable, compiler_packages, console, wide_console
from kokoro_tvm.errors import InputError
from kokoro_tvm.stages import COMPONENTS


def tune(
    component: Annotated[str, typer.Option(help="One component, or all.")] = "all",
    seconds: Annotated[float, typer.Option(help="Length of the utterances to be fast at.")] = 3.0,
    threads: Annotated[int, typer.Option(help="Threads.")] = 2,
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: what one thread computed, for a busy machine; with --threads 1 and without --rpc.")
    ] = "wall",
    only: Annotated[str, typer.Option(help="Only layers whose name this regular expression finds.")] = "",
    most: Annotated[int | None, typer.Option(help="Only this many layers, those with the most work.")] = None,
    config: Annotated[Path | None, typer.Option(help="config.json of another model; the published one if absent.")] = None,
    mcpu: Annotated[str | None, typer.Option(help="LLVM's name of the CPU; needed with --rpc, else this CPU.")] = None,
    rpc: Annotated[str | None, typer.Option(help="host:port of a TVM RPC tracker that lends the machine.")] = None,
    key: Annotated[str | None, typer.Option(help="The machine's name at the tracker.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Records; this user's folder if absent, which compile reads.")
    ] = None,
) -> None:
    """Measure which scheme and register tile are fastest for every convolution; later compilations for that CPU use them."""
    if component != "all" and component not in COMPONENTS:
        raise InputError(f"unknown component {component!r}; expected one of: {', '.join(COMPONENTS)}, all")
    if not 0.1 <= seconds <= 60 or threads < 1 or (most is not None and most < 1):
        raise InputError(f"--seconds must lie within 0.1..60, --threads and --most above 0; got {seconds:g}, {threads}, {most}")
    if clock not in ("wall", "cpu") or (clock == "cpu" and (threads != 1 or rpc)):
        raise InputError(f"--clock must be wall, or cpu with --threads 1 and without --rpc; got {clock} with {threads}")
    try:
        re.compile(only)
    except re.error as error:
        raise InputError(f"--only {only!r} is no regular expression: {error}") from error
    if (rpc is None) != (key is None) or (rpc and not mcpu):
        raise InputError("--rpc, --key and --mcpu go together: where, which machine, and its CPU")
    with compiler_packages():
        from kokoro_tvm import tune as tuning
        from kokoro_tvm.config import ModelConfig
        from kokoro_tvm.kernels import records
        from kokoro_tvm.reference.model import ReferenceModel, published_config
        from kokoro_tvm.targets import cpu_target
    target = cpu_target("llvm", mcpu)
    if rpc is None and not target.native:
        raise InputError(f"{target.mcpu} is another system's CPU: give --rpc and --key to measure there")
    path = output or records.user_file(target.mcpu)
    if output is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    check_writable(path)
    model = ReferenceModel(ModelConfig.from_file(config) if config else published_config())
    where = tuning.remote(rpc, key or "", target, threads) if rpc else tuning.local(target, threads, clock)
    names = list(COMPONENTS) if component == "all" else [component]
    with console.status("exporting") as status:
        found = tuning.tune(model, names, seconds, where, status.update, most, only)
    records.write(path, found, _about(target.mcpu, seconds, threads, rpc is None) | {"clock": clock})
    table = Table(title=f"{len(found)} layers are faster with a tile of their own", title_justify="left")
    for column in ("layer", "scheme", "tile", "block", "columns", "ms", "default, ms", "times faster"):
        table.add_column(column, justify="left" if column == "layer" else "right", no_wrap=True)
    for r in found:
        times = (f"{1e3 * r.seconds:.3f}", f"{1e3 * r.default_seconds:.3f}", f"{r.default_seconds / r.seconds:.2f}")
        table.add_row(r.layer, r.scheme, f"{r.rows} x {r.vectors} of {r.lanes}", str(r.block), str(r.columns), *times)
    wide_console().print(table)
    console.print(f"{path}: used by every compilation for {target.mcpu} from now on" if output is None else str(path))


def _about(mcpu: str, seconds: float, threads: int, here: bool) -> dict[str, object]:
    import importlib.metadata

    from kokoro_tvm.runtime import cpu

    about = {"mcpu": mcpu, "audio_seconds": seconds, "threads": threads, "tvm": importlib.metadata.version("apache-tvm")}
    return about | ({"cpu": cpu.model_name()} if here else {})
