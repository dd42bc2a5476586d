"""The kernels of an artifact, one by one: together they are the artifact, and a bad one is found."""

from __future__ import annotations

import pytest
import torch

from kokoro_tvm.errors import ArtifactError, InputError
from kokoro_tvm.reference import components
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.validate.bisect import bisect, component_stage, first_failure
from kokoro_tvm.validate.operators import load_operators
from kokoro_tvm.validate.subjects import Artifact, Build, Rewrite


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.fixture
def kernels(tiny_artifact, tiny32, cache):
    """Of the text encoder and the F0/N predictor; plans are made once."""
    return {name: load_operators(tiny_artifact, name, tiny32, cache) for name in ("text_encoder", "f0n")}


@pytest.fixture(scope="module")
def inputs(tiny32):
    ids = components.token_ids(tiny32, "həlˈO")
    style = components.style_row(synthetic_voice(0), ids)
    en = torch.randn(1, 640, 9, generator=torch.Generator().manual_seed(0)) / 2
    return {"text_encoder": {"input_ids": ids}, "f0n": {"en": en, "prosody": style[:, components.PREDICTOR_STYLE]}}


@pytest.mark.parametrize("name", ["text_encoder", "f0n"])
def test_kernels_put_together_are_the_artifact(tiny_artifact, tiny32, kernels, inputs, name):
    build = Build(Artifact(Engine(tiny_artifact, components=[name])), Rewrite(tiny32, operators=kernels))
    found = build.run(component_stage(name), inputs[name])
    assert build.disagreements == []
    assert len(found) >= 3


@pytest.mark.parametrize("name", ["text_encoder", "f0n"])
def test_healthy_operators_are_within_their_share(tiny64, tiny32, kernels, inputs, name):
    rewrite = Rewrite(tiny32, operators=kernels)
    records = bisect(Rewrite(tiny64), rewrite, kernels[name], component_stage(name), inputs[name])
    assert first_failure(records) is None
    assert all(r.kernels for r in records)


def test_the_first_bad_kernel_is_named(tiny64, tiny32, kernels, inputs):
    """One convolution answers with an error of 1e-4; those behind it, given the reference's inputs, are innocent."""
    operators = kernels["f0n"]
    run = operators._run
    bad = next(s.function for p in operators.plans["conv1d"] for s in p.steps)

    def spoiled(name, arguments, shape):
        result = run(name, arguments, shape)
        if name == bad:
            result *= 1.0001
        return result

    operators._run = spoiled
    rewrite = Rewrite(tiny32, operators=kernels)
    records = bisect(Rewrite(tiny64), rewrite, operators, component_stage("f0n"), inputs["f0n"])
    first = first_failure(records)
    assert first is not None
    assert (first.kernels, first.operator) == ((bad,), "conv1d")
    assert first.place.endswith(("conv1", "shortcut", "conv2"))
    assert all(r.passed for r in records if bad not in r.kernels)


def test_unknown_component_and_operator(kernels):
    with pytest.raises(InputError, match="unknown component 'encoder'; expected one of: bert, duration"):
        component_stage("encoder")
    with pytest.raises(ArtifactError, match="no kernel for conv1d"):
        kernels["f0n"]("conv1d", "{}", [torch.zeros(1, 2, 3)], (1, 2, 3))
