"""Finding and loading the shared libraries, and running the extern on TVM's thread pool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kokoro_tvm import native
from kokoro_tvm.errors import ToolchainError

TVM_POOL_SCRIPT = """
import numpy as np, tvm, tvm_ffi
from kokoro_tvm.native import load_externs, load_native
load_externs()
rng = np.random.default_rng(0)
shapes = [(3, 90, 33), None, (2, 80, 33), (2, 80, 20), (2, 80), (2, 80)]
arrays = [np.array([5, 90, 64]) if s is None else rng.uniform(-0.3, 0.3, s).astype(np.float32) for s in shapes]
want, *_ = load_native().bilstm(*arrays, num_threads=1)
configure = tvm_ffi.get_global_func("runtime.config_threadpool")
for threads in (1, 2, 4):
    configure(-3, threads, [str(c) for c in [0] * threads])
    y = tvm.runtime.tensor(np.full((3, 90, 40), np.nan, np.float32))
    tvm_ffi.get_global_func("kokoro_tvm.bilstm")(*(tvm.runtime.tensor(a) for a in arrays), y)
    assert np.array_equal(y.numpy(), want), threads
print("same bits")
"""


def run_python(code: str, **env: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loading_is_idempotent() -> None:
    assert native.load_externs() == native.load_externs()
    assert native.load_native() is native.load_native()


def test_loading_needs_neither_tvm_nor_torch() -> None:
    # None makes an import fail. tvm_ffi itself imports torch where it is installed, and does without it elsewhere.
    code = "import sys; sys.modules['tvm'] = sys.modules['torch'] = None; from kokoro_tvm import native"
    run_python(f"{code}; native.load_externs(); native.load_native()")


def test_loading_a_second_copy_is_harmless(tmp_path: Path) -> None:
    copy = tmp_path / native.EXTERN_LIBRARY
    copy.write_bytes(native.load_externs().read_bytes())
    code = f"import tvm_ffi; from kokoro_tvm import native; native.load_externs(); tvm_ffi.load_module({str(copy)!r})"
    run_python(code)


def test_missing_library_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_library_dirs", lambda: [tmp_path])
    for load, name in ((native.load_externs, native.EXTERN_LIBRARY), (native.load_native, "_native")):
        with pytest.raises(ToolchainError, match=rf"{name}.* not found in .*cmake --build"):
            load.__wrapped__()


def test_what_was_built_last_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = [tmp_path / "installed", tmp_path / "missing", tmp_path / "by_hand"]
    monkeypatch.setattr(native, "_library_dirs", lambda: dirs)
    files = [dirs[0] / "a.so", dirs[2] / "a.so"]
    for file in files:
        file.parent.mkdir()
        file.touch()
    for old, new in (files, files[::-1]):
        os.utime(old, (1, 1))
        os.utime(new, (2, 2))
        assert native._find(("b.so", "a.so")) == new


def test_damaged_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / native.EXTERN_LIBRARY).write_bytes(b"not a library")
    monkeypatch.setattr(native, "_library_dirs", lambda: [tmp_path])
    with pytest.raises(ToolchainError, match=str(tmp_path / native.EXTERN_LIBRARY)):
        native.load_externs.__wrapped__()


def test_tvm_thread_counts_give_the_same_bits() -> None:
    pytest.importorskip("tvm")
    assert run_python(TVM_POOL_SCRIPT, TVM_NUM_THREADS="4") == "same bits\n"
