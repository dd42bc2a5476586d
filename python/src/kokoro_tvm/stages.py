"""The vocabulary of the pipeline: its five components, their tensors and their order.

What it is: names, dtypes and symbolic shapes that exporter, compiler, runtime and validators share; a leaf that imports
nothing of the project. What it is not: code that computes a stage.

Shape legend: B batch, N tokens, M duration frames. A capacity may be larger than the valid length; lengths say what is
valid. Weights are not listed: they follow the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dim = int | str
"""A fixed extent, or an expression of ``B``, ``N`` and ``M`` such as ``"600*M"``."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: its name, dtype and symbolic shape."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    def resolve(self, **extents: int) -> tuple[int, ...]:
        """The shape with ``B``, ``N`` and ``M`` replaced by ``extents``.

        Raises:
            KeyError: An extent that the shape needs is missing.
        """
        return tuple(_resolve(d, extents) for d in self.shape)


@dataclass(frozen=True)
class Component:
    """One compiled function.

    Attributes:
        name: Its name.
        inputs: In call order.
        outputs: In order.
        lengths: The input that holds the valid lengths.
        capacity: The symbol of the axis they refer to.
        accumulate: How its matrix products are summed up. The phase of the harmonic source is the integral of F0: what rounding
            leaves in F0 grows with every frame until it can be heard. So in all that F0 depends on, a few percent of the
            arithmetic, sums carry along what they round off.
        rounds: Whether ``--dtype`` applies: its convolutions may multiply bfloat16 or float16. What decides durations and F0 may
            not.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    lengths: str
    capacity: str
    accumulate: Literal["float32", "compensated"] = "float32"
    rounds: bool = False


def _resolve(dim: Dim, extents: dict[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    factor, _, symbol = dim.rpartition("*")
    return (int(factor) if factor else 1) * extents[symbol]


_IDS = TensorSpec("input_ids", "int64", ("B", "N"))
_LENGTHS = TensorSpec("lengths", "int64", ("B",))
_FRAMES = TensorSpec("frame_lengths", "int64", ("B",))
_STYLE = TensorSpec("style", "float32", ("B", 128))
_F0 = TensorSpec("f0", "float32", ("B", "2*M"))
_N = TensorSpec("n", "float32", ("B", "2*M"))

COMPONENTS: dict[str, Component] = {
    c.name: c
    for c in (
        Component("bert", (_IDS, _LENGTHS), (TensorSpec("d_en", "float32", ("B", 512, "N")),), "lengths", "N", "compensated"),
        Component(
            "duration",
            (TensorSpec("d_en", "float32", ("B", 512, "N")), _STYLE, _LENGTHS),
            (TensorSpec("d", "float32", ("B", "N", 640)), TensorSpec("duration", "float32", ("B", "N"))),
            "lengths",
            "N",
            "compensated",
        ),
        Component("text_encoder", (_IDS, _LENGTHS), (TensorSpec("t_en", "float32", ("B", 512, "N")),), "lengths", "N"),
        Component(
            "f0n",
            (TensorSpec("en", "float32", ("B", 640, "M")), _STYLE, _FRAMES),
            (_F0, _N),
            "frame_lengths",
            "M",
            "compensated",
        ),
        Component(
            "decoder",
            (
                TensorSpec("asr", "float32", ("B", 512, "M")),
                _F0,
                _N,
                _STYLE,
                _FRAMES,
                TensorSpec("noise", "float32", ("B", "600*M", 9)),
            ),
            (TensorSpec("audio", "float32", ("B", "600*M")),),
            "frame_lengths",
            "M",
            rounds=True,
        ),
    )
}
"""In pipeline order. ``duration`` is the sum of sigmoids before dividing by the speed and before rounding."""

ENCODERS = ("bert", "duration", "text_encoder", "f0n")
"""The components that ``port_encoder`` compiles."""
