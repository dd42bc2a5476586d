"""Tuning records: which scheme and register tile were fastest for which convolution, on which CPU.

What it is: the name of a layer, records that go to JSON and back, and where the JSON lies: the user's folder first, then what is
shipped in ``kokoro_tvm/tuning``. What it is not: measuring (``kokoro_tvm.tune``). A tile changes no sum's order; a scheme does,
within the tolerance of its kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kokoro_tvm import environment
from kokoro_tvm.errors import InputError
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.tile import Tile

SCHEMA = 2
SHIPPED = Path(__file__).resolve().parents[1] / "tuning"
"""A file ``<LLVM's CPU name>.json`` for every CPU that was measured."""


@dataclass(frozen=True)
class Record:
    """The fastest scheme and tile of one layer.

    Attributes:
        layer: ``layer_name`` of the convolution.
        scheme: See ``Tile``; always named.
        lanes: See ``Tile``; fewer than the CPU has fit some numbers of channels better.
        vectors: See ``Tile``.
        rows: See ``Tile``.
        block: See ``Tile``.
        columns: See ``Tile``.
        seconds: Of one call.
        default_seconds: Of one call with the CPU's default tile, measured beside it.
    """

    layer: str
    scheme: str
    lanes: int
    vectors: int
    rows: int
    block: int
    columns: int
    seconds: float
    default_seconds: float


def layer_name(conv: Conv1d) -> str:
    """What a convolution's speed depends on, in one word: sizes, steps, and what is fused into it."""
    sizes = f"{conv.c_in}-{conv.c_out}-k{conv.taps}-s{conv.stride}-d{conv.dilation}-p{conv.phases}"
    sums = "" if conv.accumulate == "float32" else conv.accumulate
    sums += "bf16" if conv.products == "bfloat16" else ""
    fused = [sums, conv.prologue, "affine" if conv.affine else "", f"r{conv.residuals}", conv.epilogue]
    return "-".join([sizes, *(f for f in fused if f not in ("", "none"))])


def write(path: Path, records: Iterable[Record], about: dict[str, Any]) -> None:
    """Writes records; ``about`` says where and how they were measured."""
    from kokoro_tvm.artifact import staged

    content = {"schema": SCHEMA, "about": about, "records": [asdict(r) for r in records]}
    with staged(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Record]:
    """Reads records.

    Raises:
        InputError: The file holds none.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise InputError(f"{path} has schema {raw['schema']}, this version reads {SCHEMA}: tune again")
        return [Record(**r) for r in raw["records"]]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no tuning records ({error!r}): tune again, or remove it") from error


def user_file(mcpu: str) -> Path:
    """Where ``kokoro-tvm tune`` leaves the records of a CPU unless told otherwise."""
    return environment.tuning_folder() / f"{mcpu}.json"


def tuned(tile: Tile, mcpu: str) -> Tile:
    """``tile`` with what was measured for a CPU, if anything was.

    Raises:
        InputError: A file of records is damaged, or does not fit the CPU's tile.
    """
    for path in (user_file(mcpu), SHIPPED / f"{mcpu}.json"):
        if path.is_file():
            return with_records(tile, read(path), str(path))
    return tile


def with_records(tile: Tile, records: Iterable[Record], source: str = "the records") -> Tile:
    """``tile`` with a tile of its own for every recorded layer."""
    special = {}
    for r in records:
        try:
            sizes = {"lanes": r.lanes, "vectors": r.vectors, "rows": r.rows, "block": r.block, "columns": r.columns}
            usual = tile.compensated or tile if "-compensated" in r.layer else tile
            special[r.layer] = replace(usual, **sizes, scheme=r.scheme, compensated=None, tuned=())
        except (TypeError, ValueError) as error:
            raise InputError(f"{source}: {r.layer}: {error}; tune again, or remove the file") from error
    return replace(tile, tuned=tuple(sorted(special.items())))
