"""Every task and launch configuration of the editor runs, the smallest model or a dry run standing for what takes minutes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kokoro_tvm.stages import ENCODERS

ROOT = Path(__file__).resolve().parents[1]
TASKS = json.loads((ROOT / ".vscode" / "tasks.json").read_text(encoding="utf-8"))
LAUNCH = json.loads((ROOT / ".vscode" / "launch.json").read_text(encoding="utf-8"))
COMMANDS = {task["label"]: task["command"] for task in TASKS["tasks"]}

NEEDED = (
    "Set up", "Build native code", "Port encoder (llvm)", "Port encoder (metal-macos)", "Port decoder (llvm)",
    "Port decoder (metal-macos)", "Compile all", "Validate steps", "Validate end to end", "Run tests", "Bench LSTM",
    "Compile ONNX",
)  # fmt: skip
SYNTAX_ONLY = ("Set up", "Run tests", "Demo")
"""Shell scripts that install or call the tests: calling them here would be a circle."""
CHEAP = {
    "Build native code": lambda c: c.replace("build/native", "build/test-native").partition(" && ")[0],
    "Run Python tests": lambda c: f"{c} --collect-only -q tests/runtime/text/test_windows.py",
    "Lint": lambda c: c.replace("python tests", "--isolated --select F tests/test_vscode_tasks.py"),
}
"""What stands for a long command; those not named here are asked for their help, with all their options given."""
DRY = ("Port encoder (llvm)", "Port decoder (llvm)", "Compile all", "Compile all (synthetic weights)")
"""These have dry runs, which take place in this process: PyTorch and TVM need seconds to be imported."""
REAL = {"Port encoder (metal-macos)": "text_encoder.dylib", "Port decoder (metal-macos)": "decoder.dylib"}
"""These do their work, for the smallest model, and leave this file."""


def _python_of_this_environment(command: str) -> str:
    """The tests may run in another environment than the checkout's own."""
    folder = Path(sys.executable).parent
    return re.sub(r"(?<!\S)\.venv/bin/", f"{folder}/", command)


def _resolved(command: str, **chosen: str) -> str:
    for variable in TASKS["inputs"]:
        command = command.replace(f"${{input:{variable['id']}}}", chosen.get(variable["id"], variable["default"]))
    assert "${" not in command
    return command


def _run(command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        _python_of_this_environment(command), shell=True, cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def _dry_run(command: str) -> int:
    """The exit code of one of our programs, which was installed under this name."""
    program, *arguments = shlex.split(command.replace("--checkpoint build/synthetic", ""))
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=Path(program).name)
    return entry.load()([*arguments, "--dry-run"])


def test_tasks_are_all_there() -> None:
    assert set(NEEDED) <= COMMANDS.keys()
    labels = {task.get("dependsOn") for task in TASKS["tasks"]} - {None}
    assert labels <= COMMANDS.keys()


@pytest.mark.skipif(platform.system() != "Linux", reason="made on Linux")
@pytest.mark.parametrize("label", REAL)
def test_task_does_its_work(label: str, tiny_checkpoint_dir: Path, tmp_path: Path) -> None:
    command = _resolved(COMMANDS[label], component="text_encoder")
    assert "tvm_output_metal" in command
    _run(f"{command.replace('tvm_output_metal', str(tmp_path))} --checkpoint {tiny_checkpoint_dir}")
    library = tmp_path / REAL[label]
    assert b"\xcf\xfa\xed\xfe" == library.read_bytes()[:4], "Mach-O of 64 bits"


@pytest.mark.parametrize("label", [label for label in COMMANDS if label not in REAL])
def test_task(label: str) -> None:
    command = _resolved(COMMANDS[label])
    if label in SYNTAX_ONLY:
        script = ROOT / command
        assert os.access(script, os.X_OK)
        _run(f"bash -n {command}")
        return
    if label in DRY:
        assert _dry_run(command) == 0
    elif label in CHEAP:
        _run(CHEAP[label](command))
    else:
        assert re.search(r"usage", _run(f"{command} --help").stdout, re.IGNORECASE)


def test_a_dry_run_notices_a_wrong_option() -> None:
    """Guards the test above: what it runs must be able to fail."""
    assert _dry_run(f"{_resolved(COMMANDS['Compile all'])} --target cuda") == 2


def test_offered_components_exist() -> None:
    assert TASKS["inputs"][0]["options"] == [*ENCODERS, "all"]


@pytest.mark.parametrize("configuration", LAUNCH["configurations"], ids=lambda c: c["name"])
def test_launch_configuration(configuration: dict[str, object]) -> None:
    program = str(configuration.get("program", "")).replace("${workspaceFolder}", str(ROOT))
    target = program or f"-m {configuration['module']}"
    arguments = " ".join(f"'{a}'" for a in configuration["args"] if "${" not in a)  # type: ignore[attr-defined]
    _run(f"{sys.executable} {target} {arguments} --help")


@pytest.mark.parametrize("name", ["settings", "extensions"])
def test_other_files_are_json(name: str) -> None:
    assert json.loads((ROOT / ".vscode" / f"{name}.json").read_text(encoding="utf-8"))
