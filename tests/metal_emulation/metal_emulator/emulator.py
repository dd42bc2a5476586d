"""The emulated device: a context in which TVM's Metal modules run on this machine."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from metal_emulator import serialised, toolchain
from metal_emulator.edits import Edit
from metal_emulator.serialised import Signature

ORDERS = ("forward", "reverse", "random")
_CREATE, _LOAD, _RECORD = "ffi.Module.create.metal", "ffi.Module.load_from_bytes.metal", "metal_emulator.record_launch"

_SYNCHRONISES = re.compile(r"\b(?:threadgroup_barrier|simd_\w+|simdgroup_\w+)\s*\(")
_GRANULES = ((1, r"\b(?:bool|u?char)[234]?\b"), (2, r"\b(?:half|u?short)[234]?\b"))


@tvm_ffi.error.register_error
class KernelFault(RuntimeError):
    """A kernel did what Metal forbids or leaves undefined. The message names kernel, fault and place."""


@dataclass
class KernelRecord:
    """A kernel of this emulator's modules and how it was launched.

    Attributes:
        msl: Source, as compiled (edits included).
        signature: Its arguments.
        launches: Number of launches that ended well.
        most_threads: Largest threadgroup.
        most_groups: Largest grid, in threadgroups.
    """

    msl: str
    signature: Signature
    launches: int = 0
    most_threads: int = 0
    most_groups: int = 0


@functools.cache
def _native() -> tuple[Any, Any]:
    """Loads the native part, which registers the device; returns its ``configure`` and ``create_module``."""
    ctypes.CDLL(str(toolchain.native_library()), mode=ctypes.RTLD_GLOBAL)  # kernels resolve their calls in it
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL("libgcc_s.so.1", mode=ctypes.RTLD_GLOBAL)
    return tvm_ffi.get_global_func("metal_emulator.configure"), tvm_ffi.get_global_func("metal_emulator.create_module")


def _entry(name: str, signature: Signature) -> str:
    """OpenCL C++ that calls the kernel for one thread. Conversions find the parameters' types, so that nobody parses them."""
    arguments = [f"Pointer{{buffers[{i}]}}" for i in range(signature.buffers)]
    if signature.scalars:
        arguments.append("Reference{scalars}")
    if signature.launch_tags:
        arguments += ["Position{group[0], group[1], group[2]}", "Position{thread_[0], thread_[1], thread_[2]}"]
    return f"""
namespace {{
struct Pointer {{ ulong address; template <class T> operator T*() const {{ return (T*)address; }} }};
struct Reference {{ ulong address; template <class T> operator T&() const {{ return *(T*)address; }} }};
struct Position {{
  uint x, y, z;
  operator uint() const {{ return x; }}
  operator metal::vec<uint, 2>() const {{ return {{x, y}}; }}
  operator metal::vec<uint, 3>() const {{ return {{x, y, z}}; }}
}};
}}
extern "C" void metal_emulator_run_thread(const ulong* buffers, ulong scalars, const uint* group, const uint* thread_) {{
  {name}({", ".join(arguments)});
}}
"""


_BUILDS: dict[tuple[bool, bool, Edit | None], int] = {}
"""Numbers of the ways to compile kernels: watched or not, fast math or not, edit."""


class MetalEmulator:
    """A Metal device in this process. Modules are compiled when TVM builds or loads them inside the ``with`` block.

    Kernels run only inside the block of an emulator that would compile them alike. A library (a file) that is loaded again has to
    be a copy if the emulator is another one: TVM never closes a library, whose host code keeps the kernels that it first found.

    Attributes:
        kernels: Kernels compiled so far, by name.
    """

    def __init__(
        self, order: str = "forward", *, seed: int = 0, race: bool = False, fast_math: bool = False, edit: Edit | None = None
    ) -> None:
        """Prepares a device; it is there from ``with`` on.

        Args:
            order: Of threads and threadgroups: ``"forward"``, ``"reverse"`` or ``"random"``.
            seed: Of the random order.
            race: Watch every load and store: data races, reads of unwritten memory, exact bounds. Several times slower.
            fast_math: Math functions at the worst that Metal's fast math allows; subnormal numbers are zero.
            edit: Changes kernels before they are compiled.

        Raises:
            ValueError: ``order`` is none of the three.
        """
        self._edit = edit
        self.kernels: dict[str, KernelRecord] = {}
        self._race, self._fast_math = race, fast_math
        self._active = False
        self.order, self.seed = order, seed

    @property
    def order(self) -> str:
        """Of threads and threadgroups; may be set between launches."""
        return self._order

    @order.setter
    def order(self, order: str) -> None:
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}, expected one of {', '.join(ORDERS)}")
        self._order = order
        self._configure()

    @property
    def seed(self) -> int:
        """Of the random order; may be set between launches."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = seed
        self._configure()

    @property
    def edit(self) -> Edit | None:
        """Changes kernels before they are compiled; see ``edits``. What is compiled already does not run under another one."""
        return self._edit

    @edit.setter
    def edit(self, edit: Edit | None) -> None:
        self._edit = edit
        self._configure()

    def _configure(self) -> None:
        if self._active:
            configure, _ = _native()
            build = _BUILDS.setdefault((self._race, self._fast_math, self.edit), len(_BUILDS) + 1)
            configure(True, ORDERS.index(self.order), self.seed, self._fast_math, build)

    def __enter__(self) -> MetalEmulator:
        """Makes the device TVM's.

        Raises:
            RuntimeError: Another one is active, clang is missing, or this is no x86-64 Linux.
        """
        if tvm_ffi.get_global_func(_CREATE, allow_missing=True) is not None:
            raise RuntimeError("another Metal device is active")
        _native()
        tvm_ffi.register_global_func(_CREATE, self._create)
        tvm_ffi.register_global_func(_LOAD, self._load)
        tvm_ffi.register_global_func(_RECORD, self._record)
        self._active = True
        self._configure()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._active = False
        configure, _ = _native()
        configure(False, 0, 0, False, 0)
        for name in (_CREATE, _LOAD, _RECORD):
            tvm_ffi.registry.remove_global_func(name)

    @property
    def device(self) -> tvm.runtime.Device:
        """The emulated device, ``tvm.metal(0)``."""
        return tvm.metal(0)

    def tensor(self, array: Any) -> tvm.runtime.Tensor:
        """A copy of a NumPy array on the device."""
        return tvm.runtime.tensor(array, self.device)

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> tvm.runtime.Tensor:
        """A tensor on the device that nobody has written: NaN, and a fault to read with ``race``."""
        return tvm.runtime.empty(shape, dtype, self.device)

    def virtual_machine(self, executable: Any) -> relax.VirtualMachine:
        """A virtual machine on the device whose buffers are as large as asked for: the default allocator rounds up to pages."""
        return relax.VirtualMachine(executable, self.device, memory_cfg="naive")

    # ---- called by TVM ----

    def _create(self, sources: Mapping[str, bytes], format_name: str, infos: Mapping[str, Any], source: Mapping[str, str]) -> Any:
        if format_name != "metal":
            raise ValueError(f"the emulator compiles Metal sources, got {format_name!r}")
        signatures = {str(name): _signature(info) for name, info in infos.items()}
        return self._module(signatures, {str(name): bytes(text).decode() for name, text in sources.items()})

    def _load(self, data: bytes) -> Any:
        return self._module(*serialised.load(bytes(data)))

    def _record(self, name: str, threads: int, groups: int) -> None:
        record = self.kernels[str(name)]
        record.launches += 1
        record.most_threads = max(record.most_threads, threads)
        record.most_groups = max(record.most_groups, groups)

    def _module(self, signatures: Mapping[str, Signature], sources: Mapping[str, str]) -> Any:
        edited = {name: self.edit(name, msl) if self.edit else msl for name, msl in sources.items()}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = dict(zip(edited, pool.map(lambda n: self._compile(n, edited[n], signatures[n]), edited), strict=True))
        for name, msl in edited.items():
            if name not in self.kernels or self.kernels[name].msl != msl:
                self.kernels[name] = KernelRecord(msl, signatures[name])
        _, create_module = _native()
        entries = [
            [
                name,
                str(objects[name]),
                list(signatures[name].argument_types),
                list(signatures[name].launch_tags),
                bool(_SYNCHRONISES.search(msl)),
                self._race,
                next((size for size, pattern in _GRANULES if re.search(pattern, msl)), 4),
            ]
            for name, msl in edited.items()
        ]
        return create_module(entries, serialised.save(signatures, sources), "\n".join(sources.values()))

    def _compile(self, name: str, msl: str, signature: Signature) -> Path:
        entry = _entry(name, signature)
        return toolchain.compile_kernel(name, msl, entry, watch=self._race, fast_math=self._fast_math)


def _signature(info: Any) -> Signature:
    return Signature(tuple(str(t) for t in info.arg_types), tuple(str(t) for t in info.launch_param_tags))
