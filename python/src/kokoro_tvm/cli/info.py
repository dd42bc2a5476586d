"""``kokoro-tvm info``: what an artifact says about itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from kokoro_tvm.cli.common import console, rows_table, warn_synthetic

if TYPE_CHECKING:
    from kokoro_tvm.artifact import ComponentRecord, Manifest


def info(
    artifact: Annotated[Path, typer.Argument(help="The compiled artifact.")] = Path("tvm_output"),
    verify: Annotated[bool, typer.Option("--verify", help="Also compare every file with its hash.")] = False,
) -> None:
    """Print what an artifact contains, for which machine, and how exact it is."""
    from kokoro_tvm.artifact import check_files, read_manifest

    manifest = read_manifest(artifact)
    console.print(rows_table(_rows(manifest), title=str(artifact)))
    console.print(_components(manifest))
    for name, record in manifest.components.items():
        console.print(_signature(name, record), markup=False)
    if verify:
        files = [f for c in manifest.components.values() for f in (c.library, c.weights)]
        check_files(artifact, list(dict.fromkeys(files + ([manifest.extern] if manifest.extern else []))))
        console.print("Every file matches its hash.")
    warn_synthetic(manifest.checkpoint.synthetic)


def _rows(manifest: Manifest) -> list[tuple[str, str]]:
    target, checkpoint = manifest.target, manifest.checkpoint
    return [
        ("made by", f"kokoro-tvm {manifest.kokoro_tvm}, TVM {manifest.tvm}, tvm-ffi {manifest.tvm_ffi}"),
        ("target", f"{target.name} ({target.system} {target.machine}), {target.mcpu}"),
        ("CPU features", " ".join(target.features) or "baseline"),
        ("capacity", f"{manifest.seq_len} tokens, {manifest.aligned_len} frames ({manifest.aligned_len / 40:.1f} s)"),
        ("lstm", manifest.lstm_method),
        ("dtype", manifest.dtype),
        ("checkpoint", f"{checkpoint.source}{' (synthetic)' if checkpoint.synthetic else ''}, sha256 {checkpoint.sha256}"),
        ("weights", checkpoint.precision),
        ("vocabulary", f"{len(manifest.model.vocab)} symbols"),
    ]


def _components(manifest: Manifest) -> Table:
    table = Table(title="Components", title_justify="left")
    for column in ("name", "code, MiB", "weights, MiB", "error against PyTorch, SNR in dB"):
        table.add_column(column, justify="right" if column.endswith("MiB") else "left")
    files = Counter(f.name for record in manifest.components.values() for f in (record.library, record.weights))
    for name, record in manifest.components.items():
        sizes = [f"{f.size / 2**20:.1f}{' shared' if files[f.name] > 1 else ''}" for f in (record.library, record.weights)]
        parity = ", ".join(f"{output} {snr:.1f}" for output, snr in record.validation.items()) or "not measured"
        table.add_row(name, *sizes, parity)
    return table


def _signature(name: str, record: ComponentRecord) -> str:
    inputs, outputs = (
        ", ".join(f"{t['name']} {t['dtype']}[{', '.join(map(str, t['shape']))}]" for t in tensors)
        for tensors in (record.inputs, record.outputs)
    )
    return f"{name}: {inputs} -> {outputs}"
