"""``kokoro-tvm synth`` and the API behind it: what comes out, and that it is always the same."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from kokoro_tvm.runtime.synthesis import load

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine

TEXT = "Hello world, how are you?"


def _arguments(artifact: Path, voices: Path, output: Path, *more: str) -> list[str]:
    return ["synth", TEXT, "-a", str(artifact), "--voices-dir", str(voices), "-v", "one:0.7,two:0.3", "-o", str(output), *more]


def _in_a_process(arguments: list[str], **environment: str) -> str:
    """Runs ``kokoro-tvm``; stdout."""
    command = [sys.executable, "-X", "importtime", "-m", "kokoro_tvm", *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    # An attempt that found nothing is listed too, but without submodules.
    packages = {name.partition(".")[0] for name in imported if "." in name}
    assert "kokoro_tvm" in packages
    assert not packages & {"torch", "tvm", "kokoro", "transformers"}
    return done.stdout


def test_output(tiny_artifact: Path, voices_dir: Path, tmp_path: Path, command_line: CommandLine) -> None:
    command_line.output.write_bytes(b"replaced by a success")
    words = tmp_path / "words.json"
    result = command_line(*_arguments(tiny_artifact, voices_dir, command_line.output, "--timestamps", str(words)))
    assert result.code == 0, result.err
    assert not result.err
    samples, rate = soundfile.read(command_line.output, dtype="float32")
    speech = load(tiny_artifact, voices=[voices_dir]).synthesize(TEXT, voice="one:0.7,two:0.3")
    assert (rate, samples.shape) == (24_000, (600 * speech.durations.sum(),))
    assert np.isfinite(samples).all()
    assert 0.01 < np.abs(samples).max() <= 1
    np.testing.assert_array_equal(samples, speech.samples)
    for part in (f"{len(samples)} samples", speech.phonemes, "RTF", "decoder", "not speech"):
        assert part in result.out
    spoken = json.loads(words.read_text(encoding="utf-8"))
    assert [w["text"] for w in spoken if w["text"].isalpha()] == ["Hello", "world", "how", "are", "you"]
    assert all(a["end"] <= b["start"] for a, b in itertools.pairwise(spoken))
    assert spoken[-1]["end"] <= speech.seconds


def test_same_samples_for_any_threads_and_in_any_process(tiny_artifact: Path, voices_dir: Path, tmp_path: Path) -> None:
    hashes = set()
    for index, threads in enumerate((1, 2, 2)):
        path = tmp_path / f"{index}.wav"
        _in_a_process(_arguments(tiny_artifact, voices_dir, path, "--threads", str(threads)))
        hashes.add(hashlib.sha256(path.read_bytes()).hexdigest())
    speech = load(tiny_artifact, voices=[voices_dir]).synthesize(TEXT, voice="one:0.7,two:0.3")
    assert soundfile.read(path, dtype="float32")[0].tobytes() == speech.samples.tobytes()
    assert len(hashes) == 1


def test_same_samples_from_concurrent_callers(tiny_artifact: Path, voices_dir: Path) -> None:
    synthesizer = load(tiny_artifact, threads=2, voices=[voices_dir])
    alone = {v: synthesizer.synthesize(TEXT, voice=v).samples.tobytes() for v in ("one", "two", "three")}
    jobs = ["one", "two", "three", "one"] * 2
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda v: synthesizer.synthesize(TEXT, voice=v).samples.tobytes(), jobs))
    assert together == [alone[v] for v in jobs]
    assert len(set(alone.values())) == 3


def test_seed_and_speed_matter(tiny_artifact: Path, voices_dir: Path) -> None:
    synthesizer = load(tiny_artifact, voices=[voices_dir])
    first = synthesizer.synthesize(TEXT, voice="one", seed=0)
    other = synthesizer.synthesize(TEXT, voice="one", seed=1)
    fast = synthesizer.synthesize(TEXT, voice="one", speed=2.0)
    np.testing.assert_array_equal(first.durations, other.durations)
    assert first.samples.tobytes() != other.samples.tobytes()
    assert fast.durations.sum() < first.durations.sum()


@pytest.mark.parametrize("way", ["argument", "file", "dash", "stdin file"])
def test_text_from_anywhere(
    way: str, tiny_artifact: Path, voices_dir: Path, tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("Hi.", encoding="utf-8-sig")
    text = {"argument": ["Hi."], "file": ["--text-file", str(file)], "dash": ["-"], "stdin file": ["--text-file", "-"]}[way]
    with file.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        result = command_line(
            "synth", *text, "-a", tiny_artifact, "--voices-dir", voices_dir, "-v", "one", "-o", command_line.output
        )
    assert result.code == 0, result.err
    assert "phonemes: hˈI." in result.out


def test_dropped_symbols_are_reported(tiny_artifact: Path, voices_dir: Path, command_line: CommandLine) -> None:
    result = command_line(
        "synth", "--phonemes", "həlˈO §¶", "-a", tiny_artifact, "--voices-dir", voices_dir, "-v", "one", "-o", command_line.output
    )
    assert result.code == 0, result.err
    assert "§¶" in next(line for line in result.out.splitlines() if "left out" in line)
