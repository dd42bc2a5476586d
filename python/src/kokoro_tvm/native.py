"""Finds and loads what is written in C++: the externs that compiled models call, and the NumPy binding.

What it is: the only module that knows where the shared libraries lie. What it is not: a build step, and no place for
kernels; it imports neither ``tvm`` nor ``torch``, which take seconds (tvm_ffi imports torch where it is installed).

After :func:`load_externs` these tvm-ffi global functions exist; ``cpp/bilstm/bilstm_ffi.h`` is their contract:

- ``kokoro_tvm.bilstm(x, lengths, w_ih, w_hh, b_ih, b_hh, y)``
- ``kokoro_tvm.bilstm_stateful(x, lengths, w_ih, w_hh, b_ih, b_hh, h0, c0, y, h_n, c_n)``
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import tvm_ffi

from kokoro_tvm.errors import ToolchainError

if TYPE_CHECKING:
    from types import ModuleType

EXTERN_LIBRARY = "libkokoro_tvm_extern.so"
"""The library's file name, the same on every system."""

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[2]


def _library_dirs() -> list[Path]:
    """Where the libraries may lie: an installation, an editable one, a build by hand inside the checkout."""
    # An editable install leaves the sources in the checkout and puts the libraries into the second.
    dirs = [_PACKAGE / "lib", Path(sysconfig.get_path("platlib")) / "kokoro_tvm" / "lib"]
    if (_CHECKOUT / "CMakeLists.txt").is_file():
        dirs.append(_CHECKOUT / "build" / "native" / "lib")
    return dirs


def _find(names: tuple[str, ...]) -> Path:
    """The file of one of these names that was built last: neither an old build by hand nor an old installation wins.

    Raises:
        ToolchainError: There is none; the message says how to build it.
    """
    dirs = _library_dirs()
    found = [path for path in (d / name for d in dirs for name in names) if path.is_file()]
    if found:
        return max(found, key=lambda path: path.stat().st_mtime_ns)
    raise ToolchainError(
        f"{names[0]} not found in {', '.join(map(str, dirs))}. Build it with `pip install .` or, in a checkout, "
        "`cmake -S . -B build/native && cmake --build build/native`"
    )


@functools.cache
def load_externs() -> Path:
    """Load the externs into this process; later calls do nothing.

    Returns:
        The library that was loaded.

    Raises:
        ToolchainError: The library is not there or cannot be loaded.
    """
    path = _find((EXTERN_LIBRARY,))
    try:
        tvm_ffi.load_module(path)
    except (OSError, RuntimeError) as e:
        raise ToolchainError(f"cannot load {path}: {e}. Build it again for the installed apache-tvm-ffi") from e
    return path


@functools.cache
def load_native() -> ModuleType:
    """The pybind11 module ``_native``: the same kernels for NumPy arrays.

    Returns:
        The module, with ``bilstm(x, lengths, w_ih, w_hh, b_ih, b_hh, h0=None, c0=None, num_threads=0)``.

    Raises:
        ToolchainError: The module is not there or was built for another Python.
    """
    name = "kokoro_tvm._native"
    path = _find(tuple(f"_native{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as e:
        raise ToolchainError(f"cannot load {path}: {e}. Build it again with this Python") from e
    sys.modules[name] = module
    return module
