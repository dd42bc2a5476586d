"""Every mistake a caller can make: one clear line and exit 2, or a named ValueError; existing output stays."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kokoro_tvm import artifact as artifacts
from kokoro_tvm.artifact import MANIFEST, read_manifest, write_manifest
from kokoro_tvm.errors import ArtifactError, CapacityError, InputError, KokoroTvmError, OutputError, VoiceError
from kokoro_tvm.runtime import synthesis
from kokoro_tvm.runtime.audio import write_audio
from kokoro_tvm.runtime.synthesis import Synthesizer, Utterance, load

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine

UTTERANCES: dict[str, tuple[dict[str, Any], type[KokoroTvmError], str]] = {
    "empty text": ({"text": ""}, InputError, "empty"),
    "blank text": ({"text": " \n\t "}, InputError, "empty"),
    "unspeakable text": ({"text": "\u200b\u00ad"}, InputError, "nothing to speak"),
    "unknown phonemes": ({"phonemes": "§§ %% 12"}, InputError, "nothing to speak"),
    "spaces as phonemes": ({"phonemes": "   "}, InputError, "empty"),
    "text and phonemes": ({"text": "Hello", "phonemes": "a"}, InputError, "phonemes"),
    "neither": ({}, InputError, "phonemes"),
    "speed 0": ({"text": "Hello", "speed": 0.0}, InputError, "speed"),
    "speed negative": ({"text": "Hello", "speed": -1.0}, InputError, "speed"),
    "speed NaN": ({"text": "Hello", "speed": math.nan}, InputError, "speed"),
    "speed infinite": ({"text": "Hello", "speed": math.inf}, InputError, "speed"),
    "speed beyond all bounds": ({"text": "Hello", "speed": 1e-30}, InputError, "speed"),
    "negative seed": ({"text": "Hello", "seed": -1}, InputError, "seed"),
    "unknown language": ({"text": "Hello", "lang": "klingon"}, InputError, "klingon"),
    "missing voice": ({"text": "Hello", "voice": "nobody"}, VoiceError, "nobody"),
    "missing voice file": ({"text": "Hello", "voice": "no/such/voice.pt"}, VoiceError, "no such file"),
    "voice of wrong shape": ({"text": "Hello", "voice": "short"}, VoiceError, "expected"),
    "voice not finite": ({"text": "Hello", "voice": "nan"}, VoiceError, "not finite"),
    "damaged voice": ({"text": "Hello", "voice": "damaged"}, VoiceError, "damaged"),
    "bad blend": ({"text": "Hello", "voice": "one:0.5,two"}, VoiceError, "weight"),
    "blend with nobody": ({"text": "Hello", "voice": "one,nobody"}, VoiceError, "nobody"),
}


@pytest.fixture(scope="module")
def all_voices(voices_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-voices")
    for file in voices_dir.iterdir():
        (folder / file.name).symlink_to(file)
    np.zeros(100, "<f4").tofile(folder / "short.bin")
    np.savez(folder / "nan.npz", np.full((510, 1, 256), np.nan, np.float32))
    (folder / "damaged.pt").write_bytes(b"PK\x03\x04 but no more than that")
    return folder


@pytest.fixture(scope="module")
def synthesizer(tiny_artifact: Path, all_voices: Path) -> Synthesizer:
    return load(tiny_artifact, threads=1, voices=[all_voices])


def _synth_arguments(utterance: dict[str, Any], artifact: Path, voices: Path, output: Path) -> list[object]:
    options = {"artifact": artifact, "voices-dir": voices, "voice": "one", "output": output} | utterance
    text = [options.pop("text")] if "text" in options else []
    return ["synth", *[f"--{name}={value}" for name, value in options.items()], "--", *text]


@pytest.mark.parametrize("case", UTTERANCES)
def test_utterance(case: str, tiny_artifact: Path, all_voices: Path, synthesizer: Synthesizer, command_line: CommandLine) -> None:
    utterance, error, message = UTTERANCES[case]
    with pytest.raises(error, match=message):
        synthesizer.synthesize(**({"voice": "one"} | utterance))
    command_line.refused(message, *_synth_arguments(utterance, tiny_artifact, all_voices, command_line.output))


@pytest.mark.parametrize("threads", [0, -1])
def test_threads(threads: int, tiny_artifact: Path, voices_dir: Path, command_line: CommandLine) -> None:
    with pytest.raises(InputError, match="threads"):
        load(tiny_artifact, threads=threads)
    utterance = {"text": "Hello", "threads": threads}
    command_line.refused("threads", *_synth_arguments(utterance, tiny_artifact, voices_dir, command_line.output))


@pytest.mark.parametrize("arguments", [("--frobnicate",), ("--speed", "fast"), ("one", "two"), ("--seed", "1.5")], ids=str)
def test_usage(arguments: tuple[str, ...], command_line: CommandLine) -> None:
    command_line.refused("kokoro-tvm: ", "synth", *arguments, "-o", command_line.output)


def test_unknown_subcommand(command_line: CommandLine) -> None:
    command_line.refused("frobnicate", "frobnicate")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["missing", "not UTF-8"])
def test_text_file(content: bytes | None, tiny_artifact: Path, tmp_path: Path, command_line: CommandLine) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    command_line.refused("text", "synth", "--text-file", file, "-a", tiny_artifact, "-o", command_line.output)


# --- a text of any length ----------------------------------------------------------------------------------------------------

LONG = ("The quick brown fox jumps over the lazy dog, and then it sleeps. " * 1600)[:100_000]


@pytest.mark.parametrize(
    "text", [LONG, "antidisestablishmentarianism" * 3572, "a" * 100_000], ids=["sentences", "one word", "one letter"]
)
def test_long_text_fits_windows_and_loses_nothing(text: str, synthesizer: Synthesizer) -> None:
    windows = synthesizer.windows(text)
    assert all(1 <= len(w.phonemes) <= 510 for w in windows)
    spoken = "".join(w.phonemes.replace(" ", "") for w in windows)
    whole = "".join(t.phonemes.replace(" ", "") for t in synthesizer.g2p("a")(text))
    assert spoken == whole
    assert len(spoken) > 50_000


def test_long_text(tiny_artifact: Path, voices_dir: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the way but the networks, which would take a quarter of an hour: one frame per token, numbered windows."""

    def render(self: Synthesizer, ids: np.ndarray, *_: object, window: int, **__: object) -> Utterance:
        return Utterance(np.full(600 * len(ids), window, np.float32), np.ones(len(ids), np.int64))

    monkeypatch.setattr(synthesis.Synthesizer, "render", render)
    result = command_line(*_synth_arguments({"text": LONG}, tiny_artifact, voices_dir, command_line.output))
    assert result.code == 0, result.err
    samples = np.frombuffer(command_line.output.read_bytes()[-4 * 600 :], np.float32)
    assert samples.max() > 150
    assert f"{int(samples[0]) + 1} windows" in result.out


def test_first_window_of_a_long_text(synthesizer: Synthesizer) -> None:
    piece = next(synthesizer.stream(LONG, voice="one", speed=20.0))
    assert 100 < len(piece.phonemes) <= 250
    assert len(piece.samples) == 600 * piece.durations.sum()
    assert np.isfinite(piece.samples).all()


# --- capacity ----------------------------------------------------------------------------------------------------------------


def _with_manifest(folder: Path, change: Callable[[artifacts.Manifest], artifacts.Manifest]) -> Path:
    write_manifest(folder, change(read_manifest(folder)))
    return folder


def test_capacity_in_frames(artifact_copy: Path, voices_dir: Path, command_line: CommandLine) -> None:
    small = _with_manifest(artifact_copy, lambda m: dataclasses.replace(m, aligned_len=5))
    with pytest.raises(CapacityError, match="--aligned-len"):
        load(small, voices=[voices_dir]).synthesize("Hello world", voice="one")
    utterance = {"text": "Hello world"}
    command_line.refused("--aligned-len", *_synth_arguments(utterance, small, voices_dir, command_line.output))


def test_capacity_in_tokens_splits_instead(artifact_copy: Path, voices_dir: Path) -> None:
    small = load(_with_manifest(artifact_copy, lambda m: dataclasses.replace(m, seq_len=8)), voices=[voices_dir])
    speech = small.synthesize("Hello world", voice="one")
    assert speech.windows > 1
    assert speech.phonemes.replace(" ", "") == "həlˈOwˈɜɹld"
    with pytest.raises(CapacityError, match="--seq-len"):
        small.engine.run("bert", np.ones((1, 9), np.int64), np.array([9]))


# --- outputs -----------------------------------------------------------------------------------------------------------------


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "folder.wav").mkdir()
    return tmp_path / "folder.wav"


UNWRITABLE: dict[str, Callable[[Path], Path]] = {
    "folder is missing": lambda p: p / "missing" / "out.wav",
    "is a folder": _folder,
    "parent is a file": lambda p: p / "out.wav" / "out.wav",
    "unknown type": lambda p: p / "out.mp3",
    "no suffix": lambda p: p / "out",
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_unwritable_output(
    case: str, tmp_path: Path, voices_dir: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = UNWRITABLE[case](tmp_path)
    with pytest.raises(OutputError):
        write_audio(path, np.zeros(600, np.float32))
    monkeypatch.setattr(synthesis, "load", lambda *_: pytest.fail("the output was not checked before loading"))
    command_line.refused(path.name, *_synth_arguments({"text": "Hello"}, tmp_path, voices_dir, path))


@pytest.mark.parametrize("name", ["words.txt", "missing/words.tsv"])
def test_unwritable_timestamps(name: str, tmp_path: Path, voices_dir: Path, command_line: CommandLine) -> None:
    utterance = {"text": "Hello", "timestamps": tmp_path / name}
    command_line.refused(name, *_synth_arguments(utterance, tmp_path, voices_dir, command_line.output))


# --- artifacts ---------------------------------------------------------------------------------------------------------------

FILES = (
    MANIFEST, "libkokoro_tvm_extern.so",
    *(f"{n}.{s}" for n in ("bert", "duration", "text_encoder", "f0n", "decoder") for s in ("so", "safetensors")),
)  # fmt: skip


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "truncated": lambda c: c[: len(c) // 2],
    "bit flipped": _flipped,
}


def _refuse_artifact(artifact: Path, message: str | list[str], voices: Path, command_line: CommandLine) -> None:
    with pytest.raises(ArtifactError) as caught:
        load(artifact)
    for part in [message] if isinstance(message, str) else message:
        assert part in str(caught.value)
    command_line.refused(message, *_synth_arguments({"text": "Hello"}, artifact, voices, command_line.output))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_damaged_artifact(name: str, damage: str, artifact_copy: Path, voices_dir: Path, command_line: CommandLine) -> None:
    path = artifact_copy / name
    content = DAMAGE[damage](path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    _refuse_artifact(artifact_copy, [name, "ompile"], voices_dir, command_line)


@pytest.mark.parametrize("position", range(0, 100, 7))
def test_flipped_bits_in_the_manifest(position: int, artifact_copy: Path) -> None:
    path = artifact_copy / MANIFEST
    content = bytearray(path.read_bytes())
    content[len(content) * position // 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError):
        read_manifest(artifact_copy)


OTHER_BUILDS: dict[str, tuple[Callable[[artifacts.Manifest], artifacts.Manifest], str]] = {
    "another machine": (lambda m: _target(m, machine="vax"), "vax"),
    "another system": (lambda m: _target(m, system="plan9"), "plan9"),
    "another CPU": (lambda m: _target(m, features=(*m.target.features, "avx4096")), "avx4096"),
    "another TVM": (lambda m: dataclasses.replace(m, tvm="0.1"), "apache-tvm 0.1"),
    "another tvm-ffi": (lambda m: dataclasses.replace(m, tvm_ffi="0.0.1"), "apache-tvm-ffi 0.0.1"),
    "another schema": (lambda m: dataclasses.replace(m, schema=99), "schema 99"),
    "a component less": (
        lambda m: dataclasses.replace(m, components={n: c for n, c in m.components.items() if n != "f0n"}),
        "f0n",
    ),
}


def _target(manifest: artifacts.Manifest, **changes: Any) -> artifacts.Manifest:
    return dataclasses.replace(manifest, target=dataclasses.replace(manifest.target, **changes))


@pytest.mark.parametrize("case", OTHER_BUILDS)
def test_artifact_of_another_build(
    case: str, artifact_copy: Path, voices_dir: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = OTHER_BUILDS[case]
    monkeypatch.setattr(
        "kokoro_tvm.runtime.engine.tvm_ffi.load_module", lambda *_: pytest.fail("code was loaded before the check")
    )
    _refuse_artifact(_with_manifest(artifact_copy, change), message, voices_dir, command_line)


@pytest.mark.parametrize("content", ["[]", "{}", '{"schema": 1}', "\x00"], ids=repr)
def test_no_manifest(content: str, artifact_copy: Path, voices_dir: Path, command_line: CommandLine) -> None:
    (artifact_copy / MANIFEST).write_text(content, encoding="utf-8")
    _refuse_artifact(artifact_copy, MANIFEST, voices_dir, command_line)


@pytest.mark.parametrize("key", ["target", "components", "config", "seq_len"])
def test_incomplete_manifest(key: str, artifact_copy: Path, voices_dir: Path, command_line: CommandLine) -> None:
    path = artifact_copy / MANIFEST
    raw = {k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if k not in (key, artifacts.CHECKSUM)}
    path.write_text(json.dumps(raw), encoding="utf-8")
    _refuse_artifact(artifact_copy, [MANIFEST, key], voices_dir, command_line)


def test_no_artifact(tmp_path: Path, voices_dir: Path, command_line: CommandLine) -> None:
    _refuse_artifact(tmp_path / "nothing", "no artifact", voices_dir, command_line)
    command_line.refused("no artifact", "info", tmp_path)


BENCHMARK_MISTAKES: dict[str, tuple[list[str], str]] = {
    "unknown peer": (["bench", "--peers", "torch,mxnet"], "unknown peer mxnet; expected some of: torch"),
    "seconds no number": (["bench", "--seconds", "1,two"], "--seconds must be numbers"),
    "no seconds": (["bench", "--seconds", ","], "--seconds must be numbers"),
    "seconds out of range": (["bench", "--seconds", "0,nan,3"], "--seconds must lie within"),
    "no threads": (["bench", "--threads", "0"], "--threads must lie within"),
    "more threads than CPUs": (["bench", "--threads", "4096"], "--threads must lie within"),
    "no runs": (["bench", "--runs", "0"], "--runs must be at least 1"),
    "no checkpoint there": (["bench", "--checkpoint", "no/such/file.pth"], "no weight file"),
    "figures that are not there": (["bench", "--from", "no/such.json"], "holds no figures"),
    "unknown component": (["profile", "--component", "brain"], "unknown component 'brain'"),
    "profile without an artifact": (["profile", "--artifact", "no/such/artifact"], "no artifact"),
    "CPU time of two threads": (["profile", "--clock", "cpu"], "cpu with --threads 1"),
    "profile without runs": (["profile", "--runs", "0"], "must be at least 1"),
}


@pytest.mark.parametrize("case", BENCHMARK_MISTAKES)
def test_benchmarks(case: str, command_line: CommandLine, tmp_path: Path) -> None:
    arguments, message = BENCHMARK_MISTAKES[case]
    cache = ["--cache", tmp_path / "cache"]
    command_line.refused(message, *arguments, *cache, "--json", command_line.output)


def test_benchmarks_find_out_first_whether_they_can_write(command_line: CommandLine, tmp_path: Path) -> None:
    for command in ("bench", "profile"):
        command_line.refused("cannot write", command, "--json", tmp_path / "nowhere" / "a.json")
