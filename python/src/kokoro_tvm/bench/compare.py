"""The comparison itself: who runs what, when, and what is checked.

What it is: a schedule. Every engine has a process of its own for every number of threads; they take turns, run by run, so that
a busy machine hurts all alike, and only one works at a time. Between two runs there is a pause in which idle threads, which
spin for a while, go to sleep; an engine whose run is short runs once untimed before every timed run, so that what others did
to the caches does not count. What it is not: an engine (``peers``), or a way to show figures (``report``).

The engines get the same token ids and style. They have to predict the same durations; the decoders get the same inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kokoro_tvm import environment
from kokoro_tvm.bench.client import Client, EngineError
from kokoro_tvm.bench.peers import KINDS, OURS, OURS_BF16, SUBJECTS, WHOLE, missing_packages
from kokoro_tvm.bench.prepare import Weights
from kokoro_tvm.bench.report import Cold, Comparison, Problem, Spoken, Timing, machine
from kokoro_tvm.bench.utterance import Utterance, utterance
from kokoro_tvm.runtime.voices import VoiceStore

PAUSE = 0.25
"""Seconds between two runs: longer than TVM's, OpenMP's and ONNX Runtime's idle threads spin."""
WARM_UP = 2
PRIMED_BELOW = 1.0
"""Seconds: runs shorter than this are preceded by an untimed one."""
HELLO = "Hello world"

Listener = Callable[[str], None]
"""Told what goes on."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        peers: Engines besides ours.
        explicit: Whether they were asked for by name: one that is not installed is a failure then.
        seconds: Lengths of audio.
        threads: Numbers of threads.
        runs: Timed runs each.
        cache: Folder for what is set up.
        checkpoint: A weight file or its folder; the model hub's if None.
        artifact: The artifact to measure; compiled for this CPU if None.
        voice: A voice as for ``kokoro-tvm synth``; one that suits the weights if None.
    """

    peers: tuple[str, ...]
    explicit: bool
    seconds: tuple[float, ...]
    threads: tuple[int, ...]
    runs: int
    cache: Path
    checkpoint: Path | None = None
    artifact: Path | None = None
    voice: str | None = None


def compare(plan: Plan, listener: Listener = lambda _: None) -> Comparison:
    """Measures everything.

    Raises:
        EngineError: Our own engine failed: there is nothing to compare with.
        KokoroTvmError: The checkpoint, the artifact or the voice cannot be used.
    """
    return _Run(plan, listener).everything()


class _Run:
    def __init__(self, plan: Plan, listener: Listener) -> None:
        self.plan = plan
        self.listener = listener
        self.found = Comparison({})

    def everything(self) -> Comparison:
        self.weights: Weights = self._prepared("weights", self.plan.cache.resolve(), self.plan.checkpoint, self.plan.artifact)
        self.files = self.weights.files
        self.engines = [OURS, *self._available()]
        self.found.header = header(self.weights, self.plan)  # before anything of ours loads the machine
        self._set_up()
        self._choose_utterances()
        for threads in self.plan.threads:
            self._warm(threads)
        self._cold()
        return self.found

    # --- setting up ---

    def _prepared(self, step: str, *arguments: Any) -> Any:
        """Runs a step of ``bench.prepare`` in a process of its own: it needs PyTorch and a gigabyte."""
        self.listener(f"setting up: {step}")
        with self._client(f"prepare-{step}") as client:
            return client.ask("prepare", step, *arguments)

    def _client(self, name: str) -> Client:
        return Client(name, self.plan.cache / "logs")

    def _available(self) -> list[str]:
        """Peers that are installed; the others are noted, with the way to get them."""
        found = []
        for name in self.plan.peers:
            missing = missing_packages(name)
            if missing:
                reason = f"{', '.join(missing)} not installed: {KINDS[name].install}"
                self._problem(name, "everything", reason, known=not self.plan.explicit)
            else:
                found.append(name)
        return found

    def _set_up(self) -> None:
        seconds = self._prepared("artifact", self.files)
        if seconds is not None:
            self.found.setups[OURS] = seconds
        self._set_up_peers([n for n in self.engines if n == OURS_BF16], "compile", "artifact", self.files, "bf16")
        exported = [n for n in self.engines if KINDS[n].module in ("onnxruntime", "openvino")]
        self._set_up_peers(exported, "export", "onnx", self.files)

    def _set_up_peers(self, names: Sequence[str], what: str, step: str, *arguments: Any) -> None:
        """Does what some engines need; without it they are left out."""
        if not names:
            return
        try:
            seconds = self._prepared(step, *arguments)
            self.found.setups.update({} if seconds is None else dict.fromkeys(names, seconds))
        except EngineError as error:
            for name in names:
                self._problem(name, what, str(error))
                self.engines.remove(name)

    def _problem(self, engine: str, what: str, reason: str, known: bool = False) -> None:
        problem = Problem(engine, what, reason, known)
        if problem not in self.found.problems:
            self.found.problems.append(problem)
            self.listener(f"{engine}, {what}: {reason}")

    def _choose_utterances(self) -> None:
        spec = self.plan.voice or (str(self.files.voice) if self.files.voice else "af_heart")
        self.voice = VoiceStore([]).load(spec).table
        self.utterances: list[Utterance] = []
        self.decoder_inputs: list[list[Any]] = []
        with self._client("utterances") as client:
            client.open(OURS, self.files, max(self.plan.threads), WHOLE)
            for seconds in self.plan.seconds:
                self.listener(f"choosing phonemes for {seconds:g} s")
                said = utterance(seconds, self.voice, self.weights.vocabulary, lambda w: client.ask("durations", w))
                self.utterances.append(said)
                self.decoder_inputs.append([client.ask("decoder_inputs", w) for w in said.windows])

    # --- warm ---

    def _warm(self, threads: int) -> None:
        with ExitStack() as stack:
            clients: dict[str, Client] = {}
            for name in self.engines:
                self.listener(f"{threads} threads: starting {name}")
                client = stack.enter_context(self._client(f"{name}-{threads}"))
                subject = next(s for s in SUBJECTS if s not in KINDS[name].unsupported)
                if self._tried(name, "start", lambda c=client, n=name, s=subject: c.open(n, self.files, threads, s)):
                    clients[name] = client
            for subject in SUBJECTS:
                for index in range(len(self.utterances)):
                    self._turns(clients, subject, threads, index)
            self._speak(clients, threads)

    def _tried(self, name: str, what: str, action: Callable[[], Any]) -> Any:
        """What the action returns; a failure of a peer is noted, one of ours ends everything."""
        try:
            result = action()
        except EngineError as error:
            if name == OURS:
                raise
            self._problem(name, what, str(error))
            return None
        if what == "start":
            self.found.header.update(result)
        return result

    def _turns(self, clients: dict[str, Client], subject: str, threads: int, index: int) -> None:
        said = self.utterances[index]
        what = f"{subject}, {said.wanted:g} s, {threads} threads"
        warm: dict[str, list[dict[str, Any]]] = {}
        for name, client in clients.items():
            if subject in KINDS[name].unsupported:
                self._problem(name, subject, KINDS[name].unsupported[subject], known=True)
                continue
            self.listener(f"{what}: warming up {name}")
            runs = self._tried(name, what, lambda c=client: self._warmed(c, subject, index))
            if runs and self._correct(name, what, subject, said, runs[-1]):
                warm[name] = runs
        timed: dict[str, list[dict[str, Any]]] = {name: [] for name in warm}
        order = list(warm)
        for turn in range(self.plan.runs):
            self.listener(f"{what}: run {turn + 1} of {self.plan.runs}")
            for name in order:
                result = self._tried(name, what, lambda c=clients[name], w=warm[name]: _timed(c, subject, w[-1]["seconds"]))
                if result:
                    timed[name].append(result)
            order = order[1:] + order[:1]
        for name, results in timed.items():
            if name == "torch-compile":
                first, *_, last = (r["seconds"] for r in warm[name])
                self.found.setups[name] = max(self.found.setups.get(name, 0.0), first - last)
            if len(results) == self.plan.runs:
                self.found.timings.append(
                    Timing(
                        name, subject, threads, said.wanted, said.seconds, tuple(r["seconds"] for r in results),
                        tuple(r["first"] for r in results), results[0]["level"], tuple(r["seconds"] for r in warm[name]),
                    )
                )  # fmt: skip

    def _warmed(self, client: Client, subject: str, index: int) -> list[dict[str, Any]]:
        work = self.utterances[index].windows if subject == WHOLE else self.decoder_inputs[index]
        client.ask("hold", subject, work)
        return [client.ask("run", subject) for _ in range(WARM_UP)]

    def _correct(self, name: str, what: str, subject: str, said: Utterance, result: dict[str, Any]) -> bool:
        """Whether an engine computed what the others do: durations, length and finite samples."""
        faults = faults_of(said, subject, result)
        for fault in faults:
            if name == OURS:
                raise EngineError(f"{name}, {what}: {fault}")
            self._problem(name, what, fault)
        return not faults

    def _speak(self, clients: dict[str, Client], threads: int) -> None:
        times: dict[str, list[float]] = {n: [] for n in clients if WHOLE not in KINDS[n].unsupported}
        self.listener(f"{HELLO!r}, {threads} threads")
        for _ in range(self.plan.runs):
            for name in times:
                time.sleep(PAUSE)
                ask = lambda c=clients[name]: c.ask("speak", HELLO, self.voice, self.weights.vocabulary)  # noqa: E731
                self._tried(name, HELLO, ask)
                seconds = self._tried(name, HELLO, ask)
                times[name] += [] if seconds is None else [seconds]
        self.found.spoken += [Spoken(n, threads, HELLO, tuple(s)) for n, s in times.items() if len(s) == self.plan.runs]

    # --- cold ---

    def _cold(self) -> None:
        threads = max(self.plan.threads)
        for name in self.engines:
            for index, said in enumerate(self.utterances):
                subject = next(s for s in SUBJECTS if s not in KINDS[name].unsupported)
                self.listener(f"fresh process: {name}, {said.wanted:g} s")
                record = self._tried(
                    name, f"fresh process, {said.wanted:g} s", lambda n=name, s=subject, i=index: self._fresh(n, s, i, threads)
                )
                self.found.cold += [record] if record else []

    def _fresh(self, name: str, subject: str, index: int, threads: int) -> Cold:
        said = self.utterances[index]
        with self._client(f"{name}-fresh") as client:
            client.open(name, self.files, threads, subject)
            load = client.age
            client.ask("hold", subject, said.windows if subject == WHOLE else self.decoder_inputs[index])
            result = client.ask("run", subject)
            return Cold(name, subject, threads, said.seconds, load, result["seconds"], client.ask("peak_mib"))


def faults_of(said: Utterance, subject: str, result: dict[str, Any]) -> list[str]:
    """What is wrong with a run: other durations than ours, another length, samples that are not finite."""
    faults = []
    if subject == WHOLE:
        got = [np.asarray(d) for d in result["durations"]]
        wrong = [
            f"window {i + 1}: {int((a != b).sum()) if a.shape == b.shape else 'all'} of {len(b)} durations differ from ours"
            for i, (a, b) in enumerate(zip(got, said.durations, strict=True))
            if a.shape != b.shape or (a != b).any()
        ]
        faults += wrong
    if not faults and result["samples"] != said.samples:
        faults.append(f"{result['samples']} samples, expected {said.samples}")
    if not result["finite"]:
        faults.append("samples that are not finite")
    return faults


def _timed(client: Client, subject: str, usual: float) -> dict[str, Any]:
    time.sleep(PAUSE)
    if usual < PRIMED_BELOW:
        client.ask("run", subject)
    return client.ask("run", subject)


def header(weights: Weights, plan: Plan) -> dict[str, str]:
    """What figures cannot be read without."""
    return machine() | {
        "weights": "synthetic" if weights.synthetic else weights.source,
        "method": f"median of {plan.runs} alternating runs after {WARM_UP} to warm up, float32 unless the name says otherwise",
    }


def check_lengths(seconds: Sequence[float], threads: Sequence[int]) -> list[str]:
    """What is wrong with the numbers of a plan."""
    problems = [f"--seconds must lie within 0.3..600, got {s:g}" for s in seconds if not 0.3 <= s <= 600]
    most = environment.cpu_count()
    bad = [t for t in threads if not 1 <= t <= most]
    return problems + [f"--threads must lie within 1..{most} (the CPUs of this process), got {t}" for t in bad]
