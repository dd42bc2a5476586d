"""The components for Apple GPUs on an emulated Metal device: every kernel call in lock step with the CPU, then every stage.

What it is: finding the emulator, which is a part of the source checkout and not of the package; compiling for it; and the conduct
of both comparisons on an utterance. What it is not: the emulator (its README says what it shows and what it does not), or the
comparisons themselves (``lock_step``, ``steps``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kokoro_tvm import environment, macos
from kokoro_tvm.artifact import Manifest, check_files, read_manifest
from kokoro_tvm.compile import CompileOptions, Listener, compile_artifact
from kokoro_tvm.errors import ArtifactError, InputError, ToolchainError
from kokoro_tvm.reference.checkpoint import Checkpoint
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate import lock_step, steps
from kokoro_tvm.validate.bisect import component_stage
from kokoro_tvm.validate.steps import Report, Utterance
from kokoro_tvm.validate.subjects import component_arrays
from kokoro_tvm.validate.workbench import Workbench

MODES: dict[str, dict[str, Any]] = {
    "forward": {"order": "forward"},
    "reverse": {"order": "reverse"},
    "random": {"order": "random", "seed": 3},
    "watched": {"order": "reverse", "race": True},
    "fast-math": {"order": "random", "seed": 5, "fast_math": True},
}
"""How kernels run: threads in this order; every access watched for races and unwritten memory; fast math at its worst."""

_CHECKOUT = Path(__file__).resolve().parents[4]
_SPARE_ROWS = 3
"""Rows of NaN behind the utterance in lock step."""
_STRAY_ID = 10**9
"""A token that does not exist."""


def load_emulator() -> ModuleType:
    """The emulator's package ``metal_emulator``.

    Raises:
        ToolchainError: It is not there, or this system or its compiler is missing.
    """
    folder = environment.metal_emulation() or _CHECKOUT / "tests" / "metal_emulation"
    if not (folder / "metal_emulator" / "__init__.py").is_file():
        raise ToolchainError(
            f"{folder} has no Metal emulator, which needs clang too: it is a part of the source checkout (tests/metal_emulation) "
            "and not of the package; name its folder in KOKORO_TVM_METAL_EMULATION"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    emulator = importlib.import_module("metal_emulator")
    try:
        importlib.import_module("metal_emulator.toolchain").clang()
    except RuntimeError as error:
        raise ToolchainError(str(error)) from error
    return emulator


def compile_emulated(
    names: Sequence[str], checkpoint: Checkpoint, directory: Path, beside: Path | None = None, listener: Listener | None = None
) -> Manifest:
    """Compiles components for the emulator.

    Args:
        names: The components.
        checkpoint: The weights.
        directory: Where to put them.
        beside: An artifact for metal-macos that has to hold the same programs and weights, byte for byte.
        listener: Told of each phase.

    Raises:
        ArtifactError: ``beside`` holds other ones, or not all of the components.
    """
    if beside is None:
        options = CompileOptions.resolve(checkpoint, "metal-macos").emulated()
        return compile_artifact(names, checkpoint, options, directory, listener=listener)
    theirs = read_manifest(beside)
    if theirs.target.name != "metal-macos":
        raise ArtifactError(f"{beside} is for {theirs.target.name}; --device metal-emulated takes an artifact for metal-macos")
    if theirs.checkpoint.sha256 != checkpoint.sha256:
        raise ArtifactError(f"{beside} was compiled from another checkpoint than {checkpoint.source}")
    if absent := [n for n in names if n not in theirs.components]:
        raise ArtifactError(f"{beside} lacks {', '.join(absent)}; compile them into it, or name others with --component")
    check_files(beside, [f for n in names for f in (theirs.components[n].library, theirs.components[n].weights)])
    options = CompileOptions.resolve(
        checkpoint, "metal-macos", seq_len=theirs.seq_len, aligned_len=theirs.aligned_len, dtype=theirs.dtype
    )
    ours = compile_artifact(names, checkpoint, options.emulated(), directory, listener=listener)
    for name in names:
        before, now = theirs.components[name], ours.components[name]
        try:
            macos.check_same_program(beside / before.library.name, directory / now.library.name)
        except RuntimeError as error:
            raise ArtifactError(f"{beside}: {error}; it was made from other sources, compile it again") from error
        if before.weights.sha256 != now.weights.sha256:
            raise ArtifactError(f"{beside}: {before.weights.name} holds other weights than are made now; compile it again")
    return ours


@contextmanager
def emulated_device(mode: str) -> Iterator[Any]:
    """TVM's Metal device while the body runs: a ``MetalEmulator`` in one of ``MODES``.

    Raises:
        InputError: There is no such mode.
        ToolchainError: See ``load_emulator``.
    """
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}; expected one of: {', '.join(MODES)}")
    with load_emulator().MetalEmulator(**MODES[mode]) as device:
        yield device


@dataclass(frozen=True)
class Judgement:
    """What was found about one utterance.

    Attributes:
        utterance: What was spoken.
        components: Those that were to be judged.
        comparisons: One per component, in their order.
        report: Its stages; None if a kernel's fault ended them.
        fault: That fault; empty if there was none.
        total: Frames of the utterance.
        frames: Those that the decoder was given.
    """

    utterance: Utterance
    components: Sequence[str]
    comparisons: Sequence[lock_step.Comparison]
    report: Report | None
    fault: str
    total: int
    frames: int

    @property
    def passed(self) -> bool:
        """Whether every component was compared, every stage of it judged, the chain too if it is whole, and all of it is well."""
        compared = [c.component for c in self.comparisons] == list(self.components) and all(c.passed for c in self.comparisons)
        judged = {("chain" if r.mode == "chained" else r.stage) for r in self.report.records} if self.report else set()
        due = {s.name for s in steps.STAGES if s.component in self.components}
        due |= {"chain"} if set(self.components) == set(COMPONENTS) else set()
        return compared and judged == due and self.report is not None and self.report.passed and not self.fault

    @property
    def failures(self) -> list[str]:
        """A line for everything that is wrong, in the order in which it was found."""
        found = [line for c in self.comparisons for line in c.failures]
        if self.report is not None:
            found += [f"{r.stage}: {r.tensor}, {r.mode}, is below its floor" for r in self.report.failures]
        return [*found, self.fault] if self.fault else found


class Judge:
    """Compares utterances on the emulated device, which has to be TVM's.

    Args:
        bench: With an engine on the device.
        components: Those to judge.
        frames: Give the decoder so many of an utterance's frames; all if None.
        say: Told what begins.
        progress: Told how far it is.
    """

    def __init__(
        self, bench: Workbench, components: Sequence[str], frames: int | None,
        say: Callable[[str], None], progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._bench, self._components, self._frames = bench, components, frames
        self._say, self._progress = say, progress
        self._fault = (load_emulator().KernelFault,)
        self._kernels: dict[str, lock_step.CpuKernels] = {}
        self._subjects = bench.subjects(say, components)

    def __call__(self, utterance: Utterance) -> Judgement:
        """Both comparisons."""
        self._say(f"{utterance.name}: reference in float64")
        truth = steps.reference(self._subjects, utterance)
        comparisons = []
        for name in self._components:
            self._say(f"{utterance.name}: {name}, the CPU's kernels")
            stage = component_stage(name)
            inputs = steps.reference_inputs(stage, truth, utterance, self._frames)
            comparisons.append(self._lock_step(name, steps.length_of(stage, inputs), inputs, utterance.name))
        report, fault = None, ""
        tell = lambda what: self._say(f"{utterance.name}: {what}")  # noqa: E731
        try:
            report = steps.validate(self._subjects, utterance, tell, self._components, self._frames, truth)
        except self._fault as error:
            fault = " ".join(str(error).split())
        frames = truth.frames if self._frames is None else min(self._frames, truth.frames)
        return Judgement(utterance, self._components, comparisons, report, fault, truth.frames, frames)

    def _lock_step(self, name: str, length: int, inputs: steps.Tensors, window: str) -> lock_step.Comparison:
        if name not in self._kernels:
            self._kernels[name] = lock_step.CpuKernels(name, self._bench.single.model)
        arrays = component_arrays(component_stage(name), inputs, length + _SPARE_ROWS, _STRAY_ID)
        expected = self._kernels[name].run(arrays)
        self._say(f"{window}: {name}, {len(expected)} kernel calls in lock step")
        tell = lambda n: self._progress(f"{window}: {name}, kernel call {n} of {len(expected)}")  # noqa: E731
        return lock_step.compare(self._bench.synthesizer.engine.directory, name, expected, arrays, self._fault, tell)


def check_components(names: Sequence[str]) -> tuple[str, ...]:
    """The components of these names, in pipeline order; all if there are none, or for ``all``.

    Raises:
        InputError: One is unknown.
    """
    if not names or list(names) == ["all"]:
        return tuple(COMPONENTS)
    if unknown := [n for n in names if n not in COMPONENTS]:
        raise InputError(f"unknown component {', '.join(map(repr, unknown))}; expected some of: {', '.join(COMPONENTS)}")
    return tuple(n for n in COMPONENTS if n in names)
