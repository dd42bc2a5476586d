"""The kernels of a compiled component, one by one, and a mode that makes the rewrite run on them.

What it is: the way to see inside an artifact. The same modules (``export.modules``) that were exported run in PyTorch, but every
operator is answered by the kernels of the artifact's own library that the pipeline chose for it. So each inner tensor can be
read, and each kernel can be fed the reference's inputs. Put together again, the operators have to give the component's output
bit for bit; the validators check that, so that what they say of the kernels holds for the artifact.
What it is not: a second pipeline (the plan comes from the one pass that lowers operators), or fast.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tvm_ffi
from torch.utils._python_dispatch import TorchDispatchMode

from kokoro_tvm import environment
from kokoro_tvm.artifact import Manifest, aligned_empty, read_manifest, staged
from kokoro_tvm.errors import ArtifactError
from kokoro_tvm.ops import NAMESPACE, SHAPES

if TYPE_CHECKING:
    from kokoro.model import KModel
    from tvm import relax

    from kokoro_tvm.kernels.selection import Tile
    from kokoro_tvm.runtime.device import Device
    from kokoro_tvm.validate.onnx_operators import OnnxOperators

Reference = list[Any]
"""``["tensor", i]``: an argument of the operator; ``["step", i]``: an earlier step's result; ``["value", v]``: a number."""


@dataclass(frozen=True)
class Step:
    """One call of a plan.

    Attributes:
        function: A kernel of the library, a global function (with a dot), or ``add`` and ``reshape``.
        arguments: See ``Reference``.
        layouts: Layout of each argument in ``kernels.packing``; None for those taken as they are.
        shape: Of the result; an extent is a number or ``[tensor, axis]``. None for the operator's own shape.
    """

    function: str
    arguments: list[Reference]
    layouts: list[str | None]
    shape: list[Any] | None


@dataclass(frozen=True)
class Plan:
    """How a component computes one operator.

    Attributes:
        operator: Its name in ``kokoro_tvm.ops``.
        attributes: JSON of every argument that is no tensor, as exported programs carry it.
        shapes: Of the tensor arguments; None where the extent is any.
        steps: The calls; the last one's result is the operator's.
    """

    operator: str
    attributes: str
    shapes: list[list[int | None]]
    steps: list[Step]

    def accepts(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the kernels were made for tensors of these shapes."""
        return len(tensors) == len(self.shapes) and all(
            t.dim() == len(shape) and all(e in (None, n) for e, n in zip(shape, t.shape, strict=True))
            for t, shape in zip(tensors, self.shapes, strict=True)
        )


@dataclass
class Operators:
    """One component's operators on its own kernels.

    Attributes:
        component: Its name.
        library: The component's machine code.
        tile: The tile its weights are packed for.
        device: Where it runs.
        plans: Operator to the plans of its specialisations.
        used: Names of the kernels called, in order, since it was last cleared.
    """

    component: str
    library: tvm_ffi.Module
    tile: Tile
    device: Device
    plans: dict[str, list[Plan]]
    used: list[str] = field(default_factory=list)
    _packed: dict[tuple[int, str], tuple[torch.Tensor, tvm_ffi.Tensor]] = field(default_factory=dict, repr=False)

    def plan(self, operator: str, attributes: str, tensors: Sequence[torch.Tensor]) -> Plan:
        """The plan for a call.

        Raises:
            ArtifactError: The component has no such operator: it was compiled from other sources.
        """
        for plan in self.plans.get(operator, ()):
            if plan.attributes == attributes and plan.accepts(tensors):
                return plan
        raise ArtifactError(f"{self.component}: no kernel for {operator} {attributes} on {[list(t.shape) for t in tensors]}")

    def __call__(self, operator: str, attributes: str, tensors: Sequence[torch.Tensor], out: Sequence[int]) -> torch.Tensor:
        """Runs one operator on float32 and int64 tensors; ``out`` is the shape of its result."""
        results: list[np.ndarray] = []
        for step in self.plan(operator, attributes, tensors).steps:
            arguments = [
                self._argument(reference, layout, tensors, results)
                for reference, layout in zip(step.arguments, step.layouts, strict=True)
            ]
            shape = out if step.shape is None else [tensors[e[0]].shape[e[1]] if isinstance(e, list) else e for e in step.shape]
            results.append(self._run(step.function, arguments, shape))
        return torch.from_numpy(results[-1])

    def _argument(self, reference: Reference, layout: str | None, tensors: Sequence[torch.Tensor], results: list[Any]) -> Any:
        kind, value = reference
        if kind == "value":
            return value
        if kind == "step":
            return results[value]
        return self._weight(tensors[value], layout) if layout else tensors[value].numpy()

    def _weight(self, tensor: torch.Tensor, layout: str) -> tvm_ffi.Tensor:
        """A weight in its layout, packed once; the tensor is kept so that its address stays its own."""
        from kokoro_tvm.kernels.packing import pack

        key = (tensor.data_ptr(), layout)
        if key not in self._packed:
            self._packed[key] = (tensor, self.device.put(pack(layout, tensor.numpy(), self.tile)))
        return self._packed[key][1]

    def _run(self, name: str, arguments: list[Any], shape: Sequence[int]) -> np.ndarray:
        if name == "add":
            return arguments[0] + arguments[1]
        if name == "reshape":
            return arguments[0].reshape(shape)
        self.used.append(name)
        result = self.device.put(aligned_empty(tuple(shape), np.float32))
        function = tvm_ffi.get_global_func(name) if "." in name else self.library.get_function(name)
        function(*(self.device.put(a) if isinstance(a, np.ndarray) else a for a in arguments), result)
        return self.device.get(result)


class Compiled(TorchDispatchMode):
    """While active, the rewrite's operators are answered by compiled kernels. The modules have to be float32."""

    def __init__(self, operators: Operators | OnnxOperators) -> None:
        super().__init__()
        self.operators = operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        call = operator_call(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if call is None else self.operators(*call)


def operator_call(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str, list[torch.Tensor], tuple[int, ...]] | None:
    """A dispatched call as operator, attributes, tensors and shape of the result; None if it is no operator of ours."""
    schema = func._schema
    namespace, _, name = schema.name.partition("::")
    if namespace != NAMESPACE:
        return None
    values = dict(zip((a.name for a in schema.arguments), args, strict=False)) | dict(kwargs)
    attributes: dict[str, Any] = {"absent": []}
    shapes: dict[str, Any] = {}
    tensors: list[torch.Tensor] = []
    for argument in schema.arguments:
        value = values.get(argument.name)
        if value is None:
            attributes["absent"].append(argument.name)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
            shapes[argument.name] = tuple(value.shape)
        elif isinstance(value, list | tuple):
            tensors.extend(value)
            shapes[argument.name] = [tuple(v.shape) for v in value]
        else:
            attributes[argument.name] = value
    return name, json.dumps(attributes), tensors, SHAPES[name](**shapes, **attributes)


def load_operators(directory: Path | str, component: str, model: KModel, cache: Path | None = None) -> Operators:
    """The operators of one component of an artifact.

    Args:
        directory: The artifact.
        component: Its name.
        model: Float32 model of the artifact's configuration; only read where the plan has to be made.
        cache: Folder to keep plans in; making one exports and lowers the component again, which takes seconds.

    Raises:
        ArtifactError: The component is not there.
    """
    from kokoro_tvm import native
    from kokoro_tvm.runtime.device import device_of
    from kokoro_tvm.runtime.engine import load_tvm_runtime

    environment.prepare_thread_pool()
    directory = Path(directory)
    manifest = read_manifest(directory)
    if component not in manifest.components:
        raise ArtifactError(f"{directory} lacks {component}; compile it into it")
    tile = _tile(manifest)
    if manifest.tuning != tile.tuning:
        raise ArtifactError(f"{directory} was compiled with other tuning records than are there now; compile it again")
    native.load_externs()
    executable = tvm_ffi.load_module(str(directory / manifest.components[component].library.name))
    device = device_of(manifest.target.name, load_tvm_runtime().parent)
    return Operators(component, executable.imports[0], tile, device, _plans(manifest, component, model, cache))


def _tile(manifest: Manifest) -> Tile:
    from kokoro_tvm.targets import recorded_target

    return recorded_target(manifest.target.name, manifest.target.mcpu, manifest.target.system).tile


def _plans(manifest: Manifest, component: str, model: KModel, cache: Path | None) -> dict[str, list[Plan]]:
    path = cache / f"{component}-{_key(manifest, component)}.json" if cache else None
    if path and path.is_file():
        raw = json.loads(path.read_text(encoding="utf-8"))
        plans = [Plan(p["operator"], p["attributes"], p["shapes"], [Step(**s) for s in p["steps"]]) for p in raw]
    else:
        made = _make_plans(manifest, component, model)
        plans = made[component]
        for name, theirs in made.items() if cache else ():
            with staged(cache / f"{name}-{_key(manifest, name)}.json") as temporary:
                temporary.write_text(json.dumps([asdict(p) for p in theirs]), encoding="utf-8")
    result: dict[str, list[Plan]] = {}
    for plan in plans:
        result.setdefault(plan.operator, []).append(plan)
    return result


def _key(manifest: Manifest, component: str) -> str:
    """Plans belong to one library."""
    return hashlib.sha256(manifest.components[component].library.sha256.encode()).hexdigest()[:12]


def _make_plans(manifest: Manifest, component: str, model: KModel) -> dict[str, list[Plan]]:
    """Plans of a component, and of those compiled into the same library: they share kernels, whose names number them all."""
    import tvm

    from kokoro_tvm.export.program import export_program, to_relax
    from kokoro_tvm.passes.lower_operators import LowerOperators

    library = manifest.components[component].library.name
    together = [name for name, record in manifest.components.items() if record.library.name == library]
    exported = tvm.IRModule({name: to_relax(name, export_program(name, model)).module[name] for name in together})
    lowered = LowerOperators(_tile(manifest), manifest.lstm_method, manifest.dtype)(exported)
    return {name: _component_plans(exported[name], lowered[name]) for name in together}


def _component_plans(exported: relax.Function, lowered: relax.Function) -> list[Plan]:
    from kokoro_tvm.passes.lower_operators import PACKING

    layouts = json.loads(lowered.attrs[PACKING])
    steps = _bindings(lowered)
    plans: dict[tuple[Any, ...], Plan] = {}
    for binding in _bindings(exported):
        group = []
        while not group or group[-1].var.name != binding.var.name:
            group.append(steps.pop(0))
        if _called(binding.value) == "call_dps_packed":
            plan = _plan(binding.value, group, layouts)
            plans.setdefault((plan.operator, plan.attributes, str(plan.shapes)), plan)
    return list(plans.values())


def _bindings(function: relax.Function) -> list[relax.VarBinding]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _called(value: relax.Expr) -> str:
    """``call_tir`` for ``relax.call_tir(…)``; empty for anything that calls no operator."""
    return str(getattr(getattr(value, "op", None), "name", "")).removeprefix("relax.")


def _plan(call: relax.Call, group: Sequence[relax.VarBinding], layouts: Mapping[str, str]) -> Plan:
    """``call`` of an exported program, and the bindings it was lowered to."""
    *tensors, attributes = call.args[1].fields
    names: dict[str, Reference] = {t.name: ["tensor", i] for i, t in reversed(list(enumerate(tensors)))}
    extents = _extents(tensors)
    steps: list[Step] = []
    for index, binding in enumerate(group):
        function, arguments = _function(binding.value)
        references = [names[a.name] if hasattr(a, "name") else ["value", int(a.value)] for a in arguments]
        own = index + 1 == len(group)
        shape = None if own else [int(d.value) if hasattr(d, "value") else extents[str(d)] for d in _shape(binding.var)]
        steps.append(Step(function, references, [layouts.get(getattr(a, "name", "")) for a in arguments], shape))
        names[binding.var.name] = ["step", index]
    shapes = [[int(d.value) if hasattr(d, "value") else None for d in _shape(t)] for t in tensors]
    operator = str(call.args[0].global_symbol).removeprefix(f"{NAMESPACE}.")
    return Plan(operator, str(attributes.value), shapes, steps)


def _function(value: relax.Call) -> tuple[str, list[Any]]:
    """Name and arguments of a lowered call."""
    kind = _called(value)
    if kind == "call_tir":
        return str(value.args[0].name_hint), list(value.args[1].fields)
    if kind == "call_dps_packed":
        return str(value.args[0].global_symbol), list(value.args[1].fields)
    return kind, list(value.args) if kind == "add" else [value.args[0]]


def _extents(tensors: Sequence[relax.Var]) -> dict[str, list[int]]:
    """Symbolic extent to a tensor and axis that has it."""
    return {
        str(d): [i, axis]
        for i, t in enumerate(tensors)
        for axis, d in enumerate(_shape(t))
        if not hasattr(d, "value")
    }


def _shape(var: relax.Var) -> list[Any]:
    return list(var.ty.shape.values)
