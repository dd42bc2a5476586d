"""Pages that malloc keeps between calls.

What it is: an option of glibc's malloc, for the whole process. What it is not: a pool; what is kept is whatever lies free at the
end of the heap, for buffers of any size.
"""

from __future__ import annotations

import ctypes
import sys

from kokoro_tvm import environment

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 256 * 1024 * 1024
"""Bytes: what an utterance of ten seconds needs. The buffers of longer ones still go back to the system."""
_LARGEST_ON_HEAP = 32 * 1024 * 1024
"""Bytes: where glibc's own adjustment of this option ends, which setting the other one switches off."""


def keep_pages() -> None:
    """Lets malloc keep free pages, which the system would otherwise have to clear again in every call.

    Does nothing where the environment says how malloc is to behave, or where there is no glibc.
    """
    if sys.platform != "linux" or environment.malloc_is_configured():
        return
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_TRIM_THRESHOLD, _KEPT)
        option(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
