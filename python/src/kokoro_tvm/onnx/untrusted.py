"""ONNX files of others: parsed within bounds, tensors checked before they become arrays.

What it is: the only way in for bytes that this project did not write. Lengths are added up in the encoded message before it is
parsed, no other file is ever opened, and a tensor is believed when type, shape and number of bytes agree. What it is not: a check
of what a graph means (``published``), nor the reader of this project's own files (``files``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto

from kokoro_tvm.errors import CheckpointError

MOST_BYTES = 512 * 2**20
"""Of a file, and of the float32 weights read from it; the model has 327 MB of them."""
MOST_STRUCTURE = 8 * 2**20
"""Bytes of a file that are not tensors' raw data. Published files have 2 MB; an empty node takes 2 bytes in a file and a hundred
times as many in memory."""

DTYPES = {
    TensorProto.FLOAT: np.dtype("<f4"),
    TensorProto.FLOAT16: np.dtype("<f2"),
    TensorProto.INT8: np.dtype("i1"),
    TensorProto.UINT8: np.dtype("u1"),
}
"""What weights, scales and zero points are made of."""

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_RAW_DATA = (7, 5, 9)
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Kinds of fields in a message's encoding, and the bytes of those with a fixed length."""


def read_bytes(path: Path) -> bytes:
    """A file's content; of one that is larger than ``parse`` takes, no more than shows that.

    Raises:
        CheckpointError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def parse(content: bytes, source: str) -> ModelProto:
    """Parses an ONNX file.

    Args:
        content: The file.
        source: Its name, for errors.

    Raises:
        CheckpointError: It is no ONNX file, is truncated, or would take more memory than a model of this size can need.
    """
    if len(content) > MOST_BYTES:
        raise CheckpointError(f"{source} has more than {MOST_BYTES >> 20} MiB, expected 90 to 330 MB of ONNX")
    try:
        structure = _Structure()
        structure.add(memoryview(content))
        if structure.bytes > MOST_STRUCTURE:
            raise CheckpointError(
                f"{source} holds more than {MOST_STRUCTURE >> 20} MiB besides its tensors' raw data, expected an ONNX file with 2"
            )
        model = onnx.load_model_from_string(content)
    except (DecodeError, _NotProtobufError) as error:
        raise CheckpointError(f"{source} is damaged, truncated, or no ONNX file") from error
    # This version of protobuf takes any bytes for a string, and then hands out bytes.
    if not all(isinstance(name, str) for name in _names(model.graph)):
        raise CheckpointError(f"{source} is damaged: a name in it is no text")
    return model


def _names(graph: GraphProto) -> Iterator[str | bytes]:
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute))
    for named in (*graph.initializer, *graph.input, *graph.output):
        yield named.name


def array(tensor: TensorProto) -> np.ndarray:
    """A tensor's content, as a view of its bytes where that is possible.

    Raises:
        CheckpointError: Its data lies in another file, its type is none of ``DTYPES``, or its shape and its data disagree.
    """
    name = repr(tensor.name)
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise CheckpointError(f"the data of {name} lies in another file, expected one file that holds all weights")
    if tensor.data_type not in DTYPES:
        raise CheckpointError(f"{name} is {_type_name(tensor.data_type)}, expected float32, float16, int8 or uint8")
    dtype, size = DTYPES[tensor.data_type], elements(tensor)
    if size == 0:
        raise CheckpointError(f"{name} {list(tensor.dims)} is empty")
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size * dtype.itemsize:
            raise CheckpointError(
                f"{name} {list(tensor.dims)} has {len(tensor.raw_data)} bytes, expected {size * dtype.itemsize}"
            )
        return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))
    return _typed(tensor, name, dtype, size)


def elements(tensor: TensorProto) -> int:
    """How many elements a tensor says it has.

    Raises:
        CheckpointError: A dimension is negative, or there are more than ``MOST_BYTES`` of float32 hold.
    """
    dims = list(tensor.dims)
    if len(dims) > 8 or any(d < 0 or d > MOST_BYTES for d in dims) or math.prod(dims) * 4 > MOST_BYTES:
        raise CheckpointError(f"{tensor.name!r} has the shape {dims[:8]}, which no weight of this model has")
    return math.prod(dims)


def _typed(tensor: TensorProto, name: str, dtype: np.dtype, size: int) -> np.ndarray:
    """The content of the fields with a type, which exporters use for scalars; float16 is stored there as its bits."""
    values = tensor.float_data if dtype == np.float32 else tensor.int32_data
    if len(values) != size:
        raise CheckpointError(f"{name} {list(tensor.dims)} has {len(values)} values, expected {size}")
    if dtype == np.float32:
        return np.array(values, dtype).reshape(tuple(tensor.dims))
    bits = np.array(values, np.int32)
    stored = np.dtype(np.uint16) if dtype == np.float16 else dtype
    if not np.array_equal(bits, bits.astype(stored)):
        raise CheckpointError(f"{name} has values that no {dtype.name} holds")
    return bits.astype(stored).view(dtype).reshape(tuple(tensor.dims))


def _type_name(code: int) -> str:
    return TensorProto.DataType.Name(code).lower() if code in TensorProto.DataType.values() else f"of the unknown type {code}"


class _NotProtobufError(Exception):
    """The bytes are no protobuf message."""


class _Structure:
    """Adds up what a message holds besides tensors' raw data, without parsing it."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, message: memoryview, path: tuple[int, ...] = _RAW_DATA) -> None:
        """Adds a message whose field numbers on the way to raw data are ``path``; stops beyond ``MOST_STRUCTURE``.

        Raises:
            _NotProtobufError: A field reaches beyond the message's end or is of no known kind.
        """
        position = 0
        while position < len(message) and self.bytes <= MOST_STRUCTURE:
            start = position
            tag, position = _varint(message, position)
            kind, length = tag & 7, _FIXED.get(tag & 7, 0)
            if kind in (_VARINT, _BYTES):
                value, position = _varint(message, position)
                length = value if kind == _BYTES else 0
            elif kind not in _FIXED:
                raise _NotProtobufError
            self.bytes += position - start
            end = position + length
            if end > len(message):
                raise _NotProtobufError
            if kind != _BYTES or tag >> 3 != path[0]:
                self.bytes += length
            elif len(path) > 1:
                self.add(message[position:end], path[1:])
            position = end


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number in seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _NotProtobufError
