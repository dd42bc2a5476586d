"""Compile the encoders of Kokoro: ``port_encoder --component duration --target llvm --seq-len 512 --validate``."""

from __future__ import annotations

from kokoro_tvm.cli.build import build_command
from kokoro_tvm.cli.common import single
from kokoro_tvm.stages import ENCODERS


def main(argv: list[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    return single("port_encoder", build_command(ENCODERS), argv)


if __name__ == "__main__":
    raise SystemExit(main())
