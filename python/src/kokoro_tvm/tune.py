"""Chooses scheme and register tile of every convolution by measuring, here or on another machine.

What it is: for every layer shape of a model, a walk along one parameter after the other (scheme, tile, block, columns), each
candidate compiled, checked against the default's result, and timed; the fastest goes into a record (``kernels.records``) that
later compilations use.
What it is not: a search over schedules; the kernel is written by hand.

Everything goes through TVM's RPC interface, which also has a session for this process: there is one way to measure.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import socket
import statistics
import tempfile
import time
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
from kokoro_tvm.kernels import conv1d, winograd
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.records import Record, layer_name
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.passes.lower_operators import convolutions
from kokoro_tvm.passes.pipeline import buffers_as_written
from kokoro_tvm.targets import CpuTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokoro.model import KModel

TOKENS_PER_SECOND, FRAMES_PER_SECOND = 16, 40
BLOCKS = (24, 48, 96, 192, 384)
"""Rows of the direct kernel, tiles of others."""
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


UNDER_WAY = 8
"""Multiply-adds that a CPU works on at a time: two units, four cycles."""


def micro_tiles(tile: Tile, registers: int) -> list[Tile]:
    """Tiles that fit the registers: of every width the tallest, one row less, and the lowest that keeps the CPU busy."""
    found = []
    for vectors in (1, 2, 3, 4):
        most = (registers - vectors - 1) // vectors
        for rows in (most, most - 1, UNDER_WAY // vectors):
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
        clock: ``wall``, or ``cpu`` for what the calling thread computed, which other processes hardly change: only with one
            thread of this process.
    """

    session: Any
    target: CpuTarget
    threads: int
    repeat: int = 5
    clock: str = "wall"

    def __post_init__(self) -> None:
        self.session.get_function("runtime.config_threadpool")(1, self.threads)

    def run(self, layer: Layer, tile: Tile, inputs: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """Seconds of one call, and its result.

        Raises:
            ValueError: The kernel does not take this tile.
        """
        call, arrays = self.prepare(layer, tile, inputs)
        return min(call() for _ in range(self.repeat)), arrays[-1].numpy()

    def compare(self, layer: Layer, tiles: tuple[Tile, Tile], inputs: Sequence[np.ndarray]) -> tuple[float, float]:
        """Medians of seconds of two tiles that take turns: a clock or a neighbour that changes on the way does not choose."""
        calls = [self.prepare(layer, tile, inputs)[0] for tile in tiles]
        times = [[call() for call in calls] for _ in range(3 * self.repeat)]
        first, second = (statistics.median(t) for t in zip(*times, strict=True))
        return first, second

    def prepare(self, layer: Layer, tile: Tile, inputs: Sequence[np.ndarray]) -> tuple[Callable[[], float], list[Any]]:
        """A function that calls the kernel and returns the seconds it took, and the arrays, the result last.

        Raises:
            ValueError: The kernel does not take this tile.
        """
        scheme = winograd.choice(layer.conv, tile)
        kernel = winograd.kernel(layer.conv, tile, scheme) if scheme else conv1d.kernel(layer.conv, tile)
        module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
        with tempfile.TemporaryDirectory() as folder:
            # Code for this kind of system is linked here; other systems link it themselves.
            # A name of its own: the file of a loaded library must not be overwritten.
            path = Path(folder) / f"kernel{next(_NUMBERS)}{'.so' if self.target.native else '.tar'}"
            with buffers_as_written():
                tvm.compile(module, target=self.target.tvm_target()).export_library(str(path))
            self.session.upload(str(path))
        library = self.session.load_module(path.name)
        device = self.session.cpu(0)
        arrays = [tvm.runtime.tensor(a, device) for a in packed(layer, tile, inputs)]
        if self.clock == "wall":
            timed = library.time_evaluator("main", device, number=1, min_repeat_ms=20)
            return lambda: timed(*arrays).mean, arrays
        function = library["main"]

        def counted() -> float:
            start = time.thread_time()
            function(*arrays)
            return time.thread_time() - start

        counted()
        return counted, arrays


@contextmanager
def local(target: CpuTarget, threads: int, clock: str = "wall") -> Iterator[Bench]:
    """Measures in this process; ``clock`` as in ``Bench``."""
    from tvm import rpc

    environment.prepare_thread_pool()
    logging.getLogger("RPCServer").setLevel(logging.WARNING)  # else a line for every kernel, in between ours
    yield Bench(rpc.LocalSession(), target, threads, clock=clock)


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
    """``example`` with weight and bias in the layout of a tile and its scheme."""
    conv, result = layer.conv, list(arguments)
    scheme = winograd.choice(conv, tile)
    if scheme:
        result[2] = winograd.pack_weight(result[2], scheme, tile.width)
    else:
        result[2] = np.concatenate([conv1d.pack_weight(w, tile.width) for w in np.split(result[2], conv.phases)])
    if conv.bias:
        result[3] = conv1d.pack_bias(result[3], tile.width)
    return result


def named(conv: Conv1d, tile: Tile) -> Tile:
    """``tile`` with scheme and block spelt out: what a record has to say to get the same kernel."""
    scheme = winograd.choice(conv, tile)
    if scheme is None:
        return replace(tile, scheme="direct", tuned=())
    return replace(tile, scheme=scheme.name, block=winograd.block_tiles(conv, tile, scheme), tuned=())


def schemes(conv: Conv1d, tile: Tile) -> list[Tile]:
    """``tile`` for every way to compute a convolution, each with a block that suits it."""
    ways = [replace(tile, scheme="direct", tuned=())]
    for scheme in winograd.candidates(conv):
        ways.append(replace(tile, scheme=scheme.name, block=winograd.block_tiles(conv, tile, scheme), tuned=()))
    return ways


def tune_layer(layer: Layer, bench: Bench, listener: Listener = lambda _: None) -> Record | None:
    """The fastest scheme and tile of a layer; None if the default is as good.

    Raises:
        RuntimeError: A candidate computes something else than the default: a bug.
    """
    conv = layer.conv
    without_records = replace(bench.target.tile, tuned=())
    usual = without_records.best("", conv.accumulate == "compensated", conv.c_out)
    default = named(conv, usual)
    inputs = example(layer)
    seconds, truth = bench.run(layer, default, inputs)
    times = {default: seconds}

    def fastest(candidates: Sequence[Tile]) -> Tile:
        for tile in candidates:
            if tile not in times:
                try:
                    seconds, result = bench.run(layer, tile, inputs)
                except ValueError:
                    continue  # the kernel does not take it
                error = float(np.abs(result - truth).max() / np.abs(truth).max())
                used = [s for s in (winograd.choice(conv, t) for t in (tile, default)) if s]
                allowed = max([conv1d.TOLERANCE, *map(winograd.tolerance, used)])
                if not error <= allowed:
                    raise RuntimeError(f"{layer_name(conv)}: {tile} differs from the default by {error:.1e}")
                times[tile] = seconds
                sizes = f"{tile.rows} x {tile.width}, {tile.block}, {tile.columns}"
                listener(f"{layer_name(conv)}: {tile.scheme}, {sizes}: {seconds:.2e} s")
        return min(times, key=lambda t: times[t])

    registers = 32 if "avx512f" in bench.target.features else REGISTERS[bench.target.machine]
    best = fastest(schemes(conv, usual))
    widths = [best, replace(best, lanes=best.lanes // 2)] if conv.c_out % best.width and best.lanes > 4 else [best]
    best = fastest([tile for width in widths for tile in micro_tiles(width, registers)])
    best = fastest([_sized(best, best.vectors, best.rows, block) for block in BLOCKS])
    if bench.threads > 1:  # one thread has no use for tasks: it would always take all channels at once
        best = fastest([replace(best, columns=columns) for columns in COLUMNS])
    if best == default:
        return None
    seconds, usual_seconds = bench.compare(layer, (best, default), inputs)
    if not seconds < usual_seconds * (1 - GAIN):
        return None
    sizes = best.lanes, best.vectors, best.rows, best.block, best.columns
    return Record(layer_name(conv), best.scheme or "direct", *sizes, seconds, usual_seconds)


def tune(
    model: KModel,
    components: Sequence[str],
    seconds: float,
    where: AbstractContextManager[Bench],
    listener: Listener = lambda _: None,
    most: int | None = None,
    only: str = "",
) -> list[Record]:
    """Tunes every layer of some components (the ``most`` laborious ones, ``only`` those with this in their name).

    Args:
        model: For its shapes.
        components: Their names.
        seconds: Length of the utterances.
        where: What measures.
        listener: Told what goes on.
        most: See above; all if None.
        only: A regular expression.
    """
    found = []
    chosen = [x for x in layers(model, components, seconds) if re.search(only, layer_name(x.conv))][:most]
    with where as bench:
        for i, layer in enumerate(chosen):
            listener(f"layer {i + 1} of {len(chosen)}: {layer_name(layer.conv)}, {layer.rows} rows")
            record = tune_layer(layer, bench, listener)
            found += [record] if record else []
    return found
