"""Optional kernel arguments.

TVMScript has no optional parameters. A kernel is therefore written with all of them, and those that a specialisation does not
use are taken out of the signature afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.tirx import PrimFunc


def keep_parameters(func: PrimFunc, keep: Callable[[str], bool]) -> PrimFunc:
    """``func`` without the parameters whose name ``keep`` rejects; its body must not touch them."""
    params = [p for p in func.params if keep(p.name)]
    return PrimFunc(params, func.body, func.ret_type, attrs=func.attrs)
