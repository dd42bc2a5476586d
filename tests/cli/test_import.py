"""``kokoro-tvm import``: a published export becomes a folder that upstream reads too, and nothing else is touched."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kokoro.model import KModel

from kokoro_tvm.cli.__main__ import main
from kokoro_tvm.compile import Origin
from kokoro_tvm.onnx import packaged
from kokoro_tvm.onnx.files import Source
from kokoro_tvm.reference import checkpoint as reference
from kokoro_tvm.reference.checkpoint import Checkpoint, build_model, load_checkpoint
from kokoro_tvm.reference.model import published_config

PRECISION = "8-bit, dequantised"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], Path]:
    """Names a file whose weights will be one tensor of a value: what is written does not depend on how many there are."""

    def make(value: float) -> Path:
        state = {"bert": {"pooler.bias": torch.full((2,), value)}}
        path = tmp_path / "small.onnx"
        monkeypatch.setattr(
            reference, "load_checkpoint",
            lambda *_: Checkpoint(published_config(), state, "0" * 64, False, str(path), PRECISION),
        )  # fmt: skip
        return path

    return make


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_published_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "kokoro-v1.0.int8.onnx", tmp_path / "new" / "imported"
    file.write_bytes(packaged.packaged_file())
    assert main(["import", str(file), "-o", str(folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in ("as published by kokoro-onnx", PRECISION, "decoder", "491 tensors", "Apache-2.0"):
        assert words in printed
    assert sorted(content(folder)) == ["config.json", "kokoro-v1_0.pth", "provenance.json"]
    imported, original = load_checkpoint(folder), load_checkpoint(file)
    assert imported.precision == original.precision == PRECISION
    assert imported.sha256 != original.sha256 == packaged.SHA256
    assert not imported.synthetic and imported.config == original.config
    ours = build_model(original).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        upstream = KModel("hexgrad/Kokoro-82M", str(folder / "config.json"), str(folder / "kokoro-v1_0.pth")).state_dict()
    assert upstream.keys() == ours.keys()
    assert all(torch.equal(upstream[k], ours[k]) for k in ours)
    keys = torch.load(folder / "kokoro-v1_0.pth", weights_only=True)
    assert all(k.startswith("module.") and ".norm." not in k for part in keys.values() for k in part)


def test_other_weights_are_replaced_only_with_force(small: Callable[[float], Path], tmp_path: Path) -> None:
    folder = tmp_path / "imported"
    assert main(["import", str(small(1.0)), "-o", str(folder)]) == 0
    before = content(folder)
    assert main(["import", str(small(1.0)), "-o", str(folder)]) == 0
    assert content(folder) == before
    assert main(["import", str(small(2.0)), "-o", str(folder)]) == 2
    assert content(folder) == before
    assert main(["import", str(small(2.0)), "-o", str(folder), "--force"]) == 0
    after = content(folder)
    assert after.keys() == before.keys()
    assert after["kokoro-v1_0.pth"] != before["kokoro-v1_0.pth"]
    recorded = [json.loads(c["provenance.json"]) for c in (before, after)]
    assert recorded[0]["sha256"] != recorded[1]["sha256"]
    assert all(r["precision"] == PRECISION and r["source"] == "small.onnx" for r in recorded)


def test_other_configuration_is_kept(small: Callable[[float], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "imported"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert main(["import", str(small(1.0)), "-o", str(folder)]) == 2
    assert "is another configuration; use --force" in capsys.readouterr().err
    assert content(folder) == {"config.json": b"{}"}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("kokoro.pth", b"", "does not end in .onnx"),
        ("absent.onnx", None, "No such file"),
        ("empty.onnx", b"", "expected tokens, style, speed -> audio"),
        ("text.onnx", b"version https://git-lfs", "damaged, truncated, or no ONNX file"),
    ],
)
def test_refusals(name: str, data: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert main(["import", str(tmp_path / name), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_truncated_real_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cut.onnx"
    file.write_bytes(packaged.packaged_file()[:-1000])
    assert main(["import", str(file), "-o", str(tmp_path / "out")]) == 2
    assert "damaged, truncated, or no ONNX file" in capsys.readouterr().err


def test_what_is_made_from_it_says_so() -> None:
    """Artifacts and exported components record what the weights went through; older records mean float32."""
    weights = Checkpoint(published_config(), {}, "0" * 64, False, "a/small.onnx", PRECISION)
    assert Origin.of(weights).checkpoint.precision == PRECISION
    source = Source.of(weights.sha256, "small.onnx", False, weights.config, weights.precision)
    properties = source.properties("bert")
    assert Source.parse(properties) == source
    record = json.loads(properties["kokoro_tvm.checkpoint"])
    del record["precision"]
    assert Source.parse(properties | {"kokoro_tvm.checkpoint": json.dumps(record)}).checkpoint.precision == "float32"
