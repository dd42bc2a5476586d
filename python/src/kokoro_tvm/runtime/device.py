"""Where a component's tensors live: in host memory, or on a Metal device.

What it is: the two ways of putting arrays there and getting them back; an artifact's target decides between them.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Protocol

import numpy as np
import tvm_ffi

from kokoro_tvm.artifact import ALIGNMENT, aligned_empty
from kokoro_tvm.errors import ToolchainError

_CPU, _METAL, _POOLED = 1, 8, 2
"""DLPack's device types, and the virtual machine's allocator that keeps freed blocks."""


class Device(Protocol):
    """See the module; ``machine`` are the arguments that the virtual machine is initialised with."""

    machine: tuple[int, ...]

    def put(self, array: np.ndarray) -> tvm_ffi.Tensor:
        """The array as a tensor; it may share the array's memory, which must then stay as it is."""

    def get(self, tensor: tvm_ffi.Tensor) -> np.ndarray:
        """A copy of a tensor."""


class Cpu:
    """Host memory, shared where compiled code can read the array as it lies."""

    machine = (_CPU, 0, _POOLED)

    def put(self, array: np.ndarray) -> tvm_ffi.Tensor:
        """See ``Device``."""
        fits = array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0
        if fits:
            return tvm_ffi.from_dlpack(array)
        copy = aligned_empty(array.shape, array.dtype)
        copy[...] = array
        return tvm_ffi.from_dlpack(copy)

    def get(self, tensor: tvm_ffi.Tensor) -> np.ndarray:
        """See ``Device``."""
        return np.from_dlpack(tensor).copy()


class Metal:
    """The first Metal device.

    Args:
        libraries: The folder of libtvm_runtime, where its part for Metal lies too.

    Raises:
        ToolchainError: There is no Metal runtime here.
    """

    machine = (_METAL, 0, _POOLED, _CPU, 0, _POOLED)

    def __init__(self, libraries: Path) -> None:
        library = libraries / "libtvm_runtime_metal.dylib"
        if library.is_file():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        if tvm_ffi.get_global_func("device_api.metal", allow_missing=True) is None:
            raise ToolchainError(f"{libraries} has no Metal runtime: Metal artifacts run on macOS only")
        self._empty = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._fill = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
        self._read = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
        self._device = tvm_ffi.device("metal", 0)

    def put(self, array: np.ndarray) -> tvm_ffi.Tensor:
        """See ``Device``."""
        array = np.ascontiguousarray(array)
        tensor = self._empty(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), self._device, None)
        self._fill(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
        return tensor

    def get(self, tensor: tvm_ffi.Tensor) -> np.ndarray:
        """See ``Device``."""
        array = np.empty(tuple(tensor.shape), str(tensor.dtype))
        self._read(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
        return array


def device_of(target: str, libraries: Path) -> Device:
    """The device that components for a target (by name) run on; see ``Metal`` for ``libraries``."""
    return Metal(libraries) if target.startswith("metal-") else Cpu()
