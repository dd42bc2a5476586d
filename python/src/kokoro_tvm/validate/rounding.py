"""What float16 products cost, where no device that multiplies them is at hand.

What it is: eager kokoro whose decoder rounds what the compiled decoder for Metal rounds with ``--dtype fp16``, the two factors of
each convolution with at least 64 channels on both sides, and nothing else: sums are those of the model's own dtype, float64.
What it is not: Metal. Its float32 sums and functions, which cost far less than eleven bits do, are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kokoro_tvm.reference.model import ReferenceModel

NARROW = 64
"""Convolutions with fewer channels on a side multiply float32 (``kernels.metal.conv1d.rounds``)."""
LARGEST = 65504.0
"""Of float16; what is larger becomes this."""


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Values as float16 has them, in their own dtype."""
    return values.clamp(-LARGEST, LARGEST).half().to(values.dtype)


class _Products(TorchFunctionMode):
    """Rounds the factors of convolutions while ``active``."""

    active = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.active and func in (torch.conv1d, torch.conv_transpose1d):
            x, weight, *others = args
            if min(weight.shape[:2]) >= NARROW:
                args = (rounded(x), rounded(weight), *others)
        return func(*args, **(kwargs or {}))


@contextmanager
def half_products(model: ReferenceModel) -> Iterator[None]:
    """Within, the model's decoder multiplies float16."""
    products = _Products()

    def switch(on: bool) -> Any:
        def hook(*_: Any) -> None:
            products.active = on

        return hook

    hooks = [model.decoder.register_forward_pre_hook(switch(True)), model.decoder.register_forward_hook(switch(False))]
    try:
        with products:
            yield
    finally:
        for hook in hooks:
            hook.remove()
