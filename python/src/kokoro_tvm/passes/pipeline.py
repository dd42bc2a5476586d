"""The one pass pipeline: from a component in the operator vocabulary to what the virtual machine's code generator takes.

Two phases, with a dump behind each: operators to kernels, then Relax's own lowering to virtual-machine calls. There is no
fusion phase and no schedule: the kernels are written fused and scheduled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tvm
from tvm.relax import transform

from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.passes.lower_operators import LowerOperators, LstmMethod
from kokoro_tvm.passes.observe import Announce, Dump


def pipeline(
    tile: Tile,
    lstm_method: LstmMethod = "extern",
    dump_directory: Path | None = None,
    listener: Callable[[str], None] | None = None,
) -> tvm.transform.Sequential:
    """Builds the pipeline.

    Args:
        tile: The target's register tile.
        lstm_method: ``extern`` (the C++ LSTM) or ``tir``.
        dump_directory: Where to leave the IR of every phase, if anywhere.
        listener: Called with the name of each phase as it begins.
    """
    return tvm.transform.Sequential(
        [
            Dump("0_imported", dump_directory),
            Announce("kernels", listener),
            LowerOperators(tile, lstm_method),
            Dump("1_kernels", dump_directory),
            Announce("virtual machine", listener),
            # What is left are a few scalar operators on lengths.
            transform.LegalizeOps(),
            transform.RewriteDataflowReshape(),
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            transform.CallTIRRewrite(),
            transform.StaticPlanBlockMemory(),
            transform.LowerAllocTensor(),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
            Dump("2_lowered", dump_directory),
            Announce("machine code", listener),
        ]
    )
