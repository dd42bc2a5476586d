"""Passes that change nothing: progress and dumps between the phases of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tvm


@tvm.transform.module_pass(opt_level=0, name="Announce")
class Announce:
    """Tells ``listener`` that a phase begins."""

    def __init__(self, phase: str, listener: Callable[[str], None] | None) -> None:
        self.phase = phase
        self.listener = listener

    def transform_module(self, module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``module``."""
        if self.listener is not None:
            self.listener(self.phase)
        return module


@tvm.transform.module_pass(opt_level=0, name="Dump")
class Dump:
    """Writes the module as TVMScript to ``directory/name.py``, if a directory is given."""

    def __init__(self, name: str, directory: Path | None) -> None:
        self.name = name
        self.directory = directory

    def transform_module(self, module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``module``."""
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / f"{self.name}.py").write_text(module.script(show_meta=False), encoding="utf-8")
        return module
