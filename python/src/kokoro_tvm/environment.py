"""The one place that reads or writes environment variables.

What it is: a leaf. What it is not: a settings file; options are arguments.
"""

from __future__ import annotations

import os
from pathlib import Path


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_thread_pool() -> None:
    """Lets TVM's thread pool grow to all CPUs; has to run before its first use.

    The pool reads these variables once, when it starts: left alone it takes half of the CPUs, in the belief that they are
    hyper-threads, and pins its threads, which is wrong for several concurrent callers.
    """
    os.environ.setdefault("TVM_NUM_THREADS", str(cpu_count()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")


def malloc_is_configured() -> bool:
    """Whether glibc's malloc was told when to give pages back: by two variables of its own or as ``GLIBC_TUNABLES``."""
    named = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys()
    return bool(named) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def tuning_folder() -> Path:
    """``KOKORO_TVM_TUNING``: where this user's tuning records lie; a folder of the user's cache if absent."""
    named = os.environ.get("KOKORO_TVM_TUNING")
    return Path(named) if named else cache_directory() / "tuning"


def metal_emulation() -> Path | None:
    """``KOKORO_TVM_METAL_EMULATION``: the folder of the Metal emulator; that of the source checkout if absent."""
    named = os.environ.get("KOKORO_TVM_METAL_EMULATION")
    return Path(named) if named else None


def debug_traceback() -> bool:
    """``KOKORO_TVM_DEBUG=1``: command lines show a traceback instead of one line."""
    return os.environ.get("KOKORO_TVM_DEBUG", "") not in ("", "0")


def cache_directory() -> Path:
    """Where downloads that can be repeated may be kept: ``XDG_CACHE_HOME``, ``~/.cache`` without it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kokoro-tvm"


def with_variables(**variables: str) -> dict[str, str]:
    """The environment of a child process: this one's and ``variables``."""
    return dict(os.environ) | variables
