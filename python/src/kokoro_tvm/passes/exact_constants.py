"""Pass: float32 constants of GPU kernels by their bits.

TVM 0.27 prints a constant with seven significant digits (``CodeGenC``: ``%e``), and a float32 needs nine: π becomes 3.141593,
2^24 becomes 16777220. Polynomials and argument reduction lose the digits they exist for. Constants that seven digits do not tell
apart are therefore written as reinterpreted integers.

What it is: the last pass over device code, behind every simplification. What it is not: needed for machine code.
"""

from __future__ import annotations

import struct

import tvm
import tvm_ffi
from tvm import tirx


def _bits(value: float) -> int:
    return struct.unpack("<i", struct.pack("<f", value))[0]


def _exact(constant: tirx.FloatImm) -> tirx.Expr:
    if str(constant.ty.dtype) != "float32" or _bits(float(f"{constant.value:e}")) == _bits(constant.value):
        return constant
    return tirx.reinterpret("float32", tirx.IntImm("int32", _bits(constant.value)))


@tvm.transform.module_pass(opt_level=0, name="ExactConstants")
class ExactConstants:
    """See the module."""

    def transform_module(self, module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrites every function."""
        functions = {name: tvm_ffi.structural_map(f, (tirx.FloatImm, _exact)) for name, f in module.functions_items()}
        return tvm.IRModule(functions, attrs=module.attrs)
