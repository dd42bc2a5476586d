"""``--target`` and ``--mcpu``: what is known, what is refused, and that no tile asks for more than its CPU has."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest

from kokoro_tvm.errors import InputError
from kokoro_tvm.kernels import records
from kokoro_tvm.kernels import tile as tiles
from kokoro_tvm.runtime import cpu
from kokoro_tvm.targets import ISA_FEATURES, METAL_SYSTEMS, TARGETS, cpu_target, metal_target, named_target

X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of x86 CPUs")


def test_this_cpu() -> None:
    target = cpu_target()
    assert target.native
    assert (target.machine, target.system) == (cpu.machine(), cpu.system())
    assert not cpu.missing_features(target.features)
    assert target.tvm_target().kind.name == "llvm"


@X86
@pytest.mark.parametrize(
    ("mcpu", "tile", "has", "lacks"),
    [
        ("x86-64", tiles.SSE, (), ("avx", "avx2", "avx512f")),
        ("x86-64-v3", tiles.AVX2, ("avx2", "fma", "f16c"), ("avx512f",)),
        ("x86-64-v4", tiles.AVX512, ("avx2", "fma", "avx512f", "avx512vl"), ("avx512bf16",)),
        ("znver4", tiles.AVX512, ("avx512f", "avx512bf16", "avx512vnni"), ()),
    ],
)
def test_named_cpus(mcpu: str, tile: tiles.Tile, has: tuple[str, ...], lacks: tuple[str, ...]) -> None:
    target = cpu_target("llvm", mcpu)
    assert (target.mcpu, target.machine, target.system) == (mcpu, "x86_64", "linux")
    assert target.tile == records.tuned(tile, mcpu)
    assert bool(target.tile.tuned) == (records.SHIPPED / f"{mcpu}.json").is_file()
    assert replace(target.tile, tuned=()) == tile
    assert set(has) <= set(target.features)
    assert not set(lacks) & set(target.features)
    assert set(target.features) <= set(ISA_FEATURES["x86_64"])


def test_apple_is_cross_compiled() -> None:
    target = cpu_target("llvm", "apple-m1")
    assert (target.machine, target.system, target.tile) == ("arm64", "macos", tiles.NEON)
    assert "neon" in target.features
    assert not target.native
    assert "arm64-apple-macos" in str(target.tvm_target())


@pytest.mark.parametrize(
    ("target", "mcpu", "message"),
    [
        ("cuda", None, "unknown target 'cuda'; expected one of: llvm, metal-macos, metal-ios"),
        ("", None, "unknown target"),
        ("metal-macos", "znver4", "does not go with --target metal-macos"),
        ("llvm", "pentium-9000", "unknown CPU 'pentium-9000'"),
        ("llvm", "apple-m99", "unknown CPU 'apple-m99'"),
        ("llvm", "", "unknown CPU ''"),
    ],
)
def test_refused(target: str, mcpu: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        named_target(target, mcpu)


def test_a_gpu_is_no_cpu() -> None:
    with pytest.raises(InputError, match="is no CPU"):
        cpu_target("metal-macos")


@pytest.mark.parametrize(("name", "system"), METAL_SYSTEMS.items())
def test_metal(name: str, system: str) -> None:
    assert name in TARGETS
    target = named_target(name)
    assert (target.machine, target.system, target.mcpu, target.native) == ("arm64", system, "apple-m1", False)
    tvm_target = target.tvm_target()
    assert tvm_target.kind.name == "metal"
    assert int(tvm_target.attrs["max_num_threads"]) == 256
    assert f"arm64-apple-{system}" in str(tvm_target.host)


def test_metal_for_the_emulator() -> None:
    target = metal_target("linux")
    assert target.native
    assert target.machine == cpu.machine()
    assert target.tvm_target().host.kind.name == "llvm"


def test_missing_features_are_found() -> None:
    here = cpu_target().features
    assert cpu.missing_features((*here, "avx4096", "sve9")) == ["avx4096", "sve9"]
