"""Components as ONNX files: names, metadata, writing, and every check before one is believed.

    <component>.onnx         graph, metadata, and the weights unless they are large
    <component>.onnx.data    the weights then, as ONNX's external data

What it is: the layout that ``kokoro-tvm export`` writes, and that the ONNX Runtime engine and the compiler read. Every file says
which checkpoint and configuration it was made from and carries a hash of itself, so that a changed weight does not go unnoticed.
What it is not: a reader of other ONNX files; those get an error that says what was expected.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from kokoro_tvm.artifact import ALIGNMENT, CheckpointRecord, component_interface
from kokoro_tvm.config import ModelConfig
from kokoro_tvm.errors import KokoroTvmError, OnnxError, OutputError
from kokoro_tvm.onnx.graph import IR_VERSION, called_function, fixed
from kokoro_tvm.onnx.operators import NAMESPACE_VERSION, OPERATORS, OPSET
from kokoro_tvm.ops import NAMESPACE
from kokoro_tvm.stages import COMPONENTS, TensorSpec

FORMAT = "1"
"""Raised when files of the same names start to mean something else."""
EXTERNAL_FROM = 64 * 2**20
"""Bytes of weights from which they leave the model file: tools open the graph at once, and no message nears protobuf's 2 GiB."""
_SMALL = 1024
"""Bytes of a tensor up to which it stays in the model file in any case."""
_STANDARD = ("Add", "Constant", "Mul", "Squeeze", "Unsqueeze")
"""Operators of a graph besides the vocabulary."""
_AGAIN = "make the files with `kokoro-tvm export --format onnx`"


@dataclass(frozen=True)
class Source:
    """What a component was made from, the same for all files of a folder.

    Attributes:
        kokoro_tvm: Version of the package that wrote it.
        checkpoint: Where the weights came from.
        config: The model's configuration in its published JSON form, vocabulary included.
    """

    kokoro_tvm: str
    checkpoint: CheckpointRecord
    config: dict[str, object]

    @classmethod
    def of(cls, sha256: str, name: str, synthetic: bool, config: ModelConfig, precision: str = "float32") -> Source:
        """For a checkpoint, written by this version."""
        record = CheckpointRecord(sha256, name, synthetic, precision)
        return cls(importlib.metadata.version("kokoro-tvm"), record, config.to_dict())

    @property
    def model(self) -> ModelConfig:
        """The configuration."""
        return ModelConfig.from_dict(dict(self.config))

    def properties(self, component: str) -> dict[str, str]:
        """Metadata of a component's file, without its hash."""
        values = {
            "format": FORMAT,
            "component": component,
            "version": self.kokoro_tvm,
            "checkpoint": json.dumps(asdict(self.checkpoint)),
            "config": json.dumps(self.config, ensure_ascii=False),
            "interface": json.dumps(component_interface(component)),
        }
        return {f"{NAMESPACE}.{key}": value for key, value in values.items()}

    @classmethod
    def parse(cls, properties: dict[str, str]) -> Source:
        """The inverse; raises ``KeyError``, ``TypeError``, ``ValueError`` or a class of ``errors`` where it is not one."""
        get = lambda key: properties[f"{NAMESPACE}.{key}"]  # noqa: E731
        source = cls(get("version"), CheckpointRecord(**json.loads(get("checkpoint"))), json.loads(get("config")))
        _ = source.model
        return source


@dataclass(frozen=True)
class OnnxComponent:
    """One component's file, checked.

    Attributes:
        name: Of the component.
        path: Of the file.
        graph: Its graph, without weights.
        weights: Initializers in order, float32; mapped where they are external.
        source: What it was made from.
    """

    name: str
    path: Path
    graph: GraphProto
    weights: dict[str, np.ndarray]
    source: Source


def component_path(directory: Path, name: str) -> Path:
    """The file of a component."""
    return Path(directory) / f"{name}.onnx"


def _data_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


# --- writing -----------------------------------------------------------------------------------------------------------------


def write_component(directory: Path, name: str, model: ModelProto, source: Source) -> Path:
    """Writes one component, checked, its file taking its place last.

    Args:
        directory: The folder; made if it does not exist.
        name: Component name.
        model: From ``export.onnx_graph.to_onnx``; gains metadata, and loses its weights if they are large.
        source: What it was made from.

    Returns:
        The model file.

    Raises:
        OutputError: The folder cannot be written.
    """
    path = component_path(directory, name)
    properties = source.properties(name)
    properties[f"{NAMESPACE}.sha256"] = _fingerprint(model, properties, [t.raw_data for t in model.graph.initializer])
    helper.set_model_props(model, properties)
    model.producer_version = source.kokoro_tvm
    staging: Path | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=directory, prefix=f".{name}."))
        staged = staging / path.name
        _externalise(model, _data_path(staged))
        staged.write_bytes(model.SerializeToString(deterministic=True))
        onnx.checker.check_model(str(staged), full_check=True)
        if _data_path(staged).exists():
            _data_path(staged).replace(_data_path(path))
        else:
            _data_path(path).unlink(missing_ok=True)
        staged.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return path


def _externalise(model: ModelProto, path: Path) -> None:
    """Moves large weights to ``path`` if there are many bytes of them; each starts at a multiple of ``ALIGNMENT``."""
    tensors = model.graph.initializer
    if sum(len(t.raw_data) for t in tensors) < EXTERNAL_FROM:
        return
    with path.open("wb") as file:
        for tensor in tensors:
            size = len(tensor.raw_data)
            if size <= _SMALL:
                continue
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            place = {"location": path.name, "offset": file.tell(), "length": size}
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))


def _fingerprint(model: ModelProto, properties: dict[str, str], contents: Sequence[bytes | np.ndarray]) -> str:
    """Hash of everything that a file means, wherever its weights lie."""
    digest = hashlib.sha256(json.dumps(sorted((k, v) for k, v in properties.items() if not k.endswith(".sha256"))).encode())
    bare = _bare(model.graph)
    for message in (bare, *model.functions, *model.opset_import):
        digest.update(message.SerializeToString(deterministic=True))
    for tensor, content in zip(model.graph.initializer, contents, strict=True):
        digest.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}".encode())
        digest.update(content)
    return digest.hexdigest()


def _bare(graph: GraphProto) -> GraphProto:
    """The graph without weights."""
    bare = GraphProto(name=graph.name)
    for field in ("node", "input", "output", "value_info"):
        getattr(bare, field).extend(getattr(graph, field))
    return bare


# --- reading -----------------------------------------------------------------------------------------------------------------


def read_components(directory: Path | str, names: Sequence[str] | None = None) -> dict[str, OnnxComponent]:
    """Reads and checks the files of a folder.

    Args:
        directory: Made by ``kokoro-tvm export --format onnx``.
        names: Component names; all five if None.

    Raises:
        OnnxError: Files are missing, damaged, of another layout, or of different checkpoints; all problems are named.
    """
    directory = Path(directory)
    names = list(COMPONENTS) if names is None else list(names)
    missing = [n for n in names if not component_path(directory, n).is_file()]
    if missing:
        raise OnnxError(_missing(directory, missing))
    found, problems = {}, []
    for name in names:
        try:
            found[name] = read_component(directory, name)
        except OnnxError as error:
            problems.append(str(error))
    if problems:
        raise OnnxError("; ".join(problems))
    origins = {(c.source.checkpoint.sha256, json.dumps(c.source.config, sort_keys=True)) for c in found.values()}
    if len(origins) > 1:
        made = ", ".join(f"{n} from {c.source.checkpoint.sha256[:12]}" for n, c in found.items())
        raise OnnxError(f"{directory} mixes components of different checkpoints ({made}); export all of them from one")
    return found


def _missing(directory: Path, names: Sequence[str]) -> str:
    if not directory.is_dir():
        return f"{directory} is no folder; {_AGAIN}"
    lacks = f"{directory} lacks {', '.join(f'{n}.onnx' for n in names)}"
    others = [p for p in sorted(directory.glob("*.onnx")) if p.stem not in COMPONENTS]
    try:
        foreign = f"; {others[0].name} is something else: {_signature(_parsed(others[0]).graph)}" if others else ""
    except OnnxError:
        foreign = ""
    return f"{lacks}{foreign}; {_AGAIN}"


def read_component(directory: Path | str, name: str) -> OnnxComponent:
    """Reads and checks one component's file.

    Raises:
        OnnxError: Naming everything that is wrong with it.
    """
    path = component_path(Path(directory), name)
    model = _parsed(path)
    properties = {p.key: p.value for p in model.metadata_props}
    if f"{NAMESPACE}.format" not in properties:
        raise OnnxError(f"{path} was not exported by kokoro-tvm: {_foreign(model, name)}; {_AGAIN}")
    problems = [*_header_problems(model, properties, name), *_interface_problems(model.graph, name)]
    weights: dict[str, np.ndarray] = {}
    for tensor in model.graph.initializer:
        try:
            weights[tensor.name] = _weight(tensor, path)
        except _Problem as problem:
            problems.append(str(problem))
    problems = list(dict.fromkeys(problems))
    if not problems:
        problems = list(_graph_problems(model)) or list(_content_problems(model, properties, weights, path))
    if problems:
        raise OnnxError(f"{path}: {'; '.join(problems)}; {_AGAIN}")
    return OnnxComponent(name, path, _bare(model.graph), weights, Source.parse(properties))


class _Problem(Exception):
    """Something that is wrong with a tensor."""


def _parsed(path: Path) -> ModelProto:
    try:
        return onnx.load_model(str(path), load_external_data=False)
    except FileNotFoundError as error:
        raise OnnxError(f"{path} is missing; {_AGAIN}") from error
    except OSError as error:
        raise OnnxError(f"cannot read {path}: {error.strerror or error}; {_AGAIN}") from error
    except (DecodeError, ValueError) as error:
        raise OnnxError(f"{path} is damaged, truncated, or no ONNX file; {_AGAIN}") from error


def _foreign(model: ModelProto, name: str) -> str:
    expected = ", ".join(_described(s) for s in COMPONENTS[name].inputs)
    return f"it is {_signature(model.graph)}, {name} is expected to take {expected}"


def _signature(graph: GraphProto) -> str:
    weights = {t.name for t in graph.initializer}
    inputs = ", ".join(v.name for v in graph.input if v.name not in weights) or "nothing"
    return f"{inputs} -> {', '.join(v.name for v in graph.output) or 'nothing'}"


def _described(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _header_problems(model: ModelProto, properties: dict[str, str], name: str) -> Iterator[str]:
    found = properties[f"{NAMESPACE}.format"]
    if found != FORMAT:
        yield f"it has format {found}, this version reads {FORMAT}"
    if properties.get(f"{NAMESPACE}.component") != name:
        yield f"it holds the component {properties.get(f'{NAMESPACE}.component')!r}, expected {name!r}"
    if model.ir_version > IR_VERSION:
        yield f"its ONNX IR version {model.ir_version} is newer than {IR_VERSION}"
    expected = {"": OPSET, NAMESPACE: NAMESPACE_VERSION}
    opsets = {o.domain: o.version for o in model.opset_import}
    for domain in sorted(expected.keys() | opsets.keys()):
        if opsets.get(domain) != expected.get(domain):
            yield (
                f"its opset of {domain or 'the standard operators'} is {opsets.get(domain, 'not there')}, "
                f"expected {expected.get(domain, 'none')}"
            )
    try:
        Source.parse(properties)
    except (KeyError, TypeError, ValueError, AttributeError, KokoroTvmError) as error:
        yield f"its metadata cannot be read ({error})"


def _interface_problems(graph: GraphProto, name: str) -> Iterator[str]:
    component = COMPONENTS[name]
    if graph.name != name:
        yield f"its graph is named {graph.name!r}, expected {name!r}"
    for kind, found, expected in (("input", graph.input, component.inputs), ("output", graph.output, component.outputs)):
        declared = {v.name: v for v in found}
        for spec in expected:
            if spec.name not in declared:
                yield f"{kind} {_described(spec)} is missing"
            elif (other := _declared(declared[spec.name])) != _described(spec):
                yield f"{kind} {other} should be {_described(spec)}"
        if unknown := [n for n in declared if n not in {s.name for s in expected}]:
            yield f"{kind}s that {name} has not: {', '.join(unknown)}"
        elif [v.name for v in found] != [s.name for s in expected] and len(found) == len(expected):
            yield f"{kind}s are in another order"


def _declared(value: ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dtype = TensorProto.DataType.Name(kind.elem_type).lower() if kind.elem_type in TensorProto.DataType.values() else "?"
    shape = [d.dim_param or str(d.dim_value) for d in kind.shape.dim]
    return f"{value.name} {'float32' if dtype == 'float' else dtype}[{', '.join(shape)}]"


def _weight(tensor: TensorProto, path: Path) -> np.ndarray:
    """A weight's content; external data is mapped, not read."""
    if tensor.data_type != TensorProto.FLOAT:
        raise _Problem(f"weight {tensor.name} is no float32")
    size = 4 * int(np.prod(tensor.dims, dtype=np.int64))
    if any(d < 0 for d in tensor.dims):
        raise _Problem(f"weight {tensor.name} has a negative extent")
    if tensor.data_location != TensorProto.EXTERNAL:
        if len(tensor.raw_data) != size:
            raise _Problem(f"weight {tensor.name} has {len(tensor.raw_data)} bytes, its shape needs {size}")
        return numpy_helper.to_array(tensor)
    place = {e.key: e.value for e in tensor.external_data}
    data = _data_path(path)
    # One name and no other: an ONNX file could point at any file of this machine.
    if place.get("location") != data.name:
        raise _Problem(f"weights lie in {place.get('location')!r}, only {data.name} beside the file may hold them")
    if data.is_symlink() and data.resolve().parent != path.resolve().parent:
        raise _Problem(f"{data.name} is a link that leaves the folder")
    if not data.is_file():
        raise _Problem(f"{data.name} with the weights is missing")
    try:
        offset, length = int(place.get("offset", 0)), int(place.get("length", size))
    except ValueError as error:
        raise _Problem(f"weight {tensor.name} has no usable place in {data.name}") from error
    if length != size or offset < 0 or offset + length > data.stat().st_size:
        raise _Problem(f"{data.name} is truncated or not the one that belongs to the file")
    return np.memmap(data, np.dtype("<f4"), "r", offset, tuple(tensor.dims)) if size else np.zeros(tensor.dims, np.float32)


def _graph_problems(model: ModelProto) -> Iterator[str]:
    """Whether the graph consists of the vocabulary, every operator meaning what it means here."""
    graph = model.graph
    shapes = {v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim)
              for v in (*graph.input, *graph.value_info, *graph.output)}  # fmt: skip
    shapes |= {t.name: tuple(t.dims) for t in graph.initializer}
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    for node in graph.node:
        if node.domain == "" and node.op_type in _STANDARD:
            continue
        if node.domain != NAMESPACE or node.op_type not in OPERATORS:
            yield f"operator {node.domain or 'ai.onnx'}::{node.op_type} does not belong to the vocabulary"
            continue
        try:
            expected = called_function(node, [fixed(shapes[i]) for i in node.input], graph.name)
        except (KeyError, ValueError, TypeError, AssertionError, IndexError, ArithmeticError) as error:
            yield f"the call {node.name} of {node.op_type} cannot be understood ({error})"
            continue
        if functions.get((NAMESPACE, node.op_type, node.overload)) != expected:
            yield f"{node.name}: {node.op_type} means something else than in this version"


def _content_problems(
    model: ModelProto, properties: dict[str, str], weights: dict[str, np.ndarray], path: Path
) -> Iterator[str]:
    """ONNX's own check, with shape inference, and the hash."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # the checker raises classes of several extension modules
        yield f"onnx.checker refuses it: {' '.join(str(error).split())[:300]}"
        return
    contents = [np.ascontiguousarray(w).data for w in weights.values()]
    if _fingerprint(model, properties, contents) != properties.get(f"{NAMESPACE}.sha256"):
        yield "it does not match its hash: damaged, or changed after the export"
