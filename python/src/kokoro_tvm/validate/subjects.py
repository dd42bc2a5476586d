"""Whoever can compute a stage: eager kokoro, our rewrite, the kernels of an artifact, the artifact.

What it is: adapters with one method, ``run(stage, inputs)``, that take and give tensors by the names and in the layouts of
``reference.trace``, for one utterance, unpadded. What it is not: a comparison (``steps``).

Shape legend: N tokens, M frames, T time rows, C channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from kokoro_tvm.export import ops
from kokoro_tvm.export.modules import COMPONENTS as MODULES
from kokoro_tvm.ops import NAMESPACE
from kokoro_tvm.reference import components as eager
from kokoro_tvm.reference.components import dtype_of
from kokoro_tvm.reference.model import ReferenceModel
from kokoro_tvm.reference.trace import recorded
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate.operators import Compiled, Operators
from kokoro_tvm.validate.tolerances import Stage

if TYPE_CHECKING:
    from kokoro_tvm.runtime.onnx_engine import OnnxEngine
    from kokoro_tvm.validate.onnx_operators import OnnxOperators

Tensors = dict[str, torch.Tensor]
"""By the names of ``reference.trace``, batch of one."""


class Subject(Protocol):
    """Computes stages."""

    def run(self, stage: Stage, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """The tensors that the stage computes from ``inputs`` (by name)."""


def length_of(stage: Stage, inputs: Mapping[str, torch.Tensor]) -> int:
    """Valid tokens or frames of the stage's inputs."""
    return inputs[stage.lengths].shape[-1] // stage.rate


def derived(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """What a compiled kernel computes in one go: ``upsampled.i``, the transposed convolution, reflected, plus the source."""
    names = sorted(n for n in tensors if n.startswith("ups."))
    result = {}
    for name in names:
        index = name.partition(".")[2]
        up, source = tensors[name], tensors[f"noise_res.{index}"]
        up = F.pad(up, (1, 0), mode="reflect") if name == names[-1] else up
        result[f"upsampled.{index}"] = up + source
    return result


class Eager:
    """Eager kokoro, in the dtype of its model: float64 is the truth, float32 the yardstick."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model

    def run(self, stage: Stage, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """See ``Subject``."""
        with recorded(self.model) as inner:
            outputs = getattr(self, f"_{stage.name}")(dict(inputs))
        found = {**inner, **derived(inner), **outputs}
        return {name: found[name] for name in stage.expected(list(found))}

    def _bert(self, x: Tensors) -> Tensors:
        return {"d_en": eager.run_bert(self.model, x["input_ids"])}

    def _duration(self, x: Tensors) -> Tensors:
        return _named(("d", "duration"), eager.run_duration(self.model, x["d_en"], x["prosody"]))

    def _text_encoder(self, x: Tensors) -> Tensors:
        return {"t_en": eager.run_text_encoder(self.model, x["input_ids"])}

    def _f0n(self, x: Tensors) -> Tensors:
        return _named(("f0", "n"), eager.run_f0n(self.model, x["en"], x["prosody"]))

    def _source(self, x: Tensors) -> Tensors:
        return _named(("har_source", "har_magnitude", "har_phase"), eager.run_source(self.model, x["f0"], x["noise"]))

    def _trunk(self, x: Tensors) -> Tensors:
        eager.run_trunk(self.model, x["asr"], x["f0"], x["n"], x["timbre"])
        return {}

    def _generator(self, x: Tensors) -> Tensors:
        har = torch.cat([x["har_magnitude"], x["har_phase"]], dim=1)
        return {"audio": eager.run_generator(self.model, x["x"], x["timbre"], har).reshape(1, -1)}

    def _decoder(self, x: Tensors) -> Tensors:
        return {"audio": eager.run_decoder(self.model, x["asr"], x["f0"], x["n"], x["timbre"], x["noise"]).reshape(1, -1)}


def _named(names: Sequence[str], values: Sequence[torch.Tensor]) -> Tensors:
    return dict(zip(names, values, strict=True))


class Rewrite:
    """The export-ready modules, in the dtype of their model.

    Args:
        model: Where the weights come from.
        spare: Capacity beyond the valid length, as a fraction of it. With lengths it is filled with NaN, which must not matter.
        lengths: False takes every row of the capacity for valid, zeros behind the utterance: what exports without lengths do.
        operators: Component to its compiled operators, which then compute instead of PyTorch (the model has to be float32).
        modules: Those of another rewrite of the same model, to share; making them folds and copies every weight.
    """

    def __init__(
        self,
        model: ReferenceModel,
        spare: float = 0.0,
        lengths: bool = True,
        operators: Mapping[str, Operators | OnnxOperators] | None = None,
        modules: dict[str, nn.Module] | None = None,
    ) -> None:
        self.model = model
        self.spare = spare
        self.lengths = lengths
        self.operators = operators
        self.modules: dict[str, nn.Module] = {} if modules is None else modules

    def module(self, component: str) -> nn.Module:
        """The module of a component, made once."""
        if component not in self.modules:
            self.modules[component] = MODULES[component](self.model).eval()
        return self.modules[component]

    def run(self, stage: Stage, inputs: Mapping[str, torch.Tensor], listener: TorchDispatchMode | None = None) -> Tensors:
        """See ``Subject``; ``listener`` hears of every operator call and its result."""
        length = length_of(stage, inputs)
        capacity = length + int(np.ceil(self.spare * length))
        padded = {name: self._padded(name, tensor, length, capacity) for name, tensor in inputs.items()}
        module = self.module(stage.component)
        with torch.no_grad(), nullcontext() if self.lengths else ops.ignore_lengths(), ExitStack() as stack:
            if self.operators is not None:
                stack.enter_context(Compiled(self.operators[stage.component]))
            if listener is not None:
                stack.enter_context(listener)
            found = stack.enter_context(watched(stage.component, module))
            outputs = getattr(self, f"_{stage.name}")(module, padded, torch.tensor([length]))
        found = {name: cropped(name, tensor, length, capacity) for name, tensor in {**found, **outputs}.items()}
        if "conv_post" in found:
            found |= _halves(found["conv_post"])
        return {name: found[name] for name in stage.expected(list(found))}

    def _padded(self, name: str, tensor: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
        if tensor.is_floating_point():
            tensor = tensor.to(dtype_of(self.model))
        if name in _TIMELESS or capacity == length:
            return tensor.contiguous()
        axis = _time_axis(name, tensor)
        shape = list(tensor.shape)
        factor, edge = divmod(shape[axis], length)
        shape[axis] = factor * capacity + edge
        poison = torch.nan if tensor.is_floating_point() and self.lengths else 0
        buffer = tensor.new_full(shape, poison)
        buffer.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
        return buffer

    def _bert(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        return {"d_en": module(x["input_ids"], lengths)}

    def _duration(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        return _named(("d", "duration"), module(x["d_en"], x["prosody"], lengths))

    def _text_encoder(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        return {"t_en": module(x["input_ids"], lengths)}

    def _f0n(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        return _named(("f0", "n"), module(x["en"], x["prosody"], lengths))

    def _source(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        magnitude, phase = module.source(x["f0"], lengths * 2, x["noise"]).transpose(1, 2).chunk(2, dim=1)
        return {"har_magnitude": magnitude, "har_phase": phase}

    def _trunk(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        module.trunk(x["asr"], x["f0"], x["n"], module.bank(x["timbre"]), lengths)
        return {}

    def _generator(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        har = torch.cat([x["har_magnitude"], x["har_phase"]], dim=1).transpose(1, 2).contiguous()
        rows = x["x"].transpose(1, 2).contiguous()
        affine = module.bank(x["timbre"])
        return {"audio": module.generator(rows, lengths * 2, har, lengths * 120 + 1, affine)}

    def _decoder(self, module: nn.Module, x: Tensors, lengths: torch.Tensor) -> Tensors:
        return {"audio": module(x["asr"], x["f0"], x["n"], x["timbre"], lengths, x["noise"])}


class Artifact:
    """An engine's components, in buffers larger than the utterance that hold NaN behind it.

    Args:
        engine: With all components.
        spare: Capacity beyond the valid length, as a fraction of it.
    """

    def __init__(self, engine: Engine | OnnxEngine, spare: float = 0.25) -> None:
        self.engine = engine
        self.spare = spare

    def run(self, stage: Stage, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """See ``Subject``; for stages that are a whole component."""
        length = length_of(stage, inputs)
        capacity = length + int(np.ceil(self.spare * length))
        results = self.engine.run(stage.component, *component_arrays(stage, inputs, capacity))
        return {
            spec.name: cropped(spec.name, torch.from_numpy(result), length, capacity)
            for spec, result in zip(COMPONENTS[stage.component].outputs, results, strict=True)
        }


def component_arrays(stage: Stage, inputs: Mapping[str, torch.Tensor], capacity: int, stray_id: int = 0) -> list[np.ndarray]:
    """A whole component's arguments, as ``stages`` lists them.

    Args:
        stage: The component's.
        inputs: By name, unpadded.
        capacity: Of the buffers, which hold NaN behind the utterance.
        stray_id: What stands for NaN among token ids.
    """
    component = COMPONENTS[stage.component]
    style = inputs.get("prosody", inputs.get("timbre"))
    values = {**inputs, "style": style, component.lengths: torch.tensor([length_of(stage, inputs)])}
    arrays = []
    for spec in component.inputs:
        value = values[spec.name].numpy().astype(spec.dtype)
        buffer = np.full(spec.resolve(B=1, N=capacity, M=capacity), stray_id if spec.dtype == "int64" else np.nan, spec.dtype)
        buffer[tuple(slice(n) for n in value.shape)] = value
        arrays.append(buffer)
    return arrays


class Build:
    """An artifact seen from outside and inside: its components' outputs, and its kernels' inner tensors.

    Args:
        artifact: From outside.
        kernels: From inside.
        bitwise: Whether the kernels, put together, have to give the component's result bit for bit.

    Attributes:
        disagreements: Outputs for which they did not.
    """

    def __init__(self, artifact: Subject, kernels: Subject, bitwise: bool = True) -> None:
        self.artifact = artifact
        self.kernels = kernels
        self.bitwise = bitwise
        self.disagreements: list[str] = []

    def run(self, stage: Stage, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """See ``Subject``."""
        inner = self.kernels.run(stage, inputs)
        if stage.name != stage.component:
            return inner
        outputs = self.artifact.run(stage, inputs)
        if not self.bitwise:
            return {**inner, **outputs}
        self.disagreements += [f"{stage.name}: {n}" for n, value in outputs.items() if not _identical(value, inner.get(n))]
        return {**inner, **outputs}


def _identical(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


_ROWS = ("bert", "noise", "d", "*.lstm*", "*.norm.*", "f0n.shared")
"""Tensors [1, T, C]; the others of three axes are [1, C, T]."""
_TIMELESS = ("prosody", "timbre")


def _time_axis(name: str, tensor: torch.Tensor) -> int:
    return 1 if tensor.dim() == 2 or any(fnmatchcase(name, pattern) for pattern in _ROWS) else 2


def cropped(name: str, tensor: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    """The part of ``length``: ``k * capacity + r`` entries in time become ``k * length + r``; what has no time stays as it is."""
    if name in _TIMELESS or capacity == length:
        return tensor
    axis = _time_axis(name, tensor)
    factor, edge = divmod(tensor.shape[axis], capacity)
    return tensor.narrow(axis, 0, min(factor * length + edge, tensor.shape[axis]))


def _halves(conv_post: torch.Tensor) -> Tensors:
    magnitude, phase = conv_post.chunk(2, dim=1)
    return {"spectrum": torch.exp(magnitude), "phase": torch.sin(phase)}


# Reading the rewrite's inner tensors: outputs of its modules by hooks, results of its operators by a dispatch mode.

View = Callable[[Any], torch.Tensor]


@contextmanager
def watched(component: str, module: nn.Module) -> Iterator[Tensors]:
    """Keeps the inner tensors that ``module`` computes while the body runs, by the names of ``reference.trace``."""
    found: Tensors = {}
    with ExitStack() as stack:
        stack.enter_context(_OperatorResults(_RESULTS.get(component, {}), found))
        for name, inner, view in _outputs(component, module):

            def keep(_: nn.Module, args: Any, out: Any, name: str = name, view: View = view) -> None:
                found[name] = view(out)

            stack.callback(inner.register_forward_hook(keep).remove)
        yield found


class _OperatorResults(TorchDispatchMode):
    """Keeps the results of some operators, numbered in the order of their calls."""

    def __init__(self, names: Mapping[str, tuple[str, View]], found: Tensors) -> None:
        super().__init__()
        self.names = names
        self.found = found
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func._schema.name.partition("::")[2]
        if operator in self.names and func.namespace == NAMESPACE:
            name, view = self.names[operator]
            self.found[name.format(self.count[operator])] = view(result)
            self.count[operator] += 1
        return result


def _rows(out: torch.Tensor) -> torch.Tensor:
    return out


def _sums(out: torch.Tensor) -> torch.Tensor:
    return out.double().sum(dim=-1)


def _columns(out: torch.Tensor) -> torch.Tensor:
    return out.transpose(1, 2)


def _first_columns(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].transpose(1, 2)


_RESULTS: dict[str, dict[str, tuple[str, View]]] = {
    "bert": {"layer_norm": ("bert", _rows)},  # overwritten by each: the last one stays
    "duration": {"ada_layer_norm": ("duration_encoder.norm.{}", lambda out: out[..., : -eager.DECODER_STYLE.stop])},
    "text_encoder": {"layer_norm": ("text_encoder.cnn.{}", _columns)},
    "decoder": {"harmonic_source": ("har_source", _sums), "conv_transpose1d": ("upsampled.{}", _columns)},
}
"""Component to operator to the name of its results."""


def _outputs(component: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, View]]:
    if component == "duration":
        for i, lstm in enumerate(module.lstms):
            yield f"duration_encoder.lstm.{i}", lstm, _rows
        yield "duration.lstm", module.lstm, _rows
    elif component == "text_encoder":
        yield "text_encoder.lstm", module.lstm, _rows
    elif component == "f0n":
        yield "f0n.shared", module.shared, _rows
        for name in ("f0", "n"):
            for i, block in enumerate(getattr(module, name)):
                yield f"f0n.{name}.{i}", block, _first_columns
    elif component == "decoder":
        yield from _decoder_outputs(module)


def _decoder_outputs(module: nn.Module) -> Iterator[tuple[str, nn.Module, View]]:
    yield "decoder.f0", module.f0_conv, _columns
    yield "decoder.n", module.n_conv, _columns
    yield "decoder.encode", module.encode, _first_columns
    yield "decoder.asr_res", module.asr_res, _columns
    for i, block in enumerate(module.decode):
        yield f"decoder.decode.{i}", block, _first_columns
    generator = module.generator
    for i in range(len(generator.up_steps)):
        yield f"noise_conv.{i}", generator.noise_convs[i], _columns
        yield f"noise_res.{i}", generator.noise_blocks[i], _columns
        # The last block of a stage adds up the others and divides.
        yield f"resblocks.{i}", generator.blocks[(i + 1) * generator.kernels - 1], _columns
    yield "conv_post", generator.post, _columns
