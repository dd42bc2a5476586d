"""Voices: every published format, read without torch; a hostile or damaged file is refused and never run."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kokoro_tvm.errors import ToolchainError, VoiceError
from kokoro_tvm.runtime.voices import SHIPPED, Voice, VoiceStore, parse_blend, read_voice

TABLE = np.random.default_rng(0).standard_normal((510, 1, 256)).astype(np.float32)


def write_pt(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None, **members: bytes) -> Path:
    """A zip archive in the layout of ``torch.save``, around any pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("voice/data.pkl", pickled)
        for key, data in (storages or {"0": TABLE.tobytes()}).items():
            archive.writestr(f"voice/data/{key}", data)
        for name, data in members.items():
            archive.writestr(f"voice/{name}", data)
    return path


def tensor_pickle(
    offset: int = 0, size: tuple = (510, 1, 256), stride: tuple = (256, 256, 1), count: int = 130_560
) -> bytes:
    """The pickle that torch writes, by hand (protocol 2)."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=2)
    buffer.write(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(")
    buffer.write(b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu")
    for value in (count,):
        buffer.write(_body(pickler, value))
    buffer.write(b"tQ")
    for value in (offset, size, stride, False):
        buffer.write(_body(pickler, value))
    return buffer.getvalue() + b"ccollections\nOrderedDict\n)RtR."


def _body(pickler: pickle.Pickler, value: object) -> bytes:
    return pickle.dumps(value, protocol=2)[2:-1]


# --- formats ---


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_pt_as_torch_saves_it(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(TABLE).to(getattr(torch, dtype))
    torch.save(tensor, tmp_path / "v.pt")
    voice = read_voice(tmp_path / "v.pt")
    np.testing.assert_array_equal(voice.table, tensor.float().numpy()[:, 0])
    assert voice.name == "v" and voice.table.dtype == np.float32 and not voice.table.flags.writeable


def test_pt_with_offset_and_strides(tmp_path):
    torch = pytest.importorskip("torch")
    big = torch.randn(256, 1, 515)
    view = big.permute(2, 1, 0)[5:]
    torch.save(view, tmp_path / "v.pt")
    np.testing.assert_array_equal(read_voice(tmp_path / "v.pt").table, view[:, 0].numpy())


def test_pt_by_hand_and_big_endian(tmp_path):
    path = write_pt(tmp_path / "v.pt", tensor_pickle())
    np.testing.assert_array_equal(read_voice(path).table, TABLE[:, 0])
    path = write_pt(tmp_path / "b.pt", tensor_pickle(), {"0": TABLE.astype(">f4").tobytes()}, byteorder=b"big")
    np.testing.assert_array_equal(read_voice(path).table, TABLE[:, 0])


def test_bin_npy_npz_safetensors(tmp_path):
    (tmp_path / "a.bin").write_bytes(TABLE.tobytes())
    np.save(tmp_path / "b.npy", TABLE[:, 0])
    np.savez(tmp_path / "c.npz", anything=TABLE)
    for name in ("a.bin", "b.npy", "c.npz"):
        np.testing.assert_array_equal(read_voice(tmp_path / name).table, TABLE[:, 0])
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"x": TABLE}, tmp_path / "d.safetensors")
    np.testing.assert_array_equal(read_voice(tmp_path / "d.safetensors").table, TABLE[:, 0])


@pytest.mark.parametrize("name", ["pack.npz", "pack.bin"])
def test_a_pack_of_voices(tmp_path, name):
    buffer = io.BytesIO()
    np.savez(buffer, af_one=TABLE, af_two=-TABLE)
    path = tmp_path / name
    path.write_bytes(buffer.getvalue())
    voice = read_voice(f"{path}#af_two")
    assert voice.name == "af_two"
    np.testing.assert_array_equal(voice.table, -TABLE[:, 0])
    with pytest.raises(VoiceError, match="af_one, af_two; pick one"):
        read_voice(path)
    with pytest.raises(VoiceError, match="not 'af_three'"):
        read_voice(f"{path}#af_three")


def test_reading_a_pt_needs_no_torch(tmp_path):
    path = write_pt(tmp_path / "v.pt", tensor_pickle())
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from kokoro_tvm.runtime.voices import read_voice\n"
        f"print(read_voice({str(path)!r}).table.shape)"
    )
    paths = os.pathsep.join(p for p in sys.path if p)
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert run.stdout.strip() == "(510, 256)", run.stderr


# --- hostile and damaged files ---


class Evil:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_would_run_a_command_is_refused_and_not_run(tmp_path, protocol):
    marker = tmp_path / "ran"
    for function, arguments in [
        (os.system, (f"touch {marker}",)),
        (exec, (f"open({str(marker)!r}, 'w')",)),
        (eval, ("1",)),
    ]:
        path = write_pt(tmp_path / "v.pt", pickle.dumps(Evil(function, *arguments), protocol))
        with pytest.raises(VoiceError, match="was not run"):
            read_voice(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "asked",
    ["torch.load", "torch._utils._rebuild_parameter", "torch.FloatStorage.__init__", "builtins.getattr", "numpy.load"],
)
def test_only_the_few_names_a_tensor_needs(tmp_path, asked):
    module, _, name = asked.rpartition(".") if asked.count(".") < 2 or "_utils" in asked else ("torch", "", asked[6:])
    data = b"\x80\x04" + pickle.dumps(module, 4)[2:-1] + pickle.dumps(name, 4)[2:-1] + b"\x93."
    with pytest.raises(VoiceError, match="which a voice does not need"):
        read_voice(write_pt(tmp_path / "v.pt", data))


def test_a_pickle_cannot_change_the_reader(tmp_path):
    # BUILD sets attributes on whatever is on the stack: on the rebuild function, here.
    hostile = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00xK\x01sb."
    with pytest.raises(VoiceError):
        read_voice(write_pt(tmp_path / "v.pt", hostile))
    assert read_voice(write_pt(tmp_path / "w.pt", tensor_pickle())).table.shape == (510, 256)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 1},
        {"offset": -1},
        {"stride": (256, 256, 2)},
        {"stride": (-256, 256, 1)},
        {"size": (510, 1, 256, 1)},
        {"size": (2**40, 2**40, 1)},
        {"size": (510, 1, 257)},
        {"count": 7},
    ],
)
def test_a_tensor_outside_its_storage_is_refused(tmp_path, wrong):
    with pytest.raises(VoiceError):
        read_voice(write_pt(tmp_path / "v.pt", tensor_pickle(**wrong)))


def test_storage_missing_or_short(tmp_path):
    with pytest.raises(VoiceError, match="voice/data/0"):
        read_voice(write_pt(tmp_path / "v.pt", tensor_pickle(), {"9": b""}))
    with pytest.raises(VoiceError, match="cannot be read|values"):
        read_voice(write_pt(tmp_path / "v.pt", tensor_pickle(), {"0": TABLE.tobytes()[:-3]}))


@pytest.mark.parametrize("keep", [0, 1, 4, 100, 100_000, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    whole = write_pt(tmp_path / "whole.pt", tensor_pickle()).read_bytes()
    path = tmp_path / "v.pt"
    path.write_bytes(whole[:keep])
    with pytest.raises(VoiceError, match=r"v\.pt"):
        read_voice(path)


def test_a_flipped_bit_is_noticed(tmp_path):
    path = write_pt(tmp_path / "v.pt", tensor_pickle())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(VoiceError, match="CRC"):
        read_voice(path)


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "v.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("voice/data.pkl", b"\x80\x02" + bytes(80 << 20))
    with pytest.raises(VoiceError, match="unpacks to more than 64 MiB"):
        read_voice(path)


def test_the_legacy_format_is_named(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(TABLE), tmp_path / "v.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(VoiceError, match="legacy format; save it again"):
        read_voice(tmp_path / "v.pt")


def test_npy_with_objects_is_refused(tmp_path):
    np.save(tmp_path / "v.npy", np.array([Evil(os.system, "true")], dtype=object), allow_pickle=True)
    with pytest.raises(VoiceError, match="cannot be read"):
        read_voice(tmp_path / "v.npy")


@pytest.mark.parametrize("name", ["v.bin", "v.npy", "v.npz", "v.safetensors", "v.pt"])
def test_junk_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK junk")
    with pytest.raises(VoiceError):
        read_voice(tmp_path / name)


@pytest.mark.parametrize("name", ["missing.pt", "v.wav", "", "."])
def test_no_such_file_or_format(tmp_path, name):
    with pytest.raises(VoiceError):
        read_voice(tmp_path / name)


# --- checks ---


def test_all_problems_come_at_once():
    table = np.full((509, 1, 256), np.nan, dtype=np.float32)
    with pytest.raises(VoiceError, match=r"\[509, 1, 256\], expected .*; 130304 of 130304 values are not finite"):
        Voice.from_array(table, "x")
    with pytest.raises(VoiceError, match="shape.*; dtype is int64"):
        Voice.from_array(np.zeros((2, 2), dtype=np.int64))


@pytest.mark.parametrize("array", [None, "x", [], np.zeros((511, 256)), np.full((510, 256), 1e300)])
def test_not_a_table(array):
    with pytest.raises(VoiceError):
        Voice.from_array(array)


def test_style_row_is_one_less_than_the_phonemes():
    voice = Voice.from_array(TABLE)
    for phonemes, row in ((1, 0), (2, 1), (510, 509), (0, 0), (600, 509)):
        decoder, predictor = voice.style(phonemes)
        np.testing.assert_array_equal(decoder, TABLE[row, 0, :128])
        np.testing.assert_array_equal(predictor, TABLE[row, 0, 128:])


# --- names and blends ---


def test_voices_of_the_package():
    """As the repository publishes them; NOTICE names the same files, and they need neither a folder nor the network."""
    shipped = {p.stem: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(SHIPPED.glob("*.bin"))}
    notice = (Path(__file__).resolve().parents[2] / "NOTICE").read_text(encoding="utf-8")
    assert dict(re.findall(r"(\w+)\.bin +sha256 ([0-9a-f]{64})", notice)) == shipped
    store = VoiceStore(allow_download=False, allow_paths=False)
    assert store.names() == list(shipped) == ["af_heart", "bm_george"]
    heart, george = (store.load(name).table for name in shipped)
    assert heart.shape == george.shape == (510, 256)
    # A row differs a little from its neighbours and much from another voice's.
    assert np.abs(np.diff(heart, axis=0)).mean() < 0.2 * np.abs(heart - george).mean()


def test_own_folders_come_before_the_package(tmp_path):
    np.save(tmp_path / "af_heart.npy", TABLE)
    np.testing.assert_array_equal(VoiceStore([tmp_path]).load("af_heart").table, TABLE[:, 0])


@pytest.fixture
def store(tmp_path):
    np.save(tmp_path / "af_one.npy", TABLE)
    np.save(tmp_path / "af_two.npy", -3 * TABLE)
    return VoiceStore([tmp_path / "absent", tmp_path], allow_download=False)


def test_names_are_looked_up(store):
    assert store.names() == ["af_heart", "af_one", "af_two", "bm_george"]
    assert store.load("af_one").name == "af_one"
    assert store.load("af_one") is store.load("af_one")


def test_arrays_and_voices_pass_through(store):
    voice = store.load(TABLE)
    assert store.load(voice) is voice


def test_mean_of_two_is_the_reference_mean(store):
    torch = pytest.importorskip("torch")
    expected = torch.mean(torch.stack([torch.from_numpy(TABLE), torch.from_numpy(-3 * TABLE)]), dim=0)
    np.testing.assert_array_equal(store.load("af_one, af_two").table, expected[:, 0])


def test_weights_are_scaled_to_one(store):
    np.testing.assert_allclose(store.load("af_one:7,af_two:3").table, TABLE[:, 0] * (0.7 - 0.9), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(store.load("af_one:5").table, TABLE[:, 0])


def test_paths_in_a_blend(store, tmp_path):
    blend = store.load(f"{tmp_path / 'af_one.npy'}:1,af_two:1")
    np.testing.assert_array_equal(blend.table, store.load("af_one,af_two").table)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "empty name"),
        ("af_one,", "empty name"),
        ("af_one:0.5,af_two", "some names only"),
        ("af_one:x", "expected a finite number above 0"),
        ("af_one:-1,af_two:2", "expected a finite number above 0"),
        ("af_one:nan", "expected a finite number above 0"),
        ("af_three", "pass a file instead"),
        ("../af_one", "no such file"),
        ("a b", "no such file"),
    ],
)
def test_bad_specifications(store, spec, message):
    with pytest.raises(VoiceError, match=message):
        store.load(spec)


def test_windows_drive_letters_are_no_weights():
    assert parse_blend(r"C:\voices\a.pt") == [(r"C:\voices\a.pt", 1.0)]


def test_paths_can_be_forbidden(store, tmp_path):
    closed = VoiceStore([tmp_path], allow_paths=False, allow_download=False)
    assert closed.load("af_one").name == "af_one"
    for spec in (str(tmp_path / "af_one.npy"), "../x", "/etc/passwd"):
        with pytest.raises(VoiceError, match="paths are not allowed"):
            closed.load(spec)


def test_an_unreachable_hub_says_how_to_pass_a_file(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    def fail(**arguments):
        assert arguments == {"repo_id": "hexgrad/Kokoro-82M", "filename": "voices/af_bella.pt"}
        raise ConnectionError("offline mode is enabled")

    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(VoiceError, match=r"could not be downloaded .*offline mode is enabled.*pass a file instead"):
        VoiceStore([tmp_path]).load("af_bella")


def test_a_downloaded_voice_keeps_its_name(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    path = write_pt(tmp_path / "blob.pt", tensor_pickle())
    monkeypatch.setattr(hub, "hf_hub_download", lambda **_: str(path))
    assert VoiceStore().load("af_bella").name == "af_bella"


def test_without_the_hub_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ToolchainError, match="pip install huggingface_hub"):
        VoiceStore().load("af_bella")
