"""Pass: fused steps and rounding in GPU kernels by their Metal names.

TVM 0.27 has no Metal lowering of ``tirx.fma`` and ``tirx.nearbyint``. A rule of our own would be global: from its registration
on, TVM turns every ``a * b + c`` of every Metal module in the process into the fused step, those of other people in half
included. This pass does it for our kernels only. A sum of a product becomes a fused step here too, which Metal's fast math may
do or not: so what the emulator rounded is what a device rounds.

What it is: a pass over device code, before TVM's last ones, which would name rounding as C does. What it is not: a table of
elementary functions (``kernels.metal.vector_math``).
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

_NAMES = {"tirx.fma": "fma", "tirx.nearbyint": "rint"}
"""TIR operator to Metal function."""


def _named(call: tvm.ir.Call) -> tirx.Expr:
    name = _NAMES.get(getattr(call.op, "name", ""))
    return tirx.call_pure_extern(call.ty, name, *call.args) if name else call


def _fused(add: tirx.Add) -> tirx.Expr:
    if str(add.ty.dtype).startswith("float"):
        for product, other in ((add.b, add.a), (add.a, add.b)):
            if isinstance(product, tirx.Mul):
                return tirx.call_pure_extern(add.ty, "fma", product.a, product.b, other)
    return add


@tvm.transform.module_pass(opt_level=0, name="MetalFunctions")
class MetalFunctions:
    """See the module."""

    def transform_module(self, module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrites every function."""
        rules = (tvm.ir.Call, _named), (tirx.Add, _fused)
        functions = {name: tvm_ffi.structural_map(f, rules) for name, f in module.functions_items()}
        return tvm.IRModule(functions, attrs=module.attrs)
