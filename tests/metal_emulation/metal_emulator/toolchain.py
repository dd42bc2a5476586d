"""Compiles the emulator's native part and kernels with clang, and keeps what it compiled in ``build/metal-emulation``.

A kernel is compiled in two steps. clang's OpenCL C++ front end reads the MSL as TVM wrote it, with our ``metal_stdlib``: there
the address spaces are checked and the names are Metal's. Its intermediate code is then compiled for this machine. In between,
the threadgroup variables, which have become global variables private to the file, are made visible and put into a section of
their own: the optimiser must not take them for one thread's, and the scheduler has to find them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import tvm_ffi

CLANG = "clang-16"
"""Debian 12's smallest that computes halves in half precision: version 14 keeps more digits."""

CACHE = Path(__file__).resolve().parents[3] / "build" / "metal-emulation"
NATIVE = Path(__file__).parent / "native"
_SITE = Path(tvm_ffi.__file__).parents[1]

_SOURCES = ("device_memory.cc", "memory_checker.cc", "scheduler.cc", "device_api.cc")
_NATIVE_FLAGS = (
    "--driver-mode=g++", "-std=c++17", "-O2", "-mf16c", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden",
    "-Wall", "-Wextra", "-Werror",
    "-isystem", f"{_SITE}/tvm_ffi/include", "-isystem", f"{_SITE}/tvm/include",
    f"-L{_SITE}/tvm_ffi/lib", "-ltvm_ffi", f"-L{_SITE}/tvm/lib", "-ltvm_runtime",
)  # fmt: skip

# No generic address space: a pointer that does not say where it points to is an error, as in Metal.
_FRONT_FLAGS = (
    "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-Xclang",
    "-cl-ext=-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue,-__opencl_c_program_scope_global_variables",
    f"-I{NATIVE}", "-O1", "-Xclang", "-disable-llvm-passes", "-fPIC", "-mf16c", "-mfma", "-ffp-contract=off", "-fno-builtin",
    "-ftrivial-auto-var-init=pattern", "-Wno-unknown-attributes", "-ferror-limit=4", "-S", "-emit-llvm",
)  # fmt: skip
_BACK_FLAGS = ("-x", "ir", "-O1", "-fPIC", "-shared", "-nostdlib", "-Wno-override-module")
_WATCH_FLAGS = (
    "-Xclang", "-fsanitize-coverage-type=1", "-Xclang", "-fsanitize-coverage-trace-loads",
    "-Xclang", "-fsanitize-coverage-trace-stores",
)  # fmt: skip

_THREADGROUP_VARIABLE = re.compile(r"^(@\S+) = internal global (.+) undef, (align \d+)$", re.MULTILINE)
_THREADGROUP_BOUNDS = """
@__start_threadgroup = extern_weak hidden global i8
@__stop_threadgroup = extern_weak hidden global i8
@metal_emulator_threadgroup_begin = constant ptr @__start_threadgroup
@metal_emulator_threadgroup_end = constant ptr @__stop_threadgroup
"""


_VECTOR_CAST = re.compile(r"\((?:u?(?:char|short|int|long)|half|float)[234]\)")
"""``(int4)v`` is not ``int4(v)``: clang's vectors keep their bits. What Apple's compiler does is not documented."""


@tvm_ffi.error.register_error
class CompileError(RuntimeError):
    """A kernel is refused: a name that is not Metal's, a wrong address space, a mistake in the language, a cast of a vector."""


@functools.cache
def clang() -> str:
    """Path of the compiler.

    Raises:
        RuntimeError: It is not installed, or this is no x86-64 Linux.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise RuntimeError(f"the Metal emulator needs x86-64 Linux, this is {platform.system()} on {platform.machine()}")
    path = shutil.which(CLANG)
    if path is None:
        raise RuntimeError(f"{CLANG} is not installed: scripts/test installs it, or 'apt-get install {CLANG}'")
    return path


def _run(arguments: list[str]) -> None:
    done = subprocess.run([clang(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr.strip())


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:24]


def native_library() -> Path:
    """The emulator's own code as a shared library, compiled if its sources have changed."""
    sources = [file.read_bytes() for file in sorted(NATIVE.iterdir()) if file.suffix in (".cc", ".h")]
    target = CACHE / f"emulator-{_digest(*_NATIVE_FLAGS, *sources)}.so"
    if not target.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            flags = [f for f in _NATIVE_FLAGS if not f.startswith(("-l", "-L"))]
            libraries = [f for f in _NATIVE_FLAGS if f.startswith(("-l", "-L"))]
            _run([*flags, *(str(NATIVE / name) for name in _SOURCES), *libraries, "-o", f"{scratch}/new.so"])
            os.replace(f"{scratch}/new.so", target)
    return target


@functools.cache
def _header() -> bytes:
    return (NATIVE / "metal_stdlib").read_bytes()


def compile_kernel(name: str, msl: str, entry: str, *, watch: bool, fast_math: bool) -> Path:
    """Compiles one kernel, or finds it compiled.

    Args:
        name: The kernel's name; for messages and file names.
        msl: Metal source.
        entry: OpenCL C++ that is compiled behind the kernel: the function that the scheduler calls.
        watch: Report each load and store.
        fast_math: Use the pessimistic fast-math functions.

    Returns:
        Path of the shared object.

    Raises:
        CompileError: With clang's messages; line numbers are those of ``msl``.
    """
    cast = _VECTOR_CAST.search(msl)
    if cast:
        place = f"{name}:{msl.count(chr(10), 0, cast.start()) + 1}"
        raise CompileError(f"kernel {name} does not compile:\n{place}: casts to a vector, {cast[0]}; cast its lanes instead")
    front = [*_FRONT_FLAGS, *(["-DMETAL_FAST_MATH"] if fast_math else [])]
    back = [*_BACK_FLAGS, *(_WATCH_FLAGS if watch else [])]
    target = CACHE / "kernels" / f"{name[:60]}-{_digest(msl, entry, _header(), CLANG, *front, *back)}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        source, code, shared = (Path(scratch) / file for file in ("kernel.metal", "kernel.ll", "kernel.so"))
        source.write_text(f'#line 1 "{name}"\n{msl}\n#line 1 "entry of {name}"\n{entry}', encoding="utf-8")
        try:
            _run([*front, str(source), "-o", str(code)])
        except CompileError as error:
            raise CompileError(f"kernel {name} does not compile:\n{error}") from None
        text = code.read_text(encoding="utf-8")
        text = _THREADGROUP_VARIABLE.sub(r'\1 = hidden global \2 zeroinitializer, section "threadgroup", \3', text)
        code.write_text(text + _THREADGROUP_BOUNDS, encoding="utf-8")
        _run([*back, str(code), "-o", str(shared)])
        os.replace(shared, target)
    return target
