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
from kokoro_tvm.errors import ArtifactError, ToolchainError
from kokoro_tvm.runtime import cpu
from kokoro_tvm.runtime.device import Metal, device_of
from kokoro_tvm.runtime.inputs import checked_inputs, checked_threads
from kokoro_tvm.runtime.memory import keep_pages
from kokoro_tvm.stages import COMPONENTS

Observer = Callable[[str, bool, tuple[object, ...]], None]
"""See ``Engine.observe``."""



@lru_cache(maxsize=1)
def load_tvm_runtime() -> Path:
    """Loads libtvm_runtime into the process, without the compiler or any Python of ``tvm``.

    Raises:
        ToolchainError: apache-tvm is not installed.
    """
    environment.prepare_thread_pool()
    keep_pages()
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
        self.threads = checked_threads(threads)
        names = list(self.manifest.components) if components is None else list(components)
        _check_machine(self.directory, self.manifest)
        absent = [n for n in names if n not in self.manifest.components]
        if absent:
            have = ", ".join(self.manifest.components) or "none"
            raise ArtifactError(f"{self.directory} lacks {', '.join(absent)} (it has: {have}); compile them into it")
        if verify:
            check_files(self.directory, _records(self.manifest, names))
        runtime = load_tvm_runtime()
        self._device = device_of(self.manifest.target.name, runtime.parent)
        if self.manifest.extern is not None:
            _load_extern(self.directory / self.manifest.extern.name)
        libraries = {self.manifest.components[n].library.name for n in names}
        loaded = {library: self._load(library) for library in libraries}
        self._executables = {n: loaded[self.manifest.components[n].library.name] for n in names}
        self._weights = {n: self._map_weights(n) for n in names}
        self._worker = _Worker()
        self._release = tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")

    @property
    def on_gpu(self) -> bool:
        """Whether its kernels are a GPU's."""
        return isinstance(self._device, Metal)

    @property
    def description(self) -> str:
        """What runs, for reports."""
        manifest = self.manifest
        return f"for {manifest.target.mcpu}, {manifest.dtype}, LSTM {manifest.lstm_method}, apache-tvm {manifest.tvm}"

    def _load(self, library: str) -> tvm_ffi.Module:
        path = self.directory / library
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
        arrays = checked_inputs(COMPONENTS[name], inputs, self.manifest)
        result = self._function(name)(*map(self._device.put, arrays), *self._weights[name])
        tensors = [result] if isinstance(result, tvm_ffi.Tensor) else list(result)
        outputs = tuple(map(self._device.get, tensors))
        # Freed buffers stay in the machine's pool, one set for every length that ever was: memory would follow the history
        # of calls. Malloc keeps their pages (``runtime.memory``).
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


def _records(manifest: Manifest, names: Sequence[str]) -> list[FileRecord]:
    records = [r for n in names for r in (manifest.components[n].library, manifest.components[n].weights)]
    # Components may share files.
    return list(dict.fromkeys(records + ([manifest.extern] if manifest.extern else [])))


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


