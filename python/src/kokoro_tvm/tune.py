"""Chooses the register tile of every convolution by measuring, here or on another machine.

What it is: for every layer shape of a model, a walk along one parameter after the other (tile, block, columns), each candidate
compiled, checked against the default's result, and timed; the fastest goes into a record (``kernels.records``) that later
compilations use.
What it is not: a search over schedules; the kernel is written by hand.

Everything goes through TVM's RPC interface, which also has a session for this process: there is one way to measure.
"""

from __future__ import annotations

import itertools
import math
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from kokoro_tvm import environment
from kokoro_tvm.errors import InputError, ToolchainError
from kokoro_tvm.export.program import export_program, to_relax
from kokoro_tvm.kernels import conv1d
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.records import Record, layer_name
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.passes.lower_operators import convolutions
from kokoro_tvm.targets import CpuTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokoro.model import KModel

TOKENS_PER_SECOND, FRAMES_PER_SECOND = 16, 40
BLOCKS = (24, 48, 96, 192)
COLUMNS = (64, 128, 256, 512)
REGISTERS = {"x86_64": 16, "arm64": 32}
"""Vector registers; 32 with AVX-512."""
GAIN = 0.02
"""A tile that is not this much faster than the default is not worth a record."""

_NUMBERS = itertools.count()

Listener = Callable[[str], None]


@dataclass(frozen=True)
class Layer:
    """A convolution and the valid rows of its input in an utterance of the length that is tuned for."""

    conv: Conv1d
    rows: int


def layers(model: KModel, components: Sequence[str], seconds: float) -> list[Layer]:
    """Every distinct convolution of some components, the most work first."""
    tokens, frames = round(seconds * TOKENS_PER_SECOND), round(seconds * FRAMES_PER_SECOND)
    found: dict[str, Layer] = {}
    for name in components:
        function = to_relax(name, export_program(name, model)).module[name]
        analyzer = tvm.sym.Analyzer()
        for symbol in relax.analysis.defined_symbolic_vars(function):
            analyzer.bind(symbol, tvm.tirx.IntImm("int64", {"B": 1, "N": max(1, tokens), "M": max(1, frames)}[symbol.name]))
        for conv, kind in convolutions(name, function):
            rows = int(analyzer.simplify(kind.shape.values[1]))
            known = found.get(layer_name(conv))
            if known is None or known.rows < rows:
                found[layer_name(conv)] = Layer(conv, rows)
    work = lambda x: x.rows * x.conv.c_in * x.conv.c_out * x.conv.taps * x.conv.phases  # noqa: E731
    return sorted(found.values(), key=work, reverse=True)


def micro_tiles(tile: Tile, registers: int) -> list[Tile]:
    """Tiles that fit the registers, the tallest of every width, and one row less."""
    found = []
    for vectors in (1, 2, 3, 4):
        most = min((registers - vectors - 1) // vectors, 1024 // (4 * tile.lanes * vectors))
        for rows in (most, most - 1):
            if rows >= 2:
                found.append(_sized(tile, vectors, rows, tile.block))
    return list(dict.fromkeys(found))


def _sized(tile: Tile, vectors: int, rows: int, block: int) -> Tile:
    """``tile`` with other sizes; the block rounded to whole tiles."""
    return replace(tile, vectors=vectors, rows=rows, block=max(1, round(block / rows)) * rows, tuned=())


@dataclass
class Bench:
    """Where candidates run.

    Attributes:
        session: TVM's RPC session, of another machine or of this process.
        target: The CPU to compile for.
        threads: Of the pool there.
        repeat: Timings of a candidate, of which the fastest counts.
    """

    session: Any
    target: CpuTarget
    threads: int
    repeat: int = 5

    def __post_init__(self) -> None:
        self.session.get_function("runtime.config_threadpool")(1, self.threads)

    def run(self, layer: Layer, tile: Tile, inputs: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """Seconds of one call, and its result.

        Raises:
            ValueError: The kernel does not take this tile.
        """
        kernel = conv1d.kernel(layer.conv, tile)
        module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
        with tempfile.TemporaryDirectory() as folder:
            # Code for this kind of system is linked here; other systems link it themselves.
            # A name of its own: the file of a loaded library must not be overwritten.
            path = Path(folder) / f"kernel{next(_NUMBERS)}{'.so' if self.target.native else '.tar'}"
            tvm.compile(module, target=self.target.tvm_target()).export_library(str(path))
            self.session.upload(str(path))
        library = self.session.load_module(path.name)
        device = self.session.cpu(0)
        arrays = [tvm.runtime.tensor(a, device) for a in packed(layer, tile, inputs)]
        seconds = min(library.time_evaluator("main", device, number=1, repeat=self.repeat, min_repeat_ms=20)(*arrays).results)
        return seconds, arrays[-1].numpy()


@contextmanager
def local(target: CpuTarget, threads: int) -> Iterator[Bench]:
    """Measures in this process."""
    from tvm import rpc

    environment.prepare_thread_pool()
    yield Bench(rpc.LocalSession(), target, threads)


@contextmanager
def remote(address: str, key: str, target: CpuTarget, threads: int, timeout: float = 60.0) -> Iterator[Bench]:
    """Measures on a machine that a tracker lends.

    Args:
        address: ``host:port`` of the tracker.
        key: The machines' name there.
        target: Their CPU.
        threads: For their pool.
        timeout: Seconds to wait for one.

    Raises:
        InputError: The address is none, or no machine of that name came in time.
        ToolchainError: TVM's RPC needs a package that is not installed.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--rpc must be host:port of a tracker, got {address!r}")
    try:
        from tvm import rpc

        # TVM's own client goes on trying to reach a tracker for a minute.
        socket.create_connection((host, int(port)), timeout=5).close()
        session = rpc.connect_tracker(host, int(port)).request(key, session_timeout=600, max_retry=max(1, round(timeout / 2)))
    except ModuleNotFoundError as error:
        raise ToolchainError(f"TVM's RPC needs {error.name}: pip install 'kokoro-tvm[rpc]'") from error
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise InputError(f"no machine {key!r} from the tracker at {address}: {reason[0]}") from error
    yield Bench(session, target, threads)


def example(layer: Layer) -> list[np.ndarray]:
    """Random arguments of a layer in the kernel's order, weights not packed, the result last."""
    conv, rng = layer.conv, np.random.default_rng(0)
    normal = lambda *shape, scale=1.0: (scale * rng.standard_normal(shape)).astype(np.float32)  # noqa: E731
    out = (1, int(conv.output_rows(layer.rows)), conv.c_out)
    weight = normal(conv.phases * conv.c_out, conv.c_in, conv.taps, scale=1 / math.sqrt(conv.c_in * conv.taps))
    arguments = [normal(1, layer.rows, conv.c_in), np.array([layer.rows]), weight]
    arguments += [normal(conv.c_out)] if conv.bias else []
    arguments += [normal(1, 2, conv.c_in)] if conv.affine else []
    arguments += [np.stack([np.ones(conv.c_in, np.float32)] * 2)] if conv.prologue == "snake" else []
    arguments += [normal(1, (out[1] >> conv.residual_shift) + 1, conv.c_out)] if conv.residuals else []
    arguments += [normal(*out)] if conv.residuals > 1 else []
    return [*arguments, np.zeros(out, np.float32)]


def packed(layer: Layer, tile: Tile, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """``example`` with weight and bias in the tile's layout."""
    conv, result = layer.conv, list(arguments)
    phases = [conv1d.pack_weight(w, tile.width) for w in np.split(result[2], conv.phases)]
    result[2] = np.concatenate(phases)
    if conv.bias:
        result[3] = conv1d.pack_bias(result[3], tile.width)
    return result


def tune_layer(layer: Layer, bench: Bench, listener: Listener = lambda _: None) -> Record | None:
    """The fastest tile of a layer; None if the default is as good.

    Raises:
        RuntimeError: A candidate computes something else than the default: a bug.
    """
    default = replace(bench.target.tile, tuned=())
    inputs = example(layer)
    usual, truth = bench.run(layer, default, inputs)
    times = {default: usual}

    def fastest(candidates: Sequence[Tile]) -> Tile:
        for tile in candidates:
            if tile not in times:
                try:
                    seconds, result = bench.run(layer, tile, inputs)
                except ValueError:
                    continue  # the kernel does not take it
                error = float(np.abs(result - truth).max() / np.abs(truth).max())
                if not error <= conv1d.TOLERANCE:
                    raise RuntimeError(f"{layer_name(layer.conv)}: {tile} differs from the default by {error:.1e}")
                times[tile] = seconds
                listener(f"{layer_name(layer.conv)}: {tile.rows} x {tile.width}, {tile.block}, {tile.columns}: {seconds:.2e} s")
        return min(times, key=lambda t: times[t])

    registers = 32 if "avx512f" in bench.target.features else REGISTERS[bench.target.machine]
    best = fastest(micro_tiles(default, registers))
    best = fastest([_sized(best, best.vectors, best.rows, block) for block in BLOCKS])
    best = fastest([replace(best, columns=columns) for columns in COLUMNS])
    # The default again beside the winner: a clock that changed on the way should not choose.
    usual = min(usual, bench.run(layer, default, inputs)[0])
    seconds = bench.run(layer, best, inputs)[0]
    if not seconds < usual * (1 - GAIN):
        return None
    return Record(layer_name(layer.conv), best.vectors, best.rows, best.block, best.columns, seconds, usual)


def tune(
    model: KModel,
    components: Sequence[str],
    seconds: float,
    where: AbstractContextManager[Bench],
    listener: Listener = lambda _: None,
    most: int | None = None,
) -> list[Record]:
    """Tunes every layer of some components (the ``most`` laborious ones) for utterances of ``seconds``."""
    found = []
    chosen = layers(model, components, seconds)[:most]
    with where as bench:
        for i, layer in enumerate(chosen):
            listener(f"layer {i + 1} of {len(chosen)}: {layer_name(layer.conv)}, {layer.rows} rows")
            record = tune_layer(layer, bench, listener)
            found += [record] if record else []
    return found
