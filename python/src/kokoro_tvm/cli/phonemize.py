"""``kokoro-tvm phonemize``: how a text would be said, without a model.

What it is: the words with their phonemes and where those come from, and the windows that would be synthesized. What it is not:
the front end itself (``kokoro_tvm.runtime.text``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kokoro_tvm.cli.common import console, read_text

if TYPE_CHECKING:
    from kokoro_tvm.runtime.text.g2p import G2P

PHONEMES_PER_SECOND = 17
"""About, at speed 1: what published voices took for texts of 20 to 500 phonemes."""


def phonemize(
    text: Annotated[str | None, typer.Argument(help="The text; - for standard input.")] = None,
    lang: Annotated[str, typer.Option("--lang", "-l", help="a b e f h i j p z, or en-us en-gb es fr-fr hi it ja zh.")] = "a",
    g2p: Annotated[str, typer.Option(help="auto, lexicon (English), misaki or espeak.")] = "auto",
    text_file: Annotated[Path | None, typer.Option(help="A UTF-8 file with the text; - for standard input.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Show how a text is said: words, tags, phonemes, their origin, and windows."""
    from kokoro_tvm.errors import InputError
    from kokoro_tvm.runtime.text.g2p import G2P
    from kokoro_tvm.runtime.text.windows import paragraphs

    source = read_text(text, text_file)
    converter = G2P(lang, g2p)
    shown = [_paragraph(converter, p) for p in paragraphs(source or "")]
    if not shown:
        raise InputError("the text is empty")
    if as_json:
        report = {"language": converter.language, "g2p": converter.backend, "paragraphs": shown}
        print(json.dumps(report, ensure_ascii=False, indent=1))
        return
    words = _table("word", "tag", "phonemes", "from")
    windows = _table("window", "phonemes", "about", "")
    for word in (w for p in shown for w in p["words"]):
        words.add_row(*(escape(word[key]) for key in ("text", "tag", "phonemes", "from")))
    for i, window in enumerate(w for p in shown for w in p["windows"]):
        windows.add_row(str(i + 1), str(len(window["phonemes"])), f"{window['seconds']:.1f} s", escape(window["phonemes"]))
    console.print(words)
    console.print(windows)


def _paragraph(converter: G2P, paragraph: str) -> dict[str, Any]:
    """A paragraph's words and windows, as they are printed."""
    from kokoro_tvm.runtime.text.windows import split

    words = [
        {"text": token.text, "tag": tag, "phonemes": token.phonemes, "from": source}
        for token, tag, source in converter.explain(paragraph)
    ]
    windows = [
        {"text": w.text, "phonemes": w.phonemes, "seconds": round(len(w.phonemes) / PHONEMES_PER_SECOND, 2)}
        for w in split(converter(paragraph))
    ]
    return {"words": words, "windows": windows}


def _table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column)
    return table
