"""Compilation targets: what to tell TVM, how large the kernels' tile is, and which CPU features the code will need.

What it is: the only place that names CPUs and GPUs. What it is not: a check at run time (``runtime.cpu``).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

import tvm

from kokoro_tvm.errors import InputError
from kokoro_tvm.kernels import records
from kokoro_tvm.kernels import tile as tiles
from kokoro_tvm.kernels.metal import tile as metal_tiles
from kokoro_tvm.kernels.tile import Tile

METAL_SYSTEMS = {"metal-macos": "macos", "metal-ios": "ios"}
TARGETS = ("llvm", *METAL_SYSTEMS)

ISA_FEATURES = {
    "x86_64": ("avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt", "sse4.2",
               "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16"),
    "arm64": ("neon", "fullfp16", "dotprod"),
}  # fmt: skip
"""LLVM feature names that generated code may depend on, per machine."""


@dataclass(frozen=True)
class CpuTarget:
    """A CPU to compile for.

    Attributes:
        mcpu: LLVM's name of the CPU.
        machine: ``x86_64`` or ``arm64``.
        system: ``linux`` or ``macos``.
        tile: The kernels' register tile.
        features: Those of ``ISA_FEATURES`` that the CPU must have.
        attributes: The target's JSON for TVM.
    """

    mcpu: str
    machine: str
    system: str
    tile: Tile
    features: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict, compare=False)

    def tvm_target(self) -> tvm.target.Target:
        """TVM's form."""
        return tvm.target.Target(self.attributes)

    @property
    def native(self) -> bool:
        """Whether code for it can be linked and run by this kind of system (the CPU may still lack a feature)."""
        return self.system == "linux" and self.machine == _host_machine()

    @property
    def lstm_method(self) -> str:
        """The LSTM that it is compiled with by default."""
        return "extern"


@dataclass(frozen=True)
class MetalTarget:
    """An Apple GPU, and the CPU that launches its kernels.

    Attributes:
        mcpu: LLVM's name of the CPU.
        machine: The CPU's machine.
        system: ``macos`` or ``ios``; ``linux`` for an emulator, which runs the same kernels on this machine.
        tile: The kernels' tile.
        features: CPU features that the launching code needs; it is plain code for ``mcpu``.
        attributes: The target's JSON for TVM.
    """

    mcpu: str
    machine: str
    system: str
    tile: metal_tiles.Tile
    features: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict, compare=False)

    def tvm_target(self) -> tvm.target.Target:
        """TVM's form."""
        return tvm.target.Target(self.attributes)

    @property
    def native(self) -> bool:
        """Whether its host code can be linked and run by this system, which is so for an emulator."""
        return self.system == "linux"

    @property
    def lstm_method(self) -> str:
        """The LSTM that it is compiled with: there is no extern on the GPU."""
        return "tir"


Target = CpuTarget | MetalTarget


def _host_machine() -> str:
    return {"aarch64": "arm64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())


def _features(attributes: dict[str, Any], machine: str) -> tuple[str, ...]:
    found = set(map(str, tvm.get_global_func("target.llvm_get_cpu_features")(tvm.target.Target(attributes))))
    return tuple(f for f in ISA_FEATURES[machine] if f in found)


def _host_features() -> set[str]:
    table = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return {str(name) for name, present in table.items() if bool(present)}


def _tile(machine: str, features: tuple[str, ...]) -> Tile:
    if machine == "arm64":
        return tiles.NEON
    if "avx512f" in features:
        return tiles.AVX512
    return tiles.AVX2 if {"avx2", "fma"} <= set(features) else tiles.SSE


def named_target(target: str = "llvm", mcpu: str | None = None) -> Target:
    """Resolves ``--target`` and ``--mcpu``.

    Args:
        target: One of ``TARGETS``.
        mcpu: See ``cpu_target``; only for ``llvm``.

    Raises:
        InputError: The target or the CPU is unknown, or the target has its own CPU.
    """
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}; expected one of: {', '.join(TARGETS)}")
    if target not in METAL_SYSTEMS:
        return cpu_target(target, mcpu)
    if mcpu not in (None, _APPLE_CPU):
        raise InputError(f"--mcpu {mcpu!r} does not go with --target {target}, whose host code is for {_APPLE_CPU} and later")
    return metal_target(METAL_SYSTEMS[target])


def recorded_target(name: str, mcpu: str, system: str) -> Target:
    """The target that an artifact was compiled for, by what its manifest records: Metal on Linux is an emulator's."""
    return metal_target(system) if name.startswith("metal-") else cpu_target(name, mcpu)


_APPLE_CPU = "apple-m1"
_APPLE_TRIPLES = {"macos": "arm64-apple-macos13", "ios": "arm64-apple-ios16"}


def metal_target(system: str) -> MetalTarget:
    """An Apple GPU with a host of this ``system``; see ``MetalTarget``."""
    gpu = {
        "kind": "metal",
        "max_threads_per_block": metal_tiles.THREADS,
        "max_num_threads": metal_tiles.THREADS,
        "max_shared_memory_per_block": metal_tiles.SHARED_BYTES,
        "thread_warp_size": metal_tiles.SIMD,
    }
    if system == "linux":
        here = _this_cpu()
        return MetalTarget(here.mcpu, here.machine, system, metal_tiles.APPLE, here.features, gpu | {"host": here.attributes})
    host = {"kind": "llvm", "mcpu": _APPLE_CPU, "mtriple": _APPLE_TRIPLES[system]}
    return MetalTarget(_APPLE_CPU, "arm64", system, metal_tiles.APPLE, _features(host, "arm64"), gpu | {"host": host})


def cpu_target(target: str = "llvm", mcpu: str | None = None) -> CpuTarget:
    """Resolves ``--target`` and ``--mcpu``.

    Args:
        target: ``llvm``.
        mcpu: An LLVM CPU name such as ``x86-64-v3``, ``znver4`` or ``apple-m1`` (macOS, cross-compiled); this CPU if None.

    Raises:
        InputError: The target or the CPU is unknown.
    """
    if target != "llvm":
        raise InputError(f"target {target!r} is no CPU; expected llvm")
    if mcpu is None:
        return _this_cpu()
    apple = mcpu.startswith("apple-")
    machine, system = ("arm64", "macos") if apple else (_host_machine(), "linux")
    attributes: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu}
    if apple:
        attributes["mtriple"] = "arm64-apple-macos13"
    # LLVM's own list leaves out aliases such as apple-m1, hence the question by name.
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, attributes.get("mtriple", _host_triple())):
        known = sorted(map(str, tvm.get_global_func("target.llvm_get_cpu_archlist")(_any_cpu(attributes))))
        close = [k for k in known if k.startswith(mcpu[:4])] or known
        raise InputError(f"unknown CPU {mcpu!r} for {machine}; expected one of: {', '.join(close)}")
    features = _features(attributes, machine)
    return CpuTarget(mcpu, machine, system, records.tuned(_tile(machine, features), mcpu), features, attributes)


def _host_triple() -> str:
    return str(tvm.get_global_func("target.llvm_get_system_triple")())


def _any_cpu(attributes: dict[str, Any]) -> tvm.target.Target:
    return tvm.target.Target({k: v for k, v in attributes.items() if k != "mcpu"})


def _this_cpu() -> CpuTarget:
    """This CPU, less what a hypervisor hides of it."""
    machine = _host_machine()
    mcpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    attributes: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu}
    nominal = set(map(str, tvm.get_global_func("target.llvm_get_cpu_features")(tvm.target.Target(attributes))))
    real = _host_features()
    known = set(map(str, tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()))
    hidden = sorted((nominal & known) - real)
    if hidden:
        attributes["mattr"] = [f"-{f}" for f in hidden]
    features = tuple(f for f in ISA_FEATURES.get(machine, ()) if f in nominal and (f in real or f not in known))
    system = platform.system().lower().replace("darwin", "macos")
    return CpuTarget(mcpu, machine, system, records.tuned(_tile(machine, features), mcpu), features, attributes)
