"""Loading is complete or refused, with everything wrong in one message."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from kokoro.model import KModel

from kokoro_tvm.errors import CheckpointError, ToolchainError
from kokoro_tvm.onnx import packaged
from kokoro_tvm.reference import checkpoint
from kokoro_tvm.reference.checkpoint import Checkpoint, Provenance, build_model, load_checkpoint
from kokoro_tvm.reference.model import PARTS, expected_shapes, published_config

REMOVED = "module.lstm.weight_hh_l0"
RESHAPED = "module.duration_proj.linear_layer.bias"


@pytest.fixture
def content(tiny_checkpoint: Checkpoint) -> dict[str, Any]:
    """What the tiny file holds, to be changed at will."""
    return torch.load(tiny_checkpoint.source, weights_only=True)


@pytest.fixture
def folder(tiny_checkpoint: Checkpoint, tmp_path: Path) -> Iterator[Path]:
    """A place for a changed file beside its configuration; emptied afterwards, the files are large."""
    shutil.copy(Path(tiny_checkpoint.source).with_name("config.json"), tmp_path)
    yield tmp_path
    (tmp_path / "kokoro-v1_0.pth").unlink(missing_ok=True)


def test_published_configuration_is_the_known_one() -> None:
    config = published_config()
    assert (config.n_token, config.hidden_dim, config.plbert.num_hidden_layers) == (178, 512, 12)
    assert len(config.vocab) == 114
    assert config.vocab["ˈ"] == 156


def test_everything_wrong_is_named_at_once(content: dict[str, Any], folder: Path) -> None:
    del content["predictor"][REMOVED]
    content["decoder"]["module.surplus.weight"] = torch.zeros(1)
    content["predictor"][RESHAPED] = torch.zeros(3)
    content["text_encoder"]["module.embedding.weight"][3, 4] = float("nan")
    content["bert"]["module.embeddings.LayerNorm.bias"][0] = float("inf")
    content["optimizer"] = {}
    torch.save(content, folder / "kokoro-v1_0.pth")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "missing (1): predictor.lstm.weight_hh_l0" in message
    assert "unexpected (2): optimizer, decoder.surplus.weight" in message
    assert "mis-shaped (1): predictor.duration_proj.linear_layer.bias [3], expected [50]" in message
    assert "non-finite (2): bert.embeddings.LayerNorm.bias, text_encoder.embedding.weight" in message


def test_absent_part_is_named(content: dict[str, Any], folder: Path) -> None:
    torch.save({"bert_encoder": content["bert_encoder"], "decoder": 3}, folder / "kokoro-v1_0.pth")
    with pytest.raises(CheckpointError, match=r"missing \(4\): bert, predictor, text_encoder, decoder"):
        load_checkpoint(folder)


def test_optional_entries(content: dict[str, Any], folder: Path, tiny_checkpoint: Checkpoint) -> None:
    """No prefix, the constants of older transformers, the pooler and some affine parameters: all are accepted."""
    plain = {p: {k.removeprefix("module."): v for k, v in content[p].items()} for p in PARTS}
    plain["bert"]["embeddings.position_ids"] = torch.arange(512)[None]
    del plain["bert"]["pooler.weight"], plain["bert"]["pooler.bias"]
    plain["decoder"]["encode.norm1.norm.weight"] = torch.full((514,), 2.0)
    torch.save(plain, folder / "kokoro-v1_0.pth")
    loaded = load_checkpoint(folder)
    assert not loaded.synthetic
    assert loaded.state["decoder"]["encode.norm1.norm.weight"].eq(2).all()
    assert loaded.state["decoder"]["encode.norm2.norm.weight"].eq(1).all()
    assert loaded.state["decoder"]["encode.norm2.norm.bias"].eq(0).all()
    assert "embeddings.position_ids" not in loaded.state["bert"]
    assert loaded.state["bert"].keys() == tiny_checkpoint.state["bert"].keys()


@pytest.mark.filterwarnings("ignore")
def test_upstream_reads_the_same_weights(content: dict[str, Any], folder: Path, tiny_checkpoint: Checkpoint) -> None:
    path = folder / "kokoro-v1_0.pth"
    raw = tiny_checkpoint.config.to_dict()
    with pytest.raises(AssertionError, match="synthetic"):
        KModel(repo_id="hexgrad/Kokoro-82M", config=raw, model=tiny_checkpoint.source)
    del content["synthetic"]
    torch.save(content, path)
    upstream = KModel(repo_id="hexgrad/Kokoro-82M", config=raw, model=str(path)).state_dict()
    ours = build_model(tiny_checkpoint).state_dict()
    assert upstream.keys() == ours.keys()
    assert all(torch.equal(upstream[k], ours[k]) for k in ours)


def test_synthetic_is_reported(tiny_checkpoint: Checkpoint) -> None:
    assert tiny_checkpoint.synthetic
    assert not tiny_checkpoint.published
    assert len(tiny_checkpoint.sha256) == 64


class Hostile:
    """Unpickles into a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch kokoro_tvm_was_here",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "hostile", "list"])
def test_damaged_file_is_refused(kind: str, folder: Path, tiny_checkpoint: Checkpoint, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    path = folder / "kokoro-v1_0.pth"
    with open(tiny_checkpoint.source, "rb") as file:
        start = file.read(1 << 20)
    data = {"empty": b"", "text": b"version https://git-lfs", "truncated": start, "hostile": pickle.dumps(Hostile())}
    if kind == "list":
        torch.save([1, 2], path)
    else:
        path.write_bytes(data[kind])
    with pytest.raises(CheckpointError, match=r"kokoro-v1_0\.pth"):
        load_checkpoint(folder)
    assert not (folder / "kokoro_tvm_was_here").exists()


def test_missing_files_are_named(tmp_path: Path, tiny_checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="no weight file"):
        load_checkpoint(tmp_path)
    (tmp_path / "kokoro-v1_0.pth").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no configuration .*config\.json"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="cannot read the configuration"):
        (tmp_path / "config.json").write_text("{")
        load_checkpoint(tmp_path / "kokoro-v1_0.pth")


def test_other_configuration_is_refused(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published_config().to_dict()), encoding="utf-8")
    with pytest.raises(CheckpointError, match="missing.*mis-shaped"):
        load_checkpoint(tiny_checkpoint.source, tmp_path / "config.json")


# --- published weights -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and no network: the client is offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


def test_packages_where_the_hub_cannot_be_reached(no_hub: None) -> None:
    loaded = load_checkpoint()
    assert loaded.published
    assert not loaded.synthetic
    assert loaded.sha256 == packaged.SHA256
    assert loaded.precision == "8-bit, dequantised"
    for part in ("model hub", packaged.SOURCE, "8-bit", "Apache-2.0"):
        assert part in loaded.notice
    assert {p: set(s) for p, s in loaded.state.items()} == {p: set(s) for p, s in expected_shapes(published_config()).items()}


def test_the_hub_comes_first(tiny_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not asked over the network for what its client has in its cache."""
    here = Path(tiny_checkpoint.source).parent

    def cached(repo_id: str, filename: str, local_files_only: bool) -> str:
        assert repo_id == "hexgrad/Kokoro-82M"
        assert local_files_only
        return str(here / filename)

    monkeypatch.setattr(checkpoint, "hf_hub_download", cached)
    loaded = load_checkpoint()
    assert loaded.sha256 == tiny_checkpoint.sha256
    assert loaded.source == "hexgrad/Kokoro-82M/kokoro-v1_0.pth"
    assert not loaded.notice


def test_weights_that_are_known_to_be_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "hf_hub_download", lambda **_: pytest.fail("the hub was asked"))
    assert load_checkpoint(sha256=packaged.SHA256).sha256 == packaged.SHA256


@pytest.mark.parametrize(
    ("package", "sha256", "version", "message"),
    [
        ("no-such-package", packaged.SHA256, packaged.VERSION, "no-such-package .* is not installed: pip install"),
        (packaged.PACKAGES[0], "0" * 64, packaged.VERSION, "expected 0{64}: damaged; pip install"),
        (packaged.PACKAGES[0], packaged.SHA256, "9.9", "is installed as version 0.1.0, expected 9.9: pip install"),
    ],
)
def test_neither_says_what_to_do(
    package: str, sha256: str, version: str, message: str, no_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "PACKAGES", (package,))
    monkeypatch.setattr(packaged, "SHA256", sha256)
    monkeypatch.setattr(packaged, "VERSION", version)
    with pytest.raises(CheckpointError, match=f"model hub.*{message}.*or download kokoro-v1_0.pth and config.json"):
        load_checkpoint()


def test_building_leaves_the_random_state_alone(tiny_checkpoint: Checkpoint) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    model = build_model(tiny_checkpoint, torch.float64)
    assert torch.equal(before, torch.get_rng_state())
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.decoder.generator.stft.window.dtype == torch.float64


def test_provenance_of_these_weights_is_carried_on(folder: Path, tiny_checkpoint: Checkpoint) -> None:
    """What lies beside other weights than it speaks of says nothing; what cannot be read is not taken for full precision."""
    (folder / "kokoro-v1_0.pth").symlink_to(tiny_checkpoint.source)
    for sha256, precision in ((tiny_checkpoint.sha256, "8-bit, dequantised"), ("0" * 64, "float32")):
        text = Provenance(sha256, "8-bit, dequantised", "small.onnx", "1" * 64).to_json()
        (folder / "provenance.json").write_text(text, encoding="utf-8")
        assert load_checkpoint(folder).precision == precision
    (folder / "provenance.json").write_text('{"sha256": 1}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"cannot read .*provenance\.json.*import the weights again"):
        load_checkpoint(folder)


def test_reading_onnx_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ToolchainError, match=r"any\.onnx needs the package onnx: pip install"):
        load_checkpoint(tmp_path / "any.onnx")
