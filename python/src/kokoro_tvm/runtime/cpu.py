"""What the running CPU can do, without TVM.

What it is: feature detection for the check at load time. What it is not: a list of targets (``kokoro_tvm.targets``).
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

_X86_FLAGS = {"bmi": "bmi1", "sse4.2": "sse4_2", "lzcnt": "abm", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}
"""LLVM feature names whose name in /proc/cpuinfo differs."""
_ARM_FLAGS = {"neon": "asimd", "fullfp16": "asimdhp", "dotprod": "asimddp"}


def machine() -> str:
    """``x86_64`` or ``arm64``."""
    return {"aarch64": "arm64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())


def system() -> str:
    """``linux`` or ``macos``."""
    return {"Darwin": "macos"}.get(platform.system(), platform.system().lower())


@lru_cache(maxsize=1)
def _flags() -> frozenset[str] | None:
    """Flags of /proc/cpuinfo, or None where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    line = next((entry for entry in lines if entry.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def missing_features(features: tuple[str, ...]) -> list[str]:
    """Those of LLVM's feature names that this CPU lacks; none if it cannot be asked (macOS, where the machine decides)."""
    flags = _flags()
    if flags is None:
        return []
    names = _X86_FLAGS if machine() == "x86_64" else _ARM_FLAGS
    return [f for f in features if names.get(f, f) not in flags]


def model_name() -> str:
    """The CPU's name for reports; with its family and model, where it has them: virtual machines hide the rest of a name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or machine()
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name", machine())
    if "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts.get('model', '?')})"


def vector_features() -> str:
    """What it has for vectors, in /proc/cpuinfo's names; ``unknown`` where there is no such file."""
    flags = _flags()
    wanted = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "asimddp", "bf16", "sve")
    return "unknown" if flags is None else " ".join(f for f in wanted if f in flags) or "none"
