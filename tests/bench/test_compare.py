"""The comparison: on the smallest model with PyTorch, and what is checked before a time counts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kokoro_tvm.bench import peers, report
from kokoro_tvm.bench.compare import HELLO, faults_of
from kokoro_tvm.bench.peers import KINDS, OURS, OURS_BF16, Window
from kokoro_tvm.bench.utterance import Utterance
from kokoro_tvm.errors import InputError

SAID = Utterance(1.0, (Window("a", np.zeros((1, 3), np.int64), np.zeros((1, 256), np.float32)),), (np.array([1, 2, 3]),))


def result(**changes):
    return {"durations": [[1, 2, 3]], "samples": 3600, "finite": True} | changes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"durations": [[1, 2, 4]]}, "window 1: 1 of 3 durations differ"),
        ({"durations": [[6]]}, "window 1: all of 3 durations differ"),
        ({"samples": 3599}, "3599 samples, expected 3600"),
        ({"finite": False}, "not finite"),
    ],
)
def test_faults(changes, fault):
    assert faults_of(SAID, "whole", result()) == []
    (found,) = faults_of(SAID, "whole", result(**changes))
    assert fault in found
    if "durations" in changes:
        assert faults_of(SAID, "decoder", result(**changes)) == [], "the decoder has none"


def test_peer_names():
    assert peers.checked_peers(None) == peers.DEFAULT_PEERS
    assert peers.checked_peers("") == ()
    assert peers.checked_peers("openvino, torch,openvino") == ("openvino", "torch")
    with pytest.raises(InputError, match="unknown peer tensorflow, kokoro-tvm; expected some of: torch,"):
        peers.checked_peers("torch,tensorflow,kokoro-tvm")
    assert all(kind.install or name in (OURS, OURS_BF16) for name, kind in KINDS.items())


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


def test_whole_comparison(tiny_checkpoint_dir, tiny_artifact, cache, tmp_path, capfd, monkeypatch):
    """Ours and PyTorch, with one peer that is not installed."""
    from kokoro_tvm.cli.__main__ import main

    monkeypatch.setattr("kokoro_tvm.bench.compare.missing_packages", lambda name: ("openvino",) if name == "openvino" else ())
    json_file, markdown, picture = (tmp_path / f"a.{s}" for s in ("json", "md", "png"))
    arguments = ["bench", "--checkpoint", tiny_checkpoint_dir, "--artifact", tiny_artifact, "--cache", cache]
    arguments += ["--peers", "torch,openvino", "--seconds", "0.6", "--threads", "1", "--runs", "2"]
    arguments += ["--json", json_file, "--markdown", markdown, "--picture", picture]
    assert main([str(a) for a in arguments]) == 1, "a peer was asked for by name and is not there"
    out = capfd.readouterr().out
    assert "openvino not installed: pip install 'kokoro-tvm[bench]'" in out
    found = report.read_json(json_file)
    assert [(p.engine, p.known) for p in found.problems] == [("openvino", False)]
    assert {(t.engine, t.subject) for t in found.timings} == {(e, s) for e in (OURS, "torch") for s in ("whole", "decoder")}
    for timing in found.timings:
        assert len(timing.seconds) == len(timing.first) == 2
        assert timing.audio == pytest.approx(0.6, abs=0.1)
        assert all(0 < f <= s for f, s in zip(timing.first, timing.seconds, strict=True))
    assert [c.engine for c in found.cold] == [OURS, "torch"]
    assert all(c.load > 0 and c.first > 0 and c.peak_mib > 10 for c in found.cold)
    assert {(s.engine, s.text) for s in found.spoken} == {(OURS, HELLO), ("torch", HELLO)}
    assert {"cpu", "torch", "kokoro-tvm", "weights"} <= found.header.keys()
    levels = [t.level for t in found.timings if t.subject == "decoder"]
    assert 20 * abs(np.log10(levels[0] / levels[1])) < 1, "the same weights give the same loudness"
    assert picture.stat().st_size > 1000
    assert markdown.read_text() == report.markdown(found)
    again = tmp_path / "again.md"
    assert main(["bench", "--from", str(json_file), "--markdown", str(again)]) == 1
    assert again.read_text() == markdown.read_text()


def test_an_artifact_of_other_weights(tiny_checkpoint_dir, artifact_of_others, cache, capfd):
    from kokoro_tvm.cli.__main__ import main

    arguments = ["--checkpoint", tiny_checkpoint_dir, "--artifact", artifact_of_others, "--cache", cache, "--peers", ""]
    assert main(["bench", *map(str, arguments)]) == 2
    assert "name its checkpoint" in capfd.readouterr().err


@pytest.fixture
def artifact_of_others(tiny_artifact, tmp_path):
    from kokoro_tvm.artifact import CHECKSUM, MANIFEST, _checksum

    raw = json.loads((tiny_artifact / MANIFEST).read_text())
    raw["checkpoint"]["sha256"] = "0" * 64
    del raw[CHECKSUM]
    raw[CHECKSUM] = _checksum(raw)
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps(raw))
    return folder
