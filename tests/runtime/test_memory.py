"""Pages that malloc keeps."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource
from kokoro_tvm.runtime.memory import keep_pages

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
SIZE = 24 << 20

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(SIZE) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_pages()
faults()
faults()
print(faults() * resource.getpagesize() / (4 * SIZE))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
@pytest.mark.parametrize("variables, kept", [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)])
def test_buffers_are_cleared_once_unless_the_environment_says_otherwise(variables, kept):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=clean | variables, capture_output=True, text=True, check=True)
    share = float(run.stdout)
    assert share < 0.05 if kept else share > 0.3
