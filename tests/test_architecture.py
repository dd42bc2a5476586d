"""Who may import whom, and what every module and operator has to have."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import kokoro_tvm

PACKAGE = Path(kokoro_tvm.__file__).parent
MODULES = sorted(p for p in PACKAGE.rglob("*.py"))
OURS = "kokoro_tvm"

TORCH_ALLOWED = ("reference/", "export/", "validate/", "bench/")
TORCH_LAZY = ("cli/bench_bilstm.py", "cli/build.py")
"""Compare with PyTorch, or hand it a dtype, and import it inside a function: the command line starts without it."""
PYTORCH_SIDE = ("torch", "kokoro", "transformers")
COMPILER_SIDE = (
    f"{OURS}.compile", f"{OURS}.export", f"{OURS}.passes", f"{OURS}.kernels", f"{OURS}.onnx.relax", f"{OURS}.relax_component",
)  # fmt: skip

FORBIDDEN: dict[str, tuple[str, ...]] = {
    "runtime/": (*PYTORCH_SIDE, "tvm", *COMPILER_SIDE, f"{OURS}.reference", f"{OURS}.validate", f"{OURS}.targets"),
    "reference/": (*COMPILER_SIDE, f"{OURS}.runtime", f"{OURS}.validate", f"{OURS}.targets", f"{OURS}.artifact", "tvm"),
    "kernels/": ("tvm.relax", f"{OURS}.passes", f"{OURS}.export", f"{OURS}.compile", f"{OURS}.runtime", *PYTORCH_SIDE),
    "passes/": (f"{OURS}.export", f"{OURS}.compile", f"{OURS}.runtime", f"{OURS}.reference", *PYTORCH_SIDE),
    "export/": (f"{OURS}.passes", f"{OURS}.kernels", f"{OURS}.runtime", f"{OURS}.compile", f"{OURS}.validate"),
    "bench/peers/ours.py": (*PYTORCH_SIDE, "tvm", *COMPILER_SIDE, f"{OURS}.reference", f"{OURS}.validate", f"{OURS}.targets"),
    "bench/worker.py": (*PYTORCH_SIDE, "tvm", *COMPILER_SIDE, f"{OURS}.validate", f"{OURS}.targets"),
    "onnx/": (
        *PYTORCH_SIDE, f"{OURS}.export", f"{OURS}.reference", f"{OURS}.passes", f"{OURS}.kernels", f"{OURS}.compile",
        f"{OURS}.runtime", f"{OURS}.validate", f"{OURS}.targets",
    ),
    # The runtime reads the files, and the runtime has no compiler.
    "onnx/files.py": ("tvm", *COMPILER_SIDE),
    "onnx/graph.py": ("tvm", *COMPILER_SIDE),
    # So that the reference, which reads published exports, does not import what it judges.
    "onnx/published.py": ("tvm", f"{OURS}.artifact", *COMPILER_SIDE),
    "onnx/untrusted.py": ("tvm", f"{OURS}.artifact", *COMPILER_SIDE),
    "onnx/operators.py": ("tvm", *COMPILER_SIDE),
    "relax_component.py": PYTORCH_SIDE,
    "artifact.py": ("tvm", "tvm_ffi", *PYTORCH_SIDE, *COMPILER_SIDE, f"{OURS}.runtime"),
    "compile.py": (f"{OURS}.runtime", f"{OURS}.validate", "torch"),
    "stages.py": (OURS, "tvm", *PYTORCH_SIDE),
    "ops.py": (OURS, "tvm", *PYTORCH_SIDE),
    "errors.py": (OURS,),
    "environment.py": (OURS,),
    "config.py": (f"{OURS}.runtime", *COMPILER_SIDE, "tvm", *PYTORCH_SIDE),
}
"""Folder or module to what it must not import, however deep in a function."""


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _imports(path: Path, top_level: bool = False) -> Iterator[str]:
    """Dotted names that a module imports, at run time; ``from a import b`` gives ``a`` and ``a.b``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _statements(tree, top_level):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide who imports whom"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _statements(node: ast.AST, top_level: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if top_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from _statements(child, top_level)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _offenders(paths: list[Path], forbidden: tuple[str, ...], top_level: bool = False) -> list[str]:
    return [
        f"{_name(path)} imports {found}"
        for path in paths
        for found in _imports(path, top_level)
        if any(_within(found, package) for package in forbidden)
    ]


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports(part: str) -> None:
    paths = [p for p in MODULES if _name(p).startswith(part)]
    assert paths, f"{part} is gone: this rule checks nothing"
    assert not _offenders(paths, FORBIDDEN[part])


def test_torch_stays_in_its_places() -> None:
    paths = [p for p in MODULES if not _name(p).startswith(TORCH_ALLOWED) and _name(p) not in TORCH_LAZY]
    assert not _offenders(paths, PYTORCH_SIDE)
    assert not _offenders([PACKAGE / name for name in TORCH_LAZY], PYTORCH_SIDE, top_level=True)


def test_command_lines_start_light() -> None:
    paths = [p for p in MODULES if _name(p).startswith("cli/")]
    libraries = ("numpy", "tvm", "tvm_ffi", "onnx", "onnxruntime", *PYTORCH_SIDE)
    heavy = (*libraries, *COMPILER_SIDE, f"{OURS}.onnx", f"{OURS}.reference", f"{OURS}.runtime")
    started = [p for p in paths if p.stem not in ("bench_capacity", "validation", "validate_steps", "validate_e2e")]
    assert not _offenders(started, heavy, top_level=True)


def test_nothing_imports_the_command_line() -> None:
    entry = ("cli/", "__main__.py")
    assert not _offenders([p for p in MODULES if not _name(p).startswith(entry)], (f"{OURS}.cli",))


def test_environment_variables_in_one_place() -> None:
    exempt = ("environment.py", "cli/bench_bilstm.py")
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in MODULES
        if _name(path) not in exempt
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and {"environ", "getenv"} & {a.name for a in node.names})
    ]
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


# --- operators ---------------------------------------------------------------------------------------------------------------


def test_every_operator_has_a_rule_and_an_eager_meaning() -> None:
    from kokoro_tvm.export import ops as eager
    from kokoro_tvm.ops import SHAPES, TENSORS
    from kokoro_tvm.passes.lower_operators import RULES

    assert RULES.keys() == TENSORS.keys() == SHAPES.keys()
    assert not [name for name in SHAPES if not hasattr(eager, name)]


def test_shape_rules_ask_for_arguments_that_operators_have() -> None:
    from kokoro_tvm.export import ops as eager
    from kokoro_tvm.ops import SHAPES

    for name, shape in SHAPES.items():
        has = list(_schema(getattr(eager, name)))
        asks = [p.name for p in inspect.signature(shape).parameters.values() if p.kind is not p.VAR_KEYWORD]
        assert [a for a in has if a in asks] == asks, f"{name}: {asks} is not in the order of {has}"


def test_tensor_arguments_are_those_of_the_operators() -> None:
    from kokoro_tvm.export import ops as eager
    from kokoro_tvm.ops import TENSORS

    for name, tensors in TENSORS.items():
        schema = _schema(getattr(eager, name))
        has = [f"{a}*" if "List" in kind else a for a, kind in schema.items() if "Tensor" in kind]
        assert has == list(tensors), name


def _schema(operator: object) -> dict[str, str]:
    """Argument names and types of a ``torch.library`` operator, in order."""
    return {a.name: str(a.type) for a in operator._opoverload._schema.arguments}  # type: ignore[attr-defined]
