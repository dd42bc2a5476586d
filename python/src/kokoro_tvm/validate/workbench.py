"""What both validators work on: a checkpoint as the reference, a model made from the same checkpoint, and utterances to speak.

What it is: loading, and the check that artifact and reference belong together. What it is not: a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from kokoro_tvm.errors import ArtifactError, InputError, VoiceError
from kokoro_tvm.reference.checkpoint import Checkpoint, build_model, load_checkpoint
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.reference.trace import trace
from kokoro_tvm.runtime.alignment import check_speed
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.runtime.noise import source_noise
from kokoro_tvm.runtime.synthesis import Synthesizer
from kokoro_tvm.runtime.voices import Voice
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate.bisect import OperatorRecord, bisect, component_stage
from kokoro_tvm.validate.operators import Operators, load_operators
from kokoro_tvm.validate.steps import Subjects, Utterance, reference_inputs
from kokoro_tvm.validate.subjects import Artifact, Build, Eager, Rewrite

if TYPE_CHECKING:
    from kokoro_tvm.runtime.onnx_engine import OnnxEngine
    from kokoro_tvm.validate.onnx_operators import OnnxOperators

SYNTHETIC_VOICE = "synthetic:"


@dataclass(frozen=True)
class Workbench:
    """A reference and an artifact, or ONNX files, made from the same weights.

    Attributes:
        checkpoint: The weights.
        synthesizer: With the engine that is judged.
        cache: Folder for what can be kept between runs.
    """

    checkpoint: Checkpoint
    synthesizer: Synthesizer
    cache: Path

    @classmethod
    def open(cls, checkpoint: Path | str | None, engine: Engine | OnnxEngine, cache: Path) -> Workbench:
        """Loads the reference.

        Raises:
            CheckpointError: The checkpoint cannot be read.
            ArtifactError: The engine's model was made from other weights.
        """
        compiled = engine.manifest.checkpoint
        loaded = load_checkpoint(checkpoint, sha256=compiled.sha256)
        if compiled.sha256 != loaded.sha256:
            raise ArtifactError(
                f"{engine.directory} was compiled from {compiled.source} (sha256 {compiled.sha256[:12]}), not from "
                f"{loaded.source} ({loaded.sha256[:12]}): name the checkpoint it was made from, or compile again"
            )
        return cls(loaded, Synthesizer(engine), Path(cache))

    @cached_property
    def double(self) -> Eager:
        """The truth."""
        return Eager(build_model(self.checkpoint, torch.float64))

    @cached_property
    def single(self) -> Eager:
        """The yardstick."""
        return Eager(build_model(self.checkpoint))

    def operators(self, component: str) -> Operators | OnnxOperators:
        """The operators of a component as the engine computes them."""
        engine = self.synthesizer.engine
        if isinstance(engine, Engine):
            return load_operators(engine.directory, component, self.single.model, self.cache)
        from kokoro_tvm.validate.onnx_operators import OnnxOperators

        return OnnxOperators(component, engine.threads)

    def subjects(
        self, listener: Callable[[str], None] | None = None, components: Sequence[str] = tuple(COMPONENTS)
    ) -> Subjects:
        """Everyone who computes stages, those of ``components``, which the engine has."""
        engine = self.synthesizer.engine
        operators = {}
        for name in components:
            if listener:
                listener(f"operators of {name}")
            operators[name] = self.operators(name)
        # ONNX Runtime merges neighbouring operators: put together one by one they give the same but for the last bits.
        build = Build(Artifact(engine), Rewrite(self.single.model, operators=operators), bitwise=isinstance(engine, Engine))
        gpu = isinstance(engine, Engine) and engine.on_gpu
        return Subjects.around(
            self.double, self.single, build, dtype=engine.manifest.dtype, yardstick=not gpu,
            published=self.checkpoint.published and isinstance(engine, Engine) and not gpu,
        )  # fmt: skip

    def bisect(self, component: str, utterance: Utterance) -> list[OperatorRecord]:
        """Every operator of a component on the reference's inputs for an utterance."""
        stage = component_stage(component)
        operators = self.operators(component)
        truth = trace(self.double.model, utterance.input_ids, utterance.style, utterance.noise, utterance.speed)
        inputs = reference_inputs(stage, truth, utterance)
        kernels = Rewrite(self.single.model, operators={component: operators})
        dtype = self.synthesizer.engine.manifest.dtype if COMPONENTS[component].rounds else "float32"
        return bisect(Rewrite(self.double.model), kernels, operators, stage, inputs, dtype)

    def voice(self, specification: str | None) -> Voice:
        """A voice by name or path, or ``synthetic:SEED``; by default one that suits the weights.

        Raises:
            VoiceError: There is no such voice.
        """
        if specification is None:
            specification = f"{SYNTHETIC_VOICE}0" if self.checkpoint.synthetic else "af_heart"
        if not specification.startswith(SYNTHETIC_VOICE):
            return self.synthesizer.voices.load(specification)
        seed = specification.removeprefix(SYNTHETIC_VOICE)
        if not seed.isdecimal():
            raise VoiceError(f"voice {specification!r}: expected {SYNTHETIC_VOICE} and a seed, as in {SYNTHETIC_VOICE}0")
        return Voice.from_array(synthetic_voice(int(seed)).numpy(), specification)

    def utterances(
        self, text: str | None, phonemes: str | None, voice: str | None, speed: float, seed: int = 0, lang: str = "a"
    ) -> list[Utterance]:
        """The windows of a text.

        Raises:
            InputError: Not exactly one of text and phonemes, nothing to speak in it, or a bad speed or seed.
            VoiceError: See ``voice``.
        """
        speed = check_speed(speed)
        source_noise(seed, 0)
        if (text is None) == (phonemes is None):
            raise InputError("give one of --text and --phonemes")
        table = self.voice(voice)
        result = []
        for index, window in enumerate(self.synthesizer.windows(text, phonemes=phonemes, lang=lang)):
            ids = torch.from_numpy(np.asarray(self.synthesizer.vocabulary.encode(window.phonemes).ids, np.int64))[None]
            style = torch.from_numpy(table.row(len(window.phonemes)).copy())[None]
            result.append(Utterance(f"window {index + 1}", window.phonemes, ids, style, speed, seed, index))
        return result
