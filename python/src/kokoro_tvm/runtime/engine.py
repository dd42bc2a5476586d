"""Loads an artifact and runs its components on NumPy arrays.

What it is: the whole of the machine-facing runtime: libtvm_runtime, the Relax virtual machine and the LSTM extern, without
importing ``tvm`` (two seconds) or ``torch``. What it is not: text, voices or the order of stages (``runtime.synthesis``).

Threads: an engine may be called from several threads at once. Each calling thread gets its own virtual machine (a few
kilobytes; weights are shared) and its own worker pool of ``threads`` threads.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import tvm_ffi

from kokoro_tvm import environment
from kokoro_tvm.artifact import (
    FileRecord,
    Manifest,
    check_files,
    read_manifest,
    read_weights,
)
from kokoro_tvm.errors import ArtifactError, CapacityError, InputError, ToolchainError
from kokoro_tvm.runtime import cpu
from kokoro_tvm.runtime.device import Cpu, Device, Metal
from kokoro_tvm.stages import COMPONENTS, Component, TensorSpec

Observer = Callable[[str, bool, tuple[object, ...]], None]
"""See ``Engine.observe``."""



@lru_cache(maxsize=1)
def load_tvm_runtime() -> Path:
    """Loads libtvm_runtime into the process, without the compiler or any Python of ``tvm``.

    Raises:
        ToolchainError: apache-tvm is not installed.
    """
    environment.prepare_thread_pool()
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("apache-tvm is not installed; `pip install kokoro-tvm` brings it")
    folder = Path(spec.submodule_search_locations[0]) / "lib"
    found = next((p for p in sorted(folder.glob("libtvm_runtime.*")) if p.suffix in (".so", ".dylib")), None)
    if found is None:
        raise ToolchainError(f"{folder} has no libtvm_runtime; install apache-tvm again")
    ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
    return found


@cache
def _load_extern(path: Path) -> None:
    if tvm_ffi.get_global_func("kokoro_tvm.bilstm", allow_missing=True) is None:
        tvm_ffi.load_module(str(path))


class _Worker(threading.local):
    """What one calling thread owns: its virtual machines, and whether its thread pool is configured."""

    def __init__(self) -> None:
        self.functions: dict[str, tvm_ffi.Function] = {}
        self.machines: dict[str, tvm_ffi.Module] = {}
        self.threads: int | None = None


class Engine:
    """The components of one artifact.

    Args:
        directory: The artifact folder.
        threads: Threads per call; all CPUs if None. Results do not depend on it.
        components: Which components to load; all that the artifact has if None.
        verify: Compare every file with its hash first.

    Raises:
        ArtifactError: The artifact is missing, damaged, or was built for another machine or TVM; nothing has run then.
    """

    def __init__(
        self,
        directory: Path | str,
        threads: int | None = None,
        components: Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        self.directory = Path(directory)
        self.manifest = read_manifest(self.directory)
        self.threads = _checked_threads(threads)
        names = list(self.manifest.components) if components is None else list(components)
        _check_machine(self.directory, self.manifest)
        absent = [n for n in names if n not in self.manifest.components]
        if absent:
            have = ", ".join(self.manifest.components) or "none"
            raise ArtifactError(f"{self.directory} lacks {', '.join(absent)} (it has: {have}); compile them into it")
        if verify:
            check_files(self.directory, _records(self.manifest, names))
        libraries = load_tvm_runtime().parent
        self._device: Device = Metal(libraries) if self.manifest.target.name.startswith("metal-") else Cpu()
        if self.manifest.extern is not None:
            _load_extern(self.directory / self.manifest.extern.name)
        self._executables = {n: self._load(n) for n in names}
        self._weights = {n: self._map_weights(n) for n in names}
        self._worker = _Worker()
        self._release = tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")

    def _load(self, name: str) -> tvm_ffi.Module:
        path = self.directory / self.manifest.components[name].library.name
        try:
            return tvm_ffi.load_module(str(path))
        except (OSError, RuntimeError) as error:
            raise ArtifactError(f"cannot load {path}: {error}") from error

    def _map_weights(self, name: str) -> list[tvm_ffi.Tensor]:
        record = self.manifest.components[name]
        arrays = read_weights(self.directory / record.weights.name, record.parameters)
        return [self._device.put(a) for a in arrays]

    def _function(self, name: str) -> tvm_ffi.Function:
        worker = self._worker
        if worker.threads != self.threads:
            tvm_ffi.get_global_func("runtime.config_threadpool")(1, self.threads)
            worker.threads = self.threads
        if name not in worker.functions:
            if name not in self._executables:
                raise ArtifactError(f"component {name!r} was not loaded")
            machine = self._executables[name].get_function("vm_load_executable")()
            machine.get_function("vm_initialization")(*self._device.machine)
            worker.machines[name] = machine
            worker.functions[name] = machine.get_function(name)
        return worker.functions[name]

    def run(self, name: str, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Runs one component.

        Args:
            name: Component name.
            inputs: Arrays as ``stages.COMPONENTS`` lists them: one batch size, capacities of any size, valid lengths within
                them. Whatever lies beyond the lengths is never read.

        Returns:
            The outputs as new arrays, zero beyond the valid lengths.

        Raises:
            InputError: An input has another dtype, rank or shape, or a length or token id is out of range.
            CapacityError: A length exceeds what the artifact was compiled for.
        """
        component = COMPONENTS[name]
        arrays = self._checked(component, inputs)
        result = self._function(name)(*map(self._device.put, arrays), *self._weights[name])
        tensors = [result] if isinstance(result, tvm_ffi.Tensor) else list(result)
        outputs = tuple(map(self._device.get, tensors))
        # Freed buffers stay in the machine's pool, one set for every length that ever was: memory would follow the history
        # of calls. Giving them back costs nothing measurable (NOTES/005).
        del result, tensors
        self._release()
        return outputs

    def observe(self, name: str, listener: Observer) -> None:
        """Lets ``listener`` hear of every call inside a component, from now on and in the calling thread only.

        It is told the function's name, whether the call is about to begin (else it just ended), and its arguments.
        """
        self._function(name)

        def instrument(_function: object, symbol: str, before: bool, _result: object, *arguments: object) -> int:
            listener(symbol, before, arguments)
            return 0

        self._worker.machines[name].get_function("set_instrument")(tvm_ffi.convert(instrument))

    def _checked(self, component: Component, inputs: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        if len(inputs) != len(component.inputs):
            raise InputError(f"{component.name} takes {len(component.inputs)} inputs, got {len(inputs)}")
        extents: dict[str, int] = {}
        problems = []
        for spec, array in zip(component.inputs, inputs, strict=True):
            problems += _mismatch(spec, np.asarray(array), extents)
        if problems:
            raise InputError(f"{component.name}: " + "; ".join(problems))
        arrays = dict(zip((s.name for s in component.inputs), map(np.asarray, inputs), strict=True))
        self._check_lengths(component, arrays, extents)
        return list(arrays.values())

    def _check_lengths(self, component: Component, arrays: dict[str, np.ndarray], extents: dict[str, int]) -> None:
        lengths, capacity = arrays[component.lengths], extents[component.capacity]
        if lengths.size and (lengths.min() < 1 or lengths.max() > capacity):
            raise InputError(f"{component.name}: {component.lengths} {lengths.tolist()} must lie within 1..{capacity}")
        most = self.manifest.seq_len if component.capacity == "N" else self.manifest.aligned_len
        if lengths.size and lengths.max() > most:
            unit = "tokens" if component.capacity == "N" else "frames"
            raise CapacityError(
                f"{component.name}: {lengths.max()} {unit} exceed the artifact's capacity of {most}; compile with a larger "
                f"--{'seq-len' if component.capacity == 'N' else 'aligned-len'} or split the text"
            )
        if "input_ids" in arrays:
            valid = np.arange(capacity) < lengths[:, None]
            ids = arrays["input_ids"][valid]
            vocabulary = self.manifest.model.n_token
            if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
                raise InputError(f"{component.name}: token ids must lie within 0..{vocabulary - 1}")


def _records(manifest: Manifest, names: Sequence[str]) -> list[FileRecord]:
    records = [r for n in names for r in (manifest.components[n].library, manifest.components[n].weights)]
    return records + ([manifest.extern] if manifest.extern else [])


def _checked_threads(threads: int | None) -> int:
    if threads is None:
        return environment.cpu_count()
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads must be a positive whole number, got {threads!r}")
    return threads


def _check_machine(directory: Path, manifest: Manifest) -> None:
    target = manifest.target
    problems = []
    if (target.machine, target.system) != (cpu.machine(), cpu.system()):
        problems.append(f"it is for {target.system} on {target.machine}, this is {cpu.system()} on {cpu.machine()}")
    else:
        missing = cpu.missing_features(target.features)
        if missing:
            problems.append(f"it needs CPU features that this CPU lacks: {', '.join(missing)}")
    for package, built in (("apache-tvm", manifest.tvm), ("apache-tvm-ffi", manifest.tvm_ffi)):
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed = "nothing"
        if installed != built:
            problems.append(f"it was built with {package} {built}, installed is {installed}")
    if problems:
        raise ArtifactError(f"{directory} cannot run here: {'; '.join(problems)}. Compile it for this machine")


def _mismatch(spec: TensorSpec, array: np.ndarray, extents: dict[str, int]) -> list[str]:
    """Problems of one input; learns the extents of B, N and M on the way."""
    if array.dtype != spec.dtype:
        return [f"{spec.name} must be {spec.dtype}, got {array.dtype}"]
    if array.ndim != len(spec.shape):
        return [f"{spec.name} must have shape {list(spec.shape)}, got {list(array.shape)}"]
    for dim, extent in zip(spec.shape, array.shape, strict=True):
        if isinstance(dim, str):
            factor, _, symbol = dim.rpartition("*")
            step = int(factor) if factor else 1
            if extent % step == 0:
                extents.setdefault(symbol, extent // step)
    try:
        expected = spec.resolve(**extents)
    except KeyError:
        expected = ()
    if tuple(array.shape) != expected or 0 in array.shape:
        return [f"{spec.name} must have shape {list(spec.shape)} with {extents}, got {list(array.shape)}"]
    return []
