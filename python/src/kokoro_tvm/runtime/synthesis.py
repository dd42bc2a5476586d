"""Text to speech with an artifact.

What it is: the order of the stages, and the API that users call: ``load(artifact).synthesize(text, voice=…)``.
What it is not: any one of them; see ``text``, ``engine``, ``alignment`` and the other modules of the runtime.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kokoro_tvm.artifact import aligned_empty
from kokoro_tvm.config import SAMPLE_RATE, SAMPLES_PER_FRAME
from kokoro_tvm.errors import CapacityError, InputError
from kokoro_tvm.runtime import alignment
from kokoro_tvm.runtime.audio import concatenate
from kokoro_tvm.runtime.backends import open_engine
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.runtime.noise import source_noise
from kokoro_tvm.runtime.text import windows
from kokoro_tvm.runtime.text.g2p import G2P, language_of
from kokoro_tvm.runtime.text.timestamps import WordTimestamp, word_timestamps
from kokoro_tvm.runtime.text.vocabulary import Vocabulary
from kokoro_tvm.runtime.text.windows import Window
from kokoro_tvm.runtime.voices import Voice, VoiceStore
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.runtime.onnx_engine import OnnxEngine

MARKERS = 2
"""The begin and end tokens around the phonemes of a window."""


@dataclass(frozen=True)
class Utterance:
    """One window, rendered.

    Attributes:
        samples: float32 [600 * sum of durations], 24 kHz.
        durations: int64 [N], frames per token, begin and end markers included.
        stages: Every intermediate tensor by its name in ``stages``, batch of one, unpadded.
    """

    samples: np.ndarray
    durations: np.ndarray
    stages: dict[str, np.ndarray] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Speech:
    """Speech for a text.

    Attributes:
        samples: float32 [T], mono.
        sample_rate: 24000.
        phonemes: What was spoken, windows joined by a space.
        durations: int64, frames per token of every window, markers included.
        words: Start and end of every word in seconds.
        dropped: Symbols that the model does not know and that were left out.
        windows: Number of windows the text was split into.
    """

    samples: np.ndarray
    sample_rate: int
    phonemes: str
    durations: np.ndarray
    words: tuple[WordTimestamp, ...] = ()
    dropped: str = ""
    windows: int = 1

    @property
    def seconds(self) -> float:
        """Length of the audio."""
        return len(self.samples) / self.sample_rate


def load(artifact: Path | str, threads: int | None = None, voices: Sequence[Path | str] = ()) -> Synthesizer:
    """Loads an artifact for synthesis.

    Args:
        artifact: The folder made by ``kokoro-tvm compile`` or ``scripts/compile_onnx.py``.
        threads: Threads per call; all CPUs if None. The samples do not depend on it.
        voices: Folders to look up voices in by name.

    Raises:
        ArtifactError: It is missing, damaged, incomplete or for another machine.
    """
    return Synthesizer(Engine(artifact, threads, components=tuple(COMPONENTS)), voices)


def load_onnx(directory: Path | str, threads: int | None = None, voices: Sequence[Path | str] = ()) -> Synthesizer:
    """Loads the components' ONNX files for synthesis with ONNX Runtime.

    Args:
        directory: The folder made by ``kokoro-tvm export --format onnx``.
        threads: Threads per call; all CPUs if None.
        voices: Folders to look up voices in by name.

    Raises:
        OnnxError: Files are missing, damaged or of another layout.
        ToolchainError: ONNX Runtime is not installed.
    """
    return Synthesizer(open_engine("onnxruntime", "", directory, threads, tuple(COMPONENTS)), voices)


class Synthesizer:
    """Speaks with one artifact, or one folder of ONNX files; safe to call from several threads at once.

    Args:
        engine: An engine with all five components.
        voices: Folders to look up voices in by name.
    """

    def __init__(self, engine: Engine | OnnxEngine, voices: Sequence[Path | str] = ()) -> None:
        self.engine = engine
        self.vocabulary = Vocabulary(engine.manifest.model.vocab)
        self.voices = VoiceStore([Path(v) for v in voices])
        self._g2p: dict[tuple[str, str], G2P] = {}
        self._lock = threading.Lock()

    @property
    def synthetic(self) -> bool:
        """Whether the weights are a synthetic checkpoint, so that what comes out is not speech."""
        return self.engine.manifest.checkpoint.synthetic

    def g2p(self, lang: str = "a", backend: str = "auto") -> G2P:
        """The converter for a language, made once."""
        with self._lock:
            if (lang, backend) not in self._g2p:
                self._g2p[lang, backend] = G2P(lang, backend)
            return self._g2p[lang, backend]

    def windows(
        self, text: str | None = None, *, phonemes: str | None = None, lang: str = "a", g2p: str = "auto"
    ) -> list[Window]:
        """Splits a text, or phonemes given directly, into windows that fit the artifact.

        Args:
            text: The text; or give ``phonemes``.
            phonemes: Phonemes instead of a text.
            lang: Language code (a, b, e, f, h, i, j, p, z) or its alias.
            g2p: How the text becomes phonemes, see ``text.g2p.G2P``.

        Raises:
            InputError: Not exactly one of the two is given, or nothing pronounceable is in it.
        """
        if (text is None) == (phonemes is None):
            raise InputError("give either a text or phonemes")
        source = text if phonemes is None else phonemes
        if not isinstance(source, str):
            raise InputError(f"text must be a string, got {type(source).__name__}")
        if not source.strip():
            raise InputError("the text is empty")
        limit = min(windows.LONGEST, self.engine.manifest.seq_len - MARKERS)
        found: list[Window] = []
        for paragraph in windows.paragraphs(source):
            tokens = windows.phoneme_tokens(paragraph) if text is None else self.g2p(lang, g2p)(paragraph)
            found += windows.split(tokens, limit)
        found = [w for w in found if any(p in self.vocabulary and not p.isspace() for p in w.phonemes)]
        if not found:
            raise InputError("nothing to speak: the text has no symbol that the model knows")
        return found

    def synthesize(
        self,
        text: str | None = None,
        *,
        voice: str | Voice | np.ndarray,
        speed: float = 1.0,
        seed: int = 0,
        lang: str | None = None,
        phonemes: str | None = None,
        g2p: str = "auto",
    ) -> Speech:
        """Speaks a text of any length.

        Args:
            text: The text; or give ``phonemes``.
            voice: A name, a path, a blend such as ``"af_heart:0.7,af_bella:0.3"``, or a table float32 [510, 1, 256].
            speed: 1 is the voice's own; 2 is twice as fast.
            seed: Of the noise in the source; the same seed gives the same samples.
            lang: Language code (a, b, e, f, h, i, j, p, z) or its alias; if None, the one that the voice's name begins with.
            phonemes: Phonemes instead of a text.
            g2p: How the text becomes phonemes, see ``text.g2p.G2P``.

        Raises:
            InputError: The text, the speed or the seed cannot be used.
            VoiceError: The voice cannot be used.
            CapacityError: A window lasts longer than the artifact's capacity allows.
        """
        pieces = list(self.stream(text, voice=voice, speed=speed, seed=seed, lang=lang, phonemes=phonemes, g2p=g2p))
        words, start = [], 0.0
        for piece in pieces:
            words += [replace(w, start=w.start + start, end=w.end + start) for w in piece.words]
            start += piece.seconds
        return Speech(
            samples=concatenate([p.samples for p in pieces]),
            sample_rate=SAMPLE_RATE,
            phonemes=" ".join(p.phonemes for p in pieces),
            durations=np.concatenate([p.durations for p in pieces]),
            words=tuple(words),
            dropped="".join(dict.fromkeys("".join(p.dropped for p in pieces))),
            windows=len(pieces),
        )

    def stream(
        self,
        text: str | None = None,
        *,
        voice: str | Voice | np.ndarray,
        speed: float = 1.0,
        seed: int = 0,
        lang: str | None = None,
        phonemes: str | None = None,
        g2p: str = "auto",
    ) -> Iterator[Speech]:
        """Like ``synthesize``, one window at a time; their concatenation is what ``synthesize`` returns."""
        speed = alignment.check_speed(speed)
        source_noise(seed, 0)
        table = self.voices.load(voice)
        lang = lang or language_of(table.name) or "a"
        for index, window in enumerate(self.windows(text, phonemes=phonemes, lang=lang, g2p=g2p)):
            encoded = self.vocabulary.encode(window.phonemes)
            decoder_style, prosody_style = table.style(len(window.phonemes))
            utterance = self.render(encoded.ids, decoder_style, prosody_style, speed=speed, seed=seed, window=index)
            yield Speech(
                samples=utterance.samples,
                sample_rate=SAMPLE_RATE,
                phonemes=window.phonemes,
                durations=utterance.durations,
                words=tuple(word_timestamps(window.tokens, utterance.durations, self.vocabulary)),
                dropped=encoded.dropped,
            )

    def render(
        self,
        input_ids: np.ndarray,
        decoder_style: np.ndarray,
        prosody_style: np.ndarray,
        *,
        speed: float = 1.0,
        seed: int = 0,
        window: int = 0,
        noise: np.ndarray | None = None,
    ) -> Utterance:
        """Runs the five components for one window.

        Args:
            input_ids: int64 [N], markers included.
            decoder_style: float32 [128].
            prosody_style: float32 [128].
            speed: See ``synthesize``.
            seed: See ``synthesize``.
            window: Index of the window in its text, which gives it noise of its own.
            noise: float32 [600 * frames or more, 9] instead of a seed.
        """
        run = self.engine.run
        ids = np.ascontiguousarray(input_ids, np.int64)[None]
        lengths = np.array([ids.shape[1]])
        style = np.ascontiguousarray(prosody_style, np.float32)[None]
        (d_en,) = run("bert", ids, lengths)
        d, duration = run("duration", d_en, style, lengths)
        pred_dur = alignment.frame_counts(duration[0], speed)
        frames = int(pred_dur.sum())
        if frames > self.engine.manifest.aligned_len:
            raise CapacityError(
                f"this window lasts {frames} frames ({frames / 40:.1f} s), the artifact's capacity is "
                f"{self.engine.manifest.aligned_len}; compile with a larger --aligned-len, or speak faster"
            )
        frame_lengths = np.array([frames])
        en = alignment.expand(d[0].T, pred_dur)[None]
        f0, n = run("f0n", en, style, frame_lengths)
        (t_en,) = run("text_encoder", ids, lengths)
        asr = alignment.expand(t_en[0], pred_dur)[None]
        injected = self._noise(noise, seed, frames, window)
        timbre = np.ascontiguousarray(decoder_style, np.float32)[None]
        (audio,) = run("decoder", asr, f0, n, timbre, frame_lengths, injected)
        if not np.isfinite(audio).all():
            raise RuntimeError("the decoder produced samples that are not finite; this is a bug or a broken checkpoint")
        stages = {
            "d_en": d_en, "d": d, "duration": duration, "en": en, "f0": f0, "n": n, "t_en": t_en, "asr": asr, "noise": injected,
            "audio": audio,
        }  # fmt: skip
        return Utterance(audio[0, : frames * SAMPLES_PER_FRAME], pred_dur, stages)

    @staticmethod
    def _noise(noise: np.ndarray | None, seed: int, frames: int, window: int) -> np.ndarray:
        count = frames * SAMPLES_PER_FRAME
        if noise is None:
            noise = source_noise(seed, frames, window=window)
        elif noise.ndim != 2 or len(noise) < count:
            raise InputError(f"noise must have shape [at least {count}, 9], got {list(noise.shape)}")
        buffer = aligned_empty((1, count, noise.shape[1]), np.float32)
        buffer[0] = noise[:count]
        return buffer
