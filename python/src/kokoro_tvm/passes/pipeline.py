"""The one pass pipeline: from a component in the operator vocabulary to what the virtual machine's code generator takes.

Two phases, with a dump behind each: operators to kernels, then Relax's own lowering to virtual-machine calls. There is no
fusion phase and no schedule: the kernels are written fused and scheduled. Only the arithmetic on lengths, which is left to TVM,
needs thread bindings on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tvm
from tvm import relax, tirx
from tvm.relax import transform
from tvm.s_tir import dlight
from tvm.tirx import compilation_pipeline

from kokoro_tvm.kernels.metal.tile import Tile as MetalTile
from kokoro_tvm.kernels.selection import Tile
from kokoro_tvm.passes.exact_constants import ExactConstants
from kokoro_tvm.passes.lower_operators import Dtype, LowerOperators, LstmMethod
from kokoro_tvm.passes.metal_functions import MetalFunctions
from kokoro_tvm.passes.observe import Announce, Dump


def pipeline(
    tile: Tile,
    lstm_method: LstmMethod = "extern",
    dump_directory: Path | None = None,
    listener: Callable[[str], None] | None = None,
    dtype: Dtype = "float32",
) -> tvm.transform.Sequential:
    """Builds the pipeline.

    Args:
        tile: The target's register tile.
        lstm_method: ``extern`` (the C++ LSTM) or ``tir``.
        dump_directory: Where to leave the IR of every phase, if anywhere.
        listener: Called with the name of each phase as it begins.
        dtype: See ``LowerOperators``.
    """
    bind_threads = [dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())] if isinstance(tile, MetalTile) else []
    return tvm.transform.Sequential(
        [
            Dump("0_imported", dump_directory),
            Announce("kernels", listener),
            LowerOperators(tile, lstm_method, dtype),
            Dump("1_kernels", dump_directory),
            Announce("virtual machine", listener),
            # What is left are a few scalar operators on lengths.
            transform.LegalizeOps(),
            *bind_threads,
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


def buffers_as_written() -> tvm.transform.PassContext:
    """TVM's passes for a CPU but the one that shrinks buffers to what is used: some space keeps rows apart in a cache."""
    return tvm.transform.PassContext(disabled_pass=["s_tir.CompactBufferAllocation"])


def build(
    module: tvm.IRModule, target: tvm.target.Target, passes: tvm.transform.Pass, tile: Tile
) -> relax.VMExecutable:
    """Runs ``passes`` and TVM's code generation.

    Args:
        module: A component in the operator vocabulary.
        target: TVM's form of the target.
        passes: From ``pipeline``.
        tile: The target's tile.
    """
    if not isinstance(tile, MetalTile):
        with buffers_as_written():
            return relax.build(module, target=target, relax_pipeline=passes)
    # Source text gains nothing from common subexpressions: later passes put them back and leave the names behind.
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        return relax.build(module, target=target, relax_pipeline=passes, tir_pipeline=_device_pipeline())


def build_kernel(kernel: tirx.PrimFunc, name: str, target: tvm.target.Target) -> tvm.runtime.Module:
    """Compiles one Metal kernel as ``build`` compiles those of a component, for tests and measurements."""
    module = tvm.IRModule({name: kernel.with_attr("global_symbol", name)})
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        return tirx.build(module, target=target, pipeline=_device_pipeline())


def _device_pipeline() -> str:
    """Name of TVM's own lowering, with our passes around its last ones for device code; registered on first use."""
    name = "kokoro_tvm.metal"
    if name not in compilation_pipeline.PIPELINE_MAP:

        def factory() -> tuple[tvm.transform.Pass, ...]:
            lowering, finalize_host, finalize_device = tirx.get_tir_pipeline("s_tir")

            def finalize_device_for_metal() -> tvm.transform.Sequential:
                return tvm.transform.Sequential([MetalFunctions(), finalize_device(), ExactConstants()])

            return lowering, finalize_host, finalize_device_for_metal

        compilation_pipeline.register_tir_pipeline(name, factory)
    return name
