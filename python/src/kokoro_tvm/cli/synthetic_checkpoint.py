"""``kokoro-tvm synthetic-checkpoint``: weights of the full architecture for trying everything but listening."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kokoro_tvm.cli.common import compiler_packages, console, warn_synthetic
from kokoro_tvm.errors import OutputError

VOICE = "synthetic.bin"


def synthetic_checkpoint(
    directory: Annotated[Path, typer.Argument(help="Gets kokoro-v1_0.pth, config.json and a voice, synthetic.bin.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    tiny: Annotated[bool, typer.Option("--tiny", help="The smallest configuration, for tests.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a checkpoint that lies there.")] = False,
) -> None:
    """Write a seeded, calibrated checkpoint of the full architecture, which is not speech."""
    with compiler_packages():
        from kokoro_tvm.reference import checkpoint, synthetic

    existing = [f for f in (checkpoint.CHECKPOINT_FILE, checkpoint.CONFIG_FILE) if (directory / f).exists()]
    if existing and not force:
        raise OutputError(f"{directory} already holds {' and '.join(existing)}; use --force to replace, or another directory")
    try:
        with console.status("drawing and calibrating weights (about a minute)"):
            path = synthetic.write_synthetic_checkpoint(directory, seed, synthetic.tiny_config() if tiny else None)
            synthetic.write_synthetic_voice(directory / VOICE, seed)
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error
    console.print(f"{path} and {VOICE}, {path.stat().st_size / 2**20:.0f} MiB, seed {seed}")
    warn_synthetic(True)
