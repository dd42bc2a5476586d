"""Comparisons made up by hand, for what only shows figures."""

from __future__ import annotations

import pytest

from kokoro_tvm.bench.report import Cold, Comparison, Problem, Spoken, Timing


@pytest.fixture
def found() -> Comparison:
    """Two engines at two lengths, one of them without the whole model."""

    def timing(engine: str, subject: str, wanted: float, *seconds: float) -> Timing:
        return Timing(engine, subject, 2, wanted, wanted + 0.1, seconds, tuple(s / 2 for s in seconds), 0.05, (9.0, 1.0))

    return Comparison(
        {"cpu": "made up", "weights": "synthetic"},
        [
            timing("kokoro-tvm", "whole", 0.9, 0.1, 0.3, 0.2),
            timing("onnxruntime", "whole", 0.9, 0.5, 0.6, 0.4),
            timing("kokoro-tvm", "decoder", 0.9, 0.2, 0.2, 0.2),
            timing("openvino", "decoder", 0.9, 0.1, 0.1, 0.1),
            timing("kokoro-tvm", "decoder", 2.9, 0.6, 0.6, 0.6),
        ],
        [Cold("kokoro-tvm", "whole", 2, 1.0, 0.25, 0.5, 321.0)],
        [Spoken("kokoro-tvm", 2, "Hello world", (0.1, 0.2, 0.3)), Spoken("onnxruntime", 2, "Hello world", (0.5,))],
        {"kokoro-tvm": 61.4},
        [Problem("openvino", "whole", "cannot | import", known=True)],
    )
