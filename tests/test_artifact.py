"""Reading, writing and checking artifacts, without compiled code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kokoro_tvm.artifact import (
    ALIGNMENT,
    CHECKSUM,
    MANIFEST,
    FileRecord,
    aligned_empty,
    check_files,
    component_interface,
    file_record,
    read_manifest,
    read_weights,
    staged,
    write_manifest,
    write_npz,
    write_weights,
)
from kokoro_tvm.errors import ArtifactError, OutputError
from kokoro_tvm.stages import COMPONENTS

WEIGHTS = {
    "odd": np.arange(3, dtype=np.float32),
    "matrix": np.arange(32, dtype=np.float32).reshape(4, 8),
    "scalar": np.array(7, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "cube": np.arange(16 * 2 * 3, dtype=np.float32).reshape(16, 2, 3),
}


# --- the manifest ------------------------------------------------------------------------------------------------------------


def test_round_trip(tiny_artifact: Path, tmp_path: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / MANIFEST).read_bytes() == (tiny_artifact / MANIFEST).read_bytes()


def test_content(tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    assert list(manifest.components) == list(COMPONENTS)
    assert manifest.checkpoint.synthetic
    assert len(manifest.checkpoint.sha256) == 64
    assert manifest.model.vocab["a"] > 0
    for name, record in manifest.components.items():
        assert {"inputs": record.inputs, "outputs": record.outputs} == component_interface(name)
    names = {f.name for c in manifest.components.values() for f in (c.library, c.weights)} | {MANIFEST}
    assert {p.name for p in tiny_artifact.iterdir()} == names | ({manifest.extern.name} if manifest.extern else set())


def test_hand_edited_manifest_is_noticed(artifact_manifest: Path) -> None:
    path = artifact_manifest / MANIFEST
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["config"]["vocab"]["a"] += 1
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ArtifactError, match="checksum"):
        read_manifest(artifact_manifest)


@pytest.mark.parametrize("name", ["../escape.so", "/etc/passwd", "sub/file.so"])
def test_files_stay_in_the_folder(name: str, artifact_manifest: Path) -> None:
    path = artifact_manifest / MANIFEST
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["components"]["bert"]["library"]["name"] = name
    del raw[CHECKSUM]
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ArtifactError, match="leaves the folder"):
        read_manifest(artifact_manifest)


@pytest.fixture
def artifact_manifest(tiny_artifact: Path, tmp_path: Path) -> Path:
    """A folder with nothing but a manifest."""
    write_manifest(tmp_path, read_manifest(tiny_artifact))
    return tmp_path


def test_same_build(tiny_artifact: Path) -> None:
    manifest = read_manifest(tiny_artifact)
    assert manifest.same_build(dataclasses.replace(manifest, components={}, extern=None)) == []
    other = dataclasses.replace(manifest, seq_len=3, lstm_method="tir")
    assert sorted(manifest.same_build(other)) == ["lstm_method", "seq_len"]


# --- weights -----------------------------------------------------------------------------------------------------------------


def test_weights_round_trip_mapped_and_aligned(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    assert write_weights(path, WEIGHTS) == file_record(path)
    arrays = read_weights(path, list(WEIGHTS))
    for (name, expected), array in zip(WEIGHTS.items(), arrays, strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.ctypes.data % ALIGNMENT == 0, name
    for name in ("matrix", "cube"):
        assert isinstance(arrays[list(WEIGHTS).index(name)], np.memmap), f"{name} was copied"


@pytest.mark.parametrize(("dtype", "code"), [(np.uint16, "BF16"), (np.float16, "F16")])
def test_weights_of_two_bytes_round_trip(tmp_path: Path, dtype: type, code: str) -> None:
    weights = {"halves": np.arange(96).astype(dtype).reshape(3, 32), "matrix": WEIGHTS["matrix"]}
    write_weights(tmp_path / "w.safetensors", weights)
    write_npz(tmp_path / "w.npz", weights)
    for name in ("w.safetensors", "w.npz"):
        for array, expected in zip(read_weights(tmp_path / name, tuple(weights)), weights.values(), strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
            assert array.ctypes.data % ALIGNMENT == 0
    assert f'"dtype":"{code}"'.encode() in (tmp_path / "w.safetensors").read_bytes()


def test_weights_are_plain_safetensors(tmp_path: Path) -> None:
    write_weights(tmp_path / "ours.safetensors", WEIGHTS)
    theirs = load_file(tmp_path / "ours.safetensors")
    assert theirs.keys() == WEIGHTS.keys()
    for name, expected in WEIGHTS.items():
        np.testing.assert_array_equal(theirs[name], expected)
    save_file(WEIGHTS, tmp_path / "theirs.safetensors")
    for expected, array in zip(WEIGHTS.values(), read_weights(tmp_path / "theirs.safetensors", list(WEIGHTS)), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="float64"):
        write_weights(tmp_path / "w.safetensors", {"x": np.zeros(3)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [["odd"], [*WEIGHTS, "more"], []])
def test_other_names_are_refused(names: list[str], tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", WEIGHTS)
    with pytest.raises(ArtifactError, match="differ"):
        read_weights(tmp_path / "w.safetensors", names)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]"], ids=repr)
def test_damaged_weights(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ArtifactError, match="safetensors"):
        read_weights(tmp_path / "w.safetensors", ["x"])


def test_archive_round_trip_aligned(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    assert write_npz(path, WEIGHTS) == file_record(path)
    first = path.read_bytes()
    names = ["cube", "odd"]
    for name, array in zip(names, read_weights(path, names), strict=True):
        np.testing.assert_array_equal(array, WEIGHTS[name])
        assert array.ctypes.data % ALIGNMENT == 0
    write_npz(path, WEIGHTS)
    assert path.read_bytes() == first


def test_archives_lack_nothing_and_hold_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    write_npz(path, WEIGHTS)
    with pytest.raises(ArtifactError, match="lacks tensors"):
        read_weights(path, ["more"])
    np.savez(path, double=np.zeros(3), objects=np.array([{}], dtype=object))
    for name in ("double", "objects"):
        with pytest.raises(ArtifactError, match="no readable archive"):
            read_weights(path, [name])


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_truncated_archives(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    write_npz(path, WEIGHTS)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ArtifactError, match="no readable archive"):
        read_weights(path, list(WEIGHTS))


def test_truncated_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_weights(path, WEIGHTS)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ArtifactError, match="safetensors"):
        read_weights(path, list(WEIGHTS))


# --- files -------------------------------------------------------------------------------------------------------------------


def test_all_damage_is_named_at_once(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"content")
    records = [file_record(tmp_path / name) for name in "abc"]
    check_files(tmp_path, records)
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_bytes(b"longer content")
    (tmp_path / "c").write_bytes(b"Content")
    with pytest.raises(ArtifactError) as caught:
        check_files(tmp_path, [*records, FileRecord("d", "", 0)])
    for part in ("a is missing", "b has 14 bytes, expected 7", "c does not match", "d is missing"):
        assert part in str(caught.value)


def test_staged_keeps_what_was_there_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before", encoding="utf-8")
    with pytest.raises(RuntimeError), staged(path) as temporary:
        temporary.write_text("half", encoding="utf-8")
        raise RuntimeError
    assert path.read_text(encoding="utf-8") == "before"
    with staged(path) as temporary:
        temporary.write_text("after", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "after"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_staged_says_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write"), staged(tmp_path / "file" / "below"):
        pass


@pytest.mark.parametrize("shape", [(1,), (7, 3), (64,)])
def test_aligned_empty(shape: tuple[int, ...]) -> None:
    array = aligned_empty(shape, np.float32)
    assert (array.shape, array.dtype) == (shape, np.float32)
    assert array.ctypes.data % ALIGNMENT == 0
