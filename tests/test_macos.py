"""Libraries for macOS, made on Linux: what a loader on a Mac would look for, and that they hold the tested program."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import lief
import numpy as np
import pytest
from metal_emulator import check_kernels, kernel_texts

from kokoro_tvm import mac_bundle, macos
from kokoro_tvm.artifact import read_manifest, write_weights
from kokoro_tvm.compile import CompileOptions, compile_artifact
from kokoro_tvm.errors import ArtifactError, OutputError, ToolchainError
from kokoro_tvm.reference.checkpoint import Checkpoint
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.targets import metal_target
from kokoro_tvm.validate import lock_step
from kokoro_tvm.validate.emulated import compile_emulated

NAME = "text_encoder"
"""The smallest component with a convolution and an LSTM."""

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="made on Linux")


@pytest.fixture(scope="module")
def artifact(tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metal") / "artifact"
    compile_artifact([NAME], tiny_checkpoint, CompileOptions.resolve(tiny_checkpoint, "metal-macos"), folder)
    return folder


def _macho(path: Path) -> lief.MachO.Binary:
    return lief.MachO.parse(str(path)).at(0)


def _assert_loadable(binary: lief.MachO.Binary, libraries: set[str]) -> None:
    """arm64, signed, and bound to nothing but TVM and the system."""
    assert binary.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    assert binary.has_code_signature
    loaded = {x.name for x in binary.libraries if x.command.name != "ID_DYLIB"}
    assert loaded == {"/usr/lib/libSystem.B.dylib", *libraries}
    assert binary.build_version.platform == lief.MachO.BuildVersion.PLATFORMS.MACOS


def test_library(artifact: Path) -> None:
    path = artifact / f"{NAME}.dylib"
    assert "Mach-O 64-bit arm64" in subprocess.run(["file", path], capture_output=True, text=True, check=True).stdout
    binary = _macho(path)
    assert binary.header.file_type == lief.MachO.Header.FILE_TYPE.DYLIB
    _assert_loadable(binary, {"@rpath/libtvm_ffi.dylib"})
    assert [x.name for x in binary.libraries if x.command.name == "ID_DYLIB"] == [f"@rpath/{NAME}.dylib"]
    assert all(r.path.startswith("@loader_path") for r in binary.rpaths)
    from_tvm = {s.name for s in binary.imported_symbols if "TVM" in s.name}
    assert from_tvm <= {"_TVMFFIErrorSetRaisedFromCStrParts"}
    assert {"___tvm_ffi__library_bin", "___tvm_ffi__library_ctx"} <= {s.name for s in binary.exported_symbols}


def test_runtime() -> None:
    folder = macos.runtime_libraries()
    assert {*macos.RUNTIME} <= {p.name for p in folder.iterdir()}
    assert any(p.name.startswith("LICENSE") for p in folder.iterdir())
    for name in macos.RUNTIME:
        binary = _macho(folder / name)
        assert binary.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
        outside = {x.name for x in binary.libraries if not x.name.startswith(("/usr/lib/", "/System/Library/Frameworks/"))}
        assert {x.rpartition("/")[2] for x in outside} <= set(macos.RUNTIME)


def test_another_program_is_noticed(artifact: Path, tiny_artifact: Path, tmp_path: Path) -> None:
    library = shutil.copy(artifact / f"{NAME}.dylib", tmp_path)
    with pytest.raises(RuntimeError, match="different programs"):
        macos.check_same_program(Path(library), tiny_artifact / "bert.so")


def test_manifest(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    assert (manifest.target.name, manifest.target.system, manifest.lstm_method) == ("metal-macos", "macos", "tir")
    assert manifest.extern is None
    with pytest.raises(ArtifactError, match="it is for macos on arm64"):
        Engine(artifact)


def test_ios_gets_object_files(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    options = CompileOptions.resolve(tiny_checkpoint, "metal-ios")
    compile_artifact(["bert"], tiny_checkpoint, options, tmp_path / "artifact")
    assert (tmp_path / "artifact" / "bert.tar").is_file()


def test_missing_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"pip install 'kokoro-tvm\[metal\]'"):
        macos.zig(["version"])


def test_missing_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kokoro_tvm.environment.cache_directory", lambda: tmp_path)
    monkeypatch.setattr(macos, "_WHEELS", ("kokoro-tvm",))
    with pytest.raises(ToolchainError, match="cannot download the macOS wheels of kokoro-tvm=="):
        macos.runtime_libraries()


# --- the engine and the limits of real devices, in the emulator --------------------------------------------------------------


@pytest.fixture(scope="module")
def emulator():
    from metal_emulator import MetalEmulator

    with MetalEmulator(order="random", seed=3) as device:
        yield device


@pytest.fixture(scope="module")
def emulated(tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory, emulator) -> Path:
    folder = tmp_path_factory.mktemp("emulated") / "artifact"
    options = CompileOptions.resolve(tiny_checkpoint, "metal-macos").emulated()
    compile_artifact([NAME, "bert"], tiny_checkpoint, options, folder)
    return folder


@pytest.mark.parametrize("lengths", [(1,), (9, 3)])
def test_engine_on_metal(lengths: tuple[int, ...], emulated: Path, tiny_artifact: Path) -> None:
    capacity = max(lengths) + 2
    ids = np.full((len(lengths), capacity), 10**9)
    for row, n in zip(ids, lengths, strict=True):
        row[:n] = np.random.default_rng(n).integers(1, 170, n)
    for name in (NAME, "bert"):
        metal = Engine(emulated, components=[name]).run(name, ids, np.array(lengths))[0]
        cpu = Engine(tiny_artifact, components=[name]).run(name, ids, np.array(lengths))[0]
        assert np.isfinite(metal).all()
        assert np.abs(metal - cpu).max() <= 1e-5 * np.abs(cpu).max()


def test_no_metal_here(emulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kokoro_tvm.runtime import device

    monkeypatch.setattr(device.tvm_ffi, "get_global_func", lambda *_, **__: None)
    with pytest.raises(ToolchainError, match="has no Metal runtime"):
        Engine(emulated)


# --- the bundle --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked(tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the bundle is, of an artifact for this CPU, with the program compiled for this machine."""
    import tvm_ffi

    folder = tmp_path_factory.mktemp("bundle") / "artifact"
    compile_artifact([NAME], tiny_checkpoint, CompileOptions.resolve(tiny_checkpoint, lstm_method="tir"), folder)
    mac_bundle.write_plans(folder, read_manifest(folder), tiny_checkpoint, device=1)
    ffi = Path(tvm_ffi.__file__).parent
    subprocess.run(
        ["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-isystem", ffi / "include",
         mac_bundle.SOURCES / "check.cc", f"-L{ffi}/lib", "-ltvm_ffi", f"-Wl,-rpath,{ffi}/lib", "-ldl", "-o",
         folder / "kokoro-check"],
        check=True,
    )  # fmt: skip
    return folder


def _check(folder: Path) -> subprocess.CompletedProcess[str]:
    import tvm

    runtime = Path(tvm.__file__).parent / "lib"
    return subprocess.run([folder / "kokoro-check", folder, runtime], capture_output=True, text=True)


def test_check_passes(checked: Path) -> None:
    done = _check(checked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EVERY KERNEL AGREES" in done.stdout
    assert "RTF" in done.stdout
    calls = sum(line.startswith("kernel ") for line in (checked / "check" / f"{NAME}.txt").read_text().splitlines())
    assert f"{calls} kernel calls, 0 wrong" in done.stdout


def _plan(folder: Path) -> Path:
    return folder / "check" / f"{NAME}.txt"


def _nan_in_the_lstm(folder: Path) -> None:
    line = next(x for x in _plan(folder).read_text().splitlines() if x.startswith("kernel bilstm"))
    with (folder / "check" / f"{NAME}.bin").open("r+b") as values:
        values.seek(int(line.split()[4]))
        values.write(np.float32(np.nan).tobytes())


def _edit(old: str, new: str):
    def change(folder: Path) -> None:
        text = _plan(folder).read_text()
        assert old in text
        _plan(folder).write_text(text.replace(old, new, 1))

    return change


FAULTS = {
    "not a number": (_nan_in_the_lstm, "WRONG  bilstm"),
    "another kernel": (_edit("kernel bilstm ", "kernel attention "), "bilstm was called, attention was expected"),
    "a call too many": (_edit("timed ", "kernel ghost 1e-05 float32 0 1 1\ntimed "), "more were expected"),
    "nothing expected": (lambda f: _plan(f).write_text("device 1\n"), "this would check nothing"),
    "no components": (lambda f: (f / "check" / "components.txt").write_text(""), "no components"),
    "unknown line": (_edit("device", "gadget"), "unknown line"),
    "missing weights": (lambda f: (f / f"{NAME}.safetensors").unlink(), "cannot read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_fails_closed(fault: str, checked: Path, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    folder = Path(shutil.copytree(checked, tmp_path / "copy"))
    change(folder)
    done = _check(folder)
    assert done.returncode == 1
    assert message in done.stdout
    assert "EVERY KERNEL AGREES" not in done.stdout


def test_plan_of_a_build_with_halves(tmp_path: Path) -> None:
    """``--dtype fp16``: the types of weights, and what its convolutions may lose against the CPU's."""
    weights = {"single": np.ones((2, 32), np.float32), "half": np.arange(96, dtype=np.float16).reshape(3, 32)}
    path = tmp_path / "w.safetensors"
    write_weights(path, weights)
    for line, array in zip(mac_bundle._weights(path, list(weights)), weights.values(), strict=True):
        kind, dtype, offset, *shape = line.split()
        assert (kind, dtype, shape) == ("weight", str(array.dtype), ["2", *map(str, array.shape)])
        assert path.read_bytes()[int(offset) :][: array.nbytes] == array.tobytes()
    assert lock_step.bound("decoder", "conv1d12", "fp16") > lock_step.BOUND
    for unrounded in [("decoder", "conv1d12", "float32"), ("f0n", "conv1d", "fp16"), ("decoder", "adain3", "fp16")]:
        assert lock_step.bound(*unrounded) == lock_step.BOUND


def test_metal_calls_the_same_kernels(emulated: Path, tiny_checkpoint: Checkpoint) -> None:
    """What ``check.cc`` compares call by call: names and order are those of the CPU, and in the emulator all agree."""
    from kokoro_tvm.reference.checkpoint import build_model

    inputs = mac_bundle.sample_inputs(NAME, 5, 2)
    expected = lock_step.CpuKernels(NAME, build_model(tiny_checkpoint)).run(inputs)
    found = lock_step.compare(emulated, NAME, expected, inputs)
    assert found.passed, found.failures


def test_what_is_judged_is_what_is_shipped(artifact: Path, tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch) -> None:
    """``validate_steps --device metal-emulated --lib-dir``: the programs and weights of a folder, or a refusal."""
    compile_emulated([NAME], tiny_checkpoint, tmp_path / "judged", beside=artifact)
    judged, shipped = (read_manifest(folder).components[NAME] for folder in (tmp_path / "judged", artifact))
    assert judged.weights == shipped.weights
    with pytest.raises(ArtifactError, match="lacks bert"):
        compile_emulated([NAME, "bert"], tiny_checkpoint, tmp_path / "other", beside=artifact)
    monkeypatch.setattr(macos, "program", lambda _: b"another program")
    with pytest.raises(ArtifactError, match="hold different programs.*compile it again"):
        compile_emulated([NAME], tiny_checkpoint, tmp_path / "other", beside=artifact)


def test_bundle_refuses(artifact: Path, tiny_artifact: Path, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="takes one for metal-macos"):
        mac_bundle.make_bundle(tiny_artifact, tiny_checkpoint, tmp_path / "bundle")
    with pytest.raises(ArtifactError, match="another checkpoint"):
        mac_bundle.make_bundle(artifact, replace(tiny_checkpoint, sha256="0"), tmp_path / "bundle")
    with pytest.raises(OutputError, match="exists"):
        mac_bundle.make_bundle(artifact, tiny_checkpoint, tmp_path)


def test_bundle(artifact: Path, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The whole folder; the first time zig compiles a C++ library, which takes a minute."""
    folder = tmp_path / "bundle"
    mac_bundle.make_bundle(artifact, tiny_checkpoint, folder)
    program = _macho(folder / "kokoro-check")
    assert program.header.file_type == lief.MachO.Header.FILE_TYPE.EXECUTE
    _assert_loadable(program, {"@rpath/libtvm_ffi.dylib"})
    assert {s.name for s in program.imported_symbols if "tvm" in s.name.lower()} <= {
        "_TVMFFIBacktrace", "_TVMFFIErrorMoveFromRaised", "_TVMFFIErrorSetRaised", "_TVMFFIFunctionGetGlobal",
        "_TVMFFIGetTypeInfo", "_TVMFFIFunctionCreate", "_TVMFFIFunctionCall", "_TVMFFIGetTypeAttrColumn",
    }  # fmt: skip
    assert {*macos.RUNTIME} <= {p.name for p in (folder / "lib").iterdir()}
    assert (folder / "verify.command").stat().st_mode & 0o100
    assert read_manifest(folder) == read_manifest(artifact)
    assert "nobody has run them on a Mac" in (folder / "README.txt").read_text()


@pytest.mark.full
@pytest.mark.parametrize(("name", "dtype"), [*((name, "float32") for name in COMPONENTS), ("decoder", "fp16")])
def test_limits_of_devices(name: str, dtype: str, full_checkpoint: Checkpoint, request: pytest.FixtureRequest) -> None:
    """31 buffers, 64 KB of source and 32 KB of thread-group memory per kernel, 600 KB of source per component; at full size."""
    from kokoro_tvm.export.program import export_program, to_relax
    from kokoro_tvm.passes.pipeline import build, pipeline
    from kokoro_tvm.reference.checkpoint import build_model

    if (name, dtype) != ("decoder", "float32") and not request.config.getoption("--metal-thorough"):
        pytest.skip("--metal-thorough runs it; the decoder in float32 is the largest by far")
    target = metal_target("linux")
    component = to_relax(name, export_program(name, build_model(full_checkpoint)))
    executable = build(component.module, target.tvm_target(), pipeline(target.tile, "tir", dtype=dtype), target.tile)
    kernels = kernel_texts(executable)
    assert check_kernels(kernels, max_total_bytes=600_000) == []
    # Constants of seven digits, fast-math powers and Metal's own sine are not what these kernels are made of.
    assert not [k.name for k in kernels if re.search(r"\b(pow|sin|cos|exp|log|tanh|atan2?)\(", k.msl)]
