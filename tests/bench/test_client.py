"""Worker processes: answers, errors and deaths."""

from __future__ import annotations

import os
import signal

import pytest

from kokoro_tvm.bench.client import Client, EngineError


@pytest.fixture
def client(tmp_path):
    with Client("engine", tmp_path) as client:
        yield client


def test_answers(client):
    assert 1 < client.ask("peak_mib") < 4096
    assert client.age > 0


def test_an_error_is_one_line_and_the_process_goes_on(client):
    with pytest.raises(EngineError, match="^engine: KeyError: 'nobody'.*log"):
        client.ask("open", "nobody", None, 1, "whole")
    assert "Traceback" in client.log.read_text()
    with pytest.raises(EngineError, match="AttributeError"):
        client.ask("no_such_verb")
    assert client.ask("peak_mib") > 1


def test_a_death_is_told(client):
    client.ask("peak_mib")
    os.kill(client._process.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"its process ended \(exit code -9\)"):
        client.ask("peak_mib")


def test_a_closed_pipe_ends_the_process(tmp_path):
    with Client("engine", tmp_path) as client:
        client.ask("peak_mib")
    assert client._process.returncode == 0
