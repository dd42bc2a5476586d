"""Linking for macOS on another system, against the runtime that the macOS wheels of TVM contain.

What it is: the pinned runtime libraries, fetched with pip; the linker, ``zig cc`` from the PyPI package ziglang (the extra
``metal``), which brings what it needs of Apple's SDK and signs ad hoc; and the comparison of what two libraries contain. What it
is not: a way to run any of it.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import tvm_ffi  # noqa: F401  a library of compiled code needs its symbols

from kokoro_tvm import environment
from kokoro_tvm.errors import ToolchainError

MINIMUM = "13.0"
"""macOS version that host code and executables ask for."""

RUNTIME = ("libtvm_ffi.dylib", "libtvm_runtime.dylib", "libtvm_runtime_metal.dylib")
"""The libraries that run a compiled component on a Mac."""

_WHEELS = ("apache-tvm", "apache-tvm-ffi")
_PROGRAM = "__tvm_ffi__library_bin"
"""Symbol behind which TVM puts virtual-machine code and kernels into a library, their size in the first eight bytes."""


def runtime_libraries() -> Path:
    """The folder with ``RUNTIME`` and the packages' licences, for the versions installed here; downloaded the first time.

    Raises:
        ToolchainError: pip cannot get the wheels.
    """
    versions = {name: importlib.metadata.version(name) for name in _WHEELS}
    folder = environment.cache_directory() / ("macos-" + "-".join(versions.values()))
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _download([f"{name}=={version}" for name, version in versions.items()], Path(scratch))
            _extract(sorted(Path(scratch).glob("*.whl")), Path(scratch) / "new")
            (Path(scratch) / "new").rename(folder)
    return folder


def _download(requirements: Sequence[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps", "--only-binary=:all:"]
    # libtvm_ffi does not depend on the Python that its wheel is for.
    command += ["--platform", "macosx_11_0_arm64", "--python-version", "3.11", "--dest", str(folder), *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ToolchainError(f"cannot download the macOS wheels of {' and '.join(requirements)}: {reason}")


def _extract(wheels: Sequence[Path], folder: Path) -> None:
    folder.mkdir()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.namelist():
                name = Path(entry).name
                # The wheel also has debug symbols, in files of the same name.
                if name in RUNTIME and Path(entry).parent.name == "lib":
                    (folder / name).write_bytes(archive.read(entry))
                elif ".dist-info/" in entry and not entry.endswith("/") and name.upper().startswith(("LICENSE", "NOTICE")):
                    (folder / f"{name}.{wheel.name.partition('-')[0]}").write_bytes(archive.read(entry))
    missing = [name for name in RUNTIME if not (folder / name).is_file()]
    if missing:
        raise ToolchainError(f"the macOS wheels lack {', '.join(missing)}")


def zig(arguments: Sequence[str]) -> None:
    """Runs ``zig``, for arm64 macOS where it compiles or links.

    Raises:
        ToolchainError: It is not installed, or fails.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise ToolchainError("linking for macOS needs ziglang: pip install 'kokoro-tvm[metal]'")
    cache = str(environment.cache_directory() / "zig")
    variables = environment.with_variables(ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache)
    command = [sys.executable, "-m", "ziglang", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        raise ToolchainError(f"zig {arguments[0]} failed: {done.stderr.strip()[-2000:]}")


def linker() -> Callable[..., None]:
    """What TVM's ``export_library`` calls to make a dynamic library for macOS."""
    runtime = runtime_libraries()

    def link(output: str, objects: Sequence[str], **_: object) -> None:
        zig(
            [
                "cc", "-target", f"aarch64-macos.{MINIMUM}", "-shared", "-o", output, *objects,
                str(runtime / "libtvm_ffi.dylib"),
                f"-Wl,-install_name,@rpath/{Path(output).name}", "-Wl,-rpath,@loader_path", "-Wl,-rpath,@loader_path/lib",
            ]
        )  # fmt: skip

    link.output_format = "dylib"
    link.object_format = "o"
    link.get_target_triple = lambda: f"arm64-apple-macos{MINIMUM}"
    return link


def program(library: Path) -> bytes:
    """Virtual-machine code and kernels in a library of this system, as they were written into it."""
    loaded = ctypes.CDLL(str(library))
    start = ctypes.addressof(ctypes.c_char.in_dll(loaded, _PROGRAM))
    size = int.from_bytes(ctypes.string_at(start, 8), sys.byteorder)
    return ctypes.string_at(start, 8 + size)


def check_same_program(library: Path, native: Path) -> None:
    """Makes sure that a Mach-O library holds, byte for byte, the program of one that can be run and tested here.

    Raises:
        RuntimeError: It does not.
    """
    if library.read_bytes().count(program(native)) != 1:
        raise RuntimeError(f"{library.name} and {native.name} hold different programs, although compiled from one module")


def emulates() -> bool:
    """Whether this is the system on which the emulator runs, so that there is a tested program to compare with."""
    return platform.system() == "Linux"
