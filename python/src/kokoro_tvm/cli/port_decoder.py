"""Compile the decoder of Kokoro: ``port_decoder --target llvm --validate``."""

from __future__ import annotations

from kokoro_tvm.cli.build import build_command
from kokoro_tvm.cli.common import single


def main(argv: list[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    return single("port_decoder", build_command(("decoder",)), argv)


if __name__ == "__main__":
    raise SystemExit(main())
