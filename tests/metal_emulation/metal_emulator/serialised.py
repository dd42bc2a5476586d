"""The bytes in which TVM stores a Metal module: format, arguments of each kernel, source of each kernel.

Mirrors what TVM 0.27 writes: little-endian 64-bit counts before texts and lists.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TYPE_NAMES = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 6: "bool"}
"""DLDataTypeCode."""


@dataclass(frozen=True)
class Signature:
    """What the host passes to a kernel, in its order.

    Attributes:
        argument_types: Of buffers, ``"handle"``, then of scalars, such as ``"int64"``.
        launch_tags: ``"blockIdx.x"`` and the like, whose extents follow the arguments.
    """

    argument_types: tuple[str, ...]
    launch_tags: tuple[str, ...]

    @property
    def buffers(self) -> int:
        """Number of buffer arguments."""
        return sum(t == "handle" for t in self.argument_types)

    @property
    def scalars(self) -> int:
        """Number of scalar arguments, which are passed together as one more buffer."""
        return len(self.argument_types) - self.buffers


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def count(self) -> int:
        return self.number("Q")[0]

    def text(self) -> bytes:
        size = self.count()
        if size > len(self.data) - self.at:
            raise ValueError(f"a text of {size} bytes at byte {self.at}, but {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]


def load(data: bytes) -> tuple[dict[str, Signature], dict[str, str]]:
    """Signatures and sources of the kernels.

    Raises:
        ValueError: These are no bytes of a Metal module, or it holds compiled kernels in place of sources.
    """
    reader = _Reader(data)
    try:
        format_name = reader.text().decode()
        if format_name != "metal":
            raise ValueError(f"holds {format_name!r}, expected 'metal', the sources")
        signatures = {}
        for _ in range(reader.count()):
            name = reader.text().decode()
            reader.text()  # the name once more
            types = []
            for _ in range(reader.count()):
                code, bits, _lanes = reader.number("BBH")
                types.append(_TYPE_NAMES[code] + ("" if code == 3 else str(bits)))
            tags = tuple(reader.text().decode() for _ in range(reader.count()))
            if any(reader.number(f"{reader.count()}i")):
                raise ValueError(f"kernel {name} has arguments that only CUDA has")
            signatures[name] = Signature(tuple(types), tags)
        sources = {reader.text().decode(): reader.text().decode() for _ in range(reader.count())}
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise ValueError(f"no bytes of a Metal module: {error}") from None
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes behind a Metal module")
    return signatures, sources


def metal_modules(blob: bytes) -> list[bytes]:
    """The Metal modules among those that TVM packs into a library (its symbol ``__tvm_ffi__library_bin``).

    Raises:
        ValueError: This is no such blob.
    """
    reader = _Reader(blob)
    found = []
    try:
        if reader.count() != len(blob) - 8:
            raise ValueError(f"{len(blob)} bytes, not as many as they say")
        for _ in range(2):  # who imports whom
            reader.number(f"{reader.count()}Q")
        while reader.at < len(blob):
            kind = reader.text()
            if kind == b"_lib":  # the library itself, which has no bytes here
                continue
            data = reader.text()
            if kind == b"metal":
                found.append(data)
    except struct.error as error:
        raise ValueError(f"no bytes of packed modules: {error}") from None
    return found


def save(signatures: Mapping[str, Signature], sources: Mapping[str, str]) -> bytes:
    """The inverse of ``load``."""

    def text(value: str) -> bytes:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    def texts(values: Iterable[str]) -> bytes:
        values = list(values)
        return struct.pack("<Q", len(values)) + b"".join(map(text, values))

    codes = {name: code for code, name in _TYPE_NAMES.items()}
    parts = [text("metal"), struct.pack("<Q", len(signatures))]
    for name, signature in signatures.items():
        parts += [text(name), text(name), struct.pack("<Q", len(signature.argument_types))]
        for argument in signature.argument_types:
            kind = argument.rstrip("0123456789")
            parts.append(struct.pack("<BBH", codes[kind], int(argument[len(kind) :] or 64), 1))
        parts.append(texts(signature.launch_tags))
        parts.append(struct.pack("<Q", len(signature.argument_types)) + bytes(4 * len(signature.argument_types)))
    parts += [struct.pack("<Q", len(sources)), *(text(name) + text(source) for name, source in sources.items())]
    return b"".join(parts)
