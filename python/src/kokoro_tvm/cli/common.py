"""What every command line shares: exit codes, one-line errors, consoles and a few checks of paths.

What it is: the edge where exceptions become exit codes. 0: done. 1: a verdict against the build, or a bug of ours, with its
traceback. 2: a mistake of the caller, in one line on stderr. 130: interrupted. What it is not: a command.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kokoro_tvm import environment
from kokoro_tvm.errors import InputError, KokoroTvmError, OutputError, ToolchainError

if TYPE_CHECKING:
    from kokoro_tvm.reference.checkpoint import Checkpoint

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
NOT_SPEECH = "The weights are synthetic: the full pipeline runs, but what it says is not speech."

_EXTRAS = dict.fromkeys(("torch", "kokoro", "transformers", "misaki", "loguru"), "compile") | {"onnx": "onnx"}
"""Packages that speaking does not need, and the extra that brings them."""
# The base of "unknown option" and its like; typer does not export it, and click's own is another class in recent versions.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

console = Console(soft_wrap=True, highlight=False)


def application(**settings: Any) -> typer.Typer:
    """A typer application with this project's settings: plain tracebacks and no completion options in the help."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=False, **settings)


def single(name: str, command: Callable[..., Any], argv: Sequence[str] | None) -> int:
    """Runs a program that consists of one command."""
    app = application()
    app.command()(command)
    return run(name, app, argv)


def run(name: str, app: typer.Typer, argv: Sequence[str] | None) -> int:
    """Runs an application and turns what it raises into an exit code.

    Args:
        name: The program, for usage lines and errors.
        app: Its commands; one may return an exit code.
        argv: The arguments; the process's own if None.
    """
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        result = typer.main.get_command(app).main(args=arguments, prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except (KokoroTvmError, _UsageError) as error:
        _explain(name, error)
        return MISUSED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        return FAILED


def _explain(name: str, error: Exception) -> None:
    if environment.debug_traceback():
        traceback.print_exception(error)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def compiler_packages() -> Iterator[None]:
    """Says what to install where importing the compiler's side fails.

    Raises:
        ToolchainError: PyTorch, kokoro, a package of theirs or onnx is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ToolchainError(f"this needs {error.name}, which speaking does not: pip install 'kokoro-tvm[{extra}]'") from error


def check_writable(path: Path) -> None:
    """Finds out before hours of work whether a file can be written afterwards; leaves no trace.

    Raises:
        OutputError: It cannot.
    """
    if path.exists() and not path.is_file():
        raise OutputError(f"cannot write {path}: it exists and is not a regular file")
    try:
        # Written beside the target and moved there later, so the folder is what has to be writable.
        tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def wide_console() -> Console:
    """For tables that should not be cut to 80 columns where the output is a file or a pipe."""
    return console if console.is_terminal else Console(soft_wrap=True, highlight=False, width=160)


def rows_table(rows: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """Names and values, one pair a line."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(value))
    return table


def warn_synthetic(synthetic: bool) -> None:
    """Says that the weights are no speaker's, where that is so."""
    if synthetic:
        console.print(NOT_SPEECH, style="bold yellow")


def announce(checkpoint: Checkpoint) -> None:
    """Says what whoever asked for a checkpoint should know of it."""
    if checkpoint.notice:
        console.print(escape(checkpoint.notice), style="yellow")
    warn_synthetic(checkpoint.synthetic)


def peak_memory() -> float:
    """The most memory this process has held so far, in GiB."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def read_text(text: str | None, file: Path | None, phonemes: str | None = None) -> str | None:
    """The text to speak, from wherever it was given; None if phonemes were.

    Raises:
        InputError: Not exactly one was given, or the file cannot be read.
    """
    given = [name for name, value in (("TEXT", text), ("--text-file", file), ("--phonemes", phonemes)) if value is not None]
    if len(given) != 1:
        raise InputError(f"give one of TEXT, --text-file and --phonemes, got {' and '.join(given) or 'none'}")
    try:
        if "-" in (text, str(file)):
            return sys.stdin.buffer.read().decode("utf-8-sig")
        return file.read_text(encoding="utf-8-sig") if file else text
    except OSError as error:
        raise InputError(f"cannot read the text {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not UTF-8: {error}") from error
