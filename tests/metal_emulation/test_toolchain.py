"""What is compiled once is found again, and what is missing is said."""

import pytest
import sample_kernels
from metal_emulator import MetalEmulator, toolchain


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder for kernels; the native part stays where it is."""
    native = toolchain.native_library()
    monkeypatch.setattr(toolchain, "native_library", lambda: native)
    monkeypatch.setattr(toolchain, "CACHE", tmp_path)
    return tmp_path / "kernels"


def test_kernels_are_kept(cache):
    seen = []
    for options in ({}, {"order": "random"}, {"race": True}, {"fast_math": True}, {"edit": lambda _, msl: msl + "\n"}):
        with MetalEmulator(**options):
            sample_kernels.build(sample_kernels.add())
        seen.append(len(list(cache.iterdir())))
    assert seen == [1, 1, 2, 3, 4]
    assert all(path.suffix == ".so" for path in cache.iterdir())


def test_what_does_not_compile_leaves_nothing(cache):
    with pytest.raises(toolchain.CompileError):
        with MetalEmulator(edit=lambda _, msl: msl + "nonsense"):
            sample_kernels.build(sample_kernels.add())
    assert list(cache.iterdir()) == []


def test_no_clang(monkeypatch):
    toolchain.clang.cache_clear()
    monkeypatch.setattr(toolchain, "CLANG", "clang-none")
    with pytest.raises(RuntimeError, match="clang-none is not installed: scripts/test installs it"):
        toolchain.clang()
    toolchain.clang.cache_clear()


def test_another_machine(monkeypatch):
    toolchain.clang.cache_clear()
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "arm64")
    with pytest.raises(RuntimeError, match="the Metal emulator needs x86-64 Linux, this is Linux on arm64"):
        toolchain.clang()
    toolchain.clang.cache_clear()
