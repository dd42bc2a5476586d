"""What a default install brings: nothing under the GPL, and enough to speak English."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)
LESSER = re.compile(r"LGPL|Lesser General Public", re.IGNORECASE)
ROOT = Path(__file__).resolve().parents[1]


def requirements(name: str, extras: tuple[str, ...] = ()) -> list[str]:
    """Names that a package requires here, without extras or with some."""
    found = [Requirement(r) for r in importlib.metadata.requires(name) or []]
    environments = [{"extra": e} for e in ("", *extras)]
    return [r.name for r in found if r.marker is None or any(r.marker.evaluate(e) for e in environments)]


def default_install() -> set[str]:
    """Everything that the default dependencies bring, those of pyproject.toml as it is now among them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block
    open_ends = [Requirement(line).name for line in re.findall(r'^\s*"([^"]+)"', block[1], re.MULTILINE)]
    assert "misaki" in open_ends and "numpy" in open_ends
    found: set[str] = set()
    while open_ends:
        name = open_ends.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            open_ends += requirements(name)
    return found


def licences(name: str) -> str:
    """What a package says of its licence, in its three places."""
    about = importlib.metadata.metadata(name)
    stated = [about.get("License-Expression") or "", (about.get("License") or "")[:200]]
    return "; ".join(stated + [c for c in about.get_all("Classifier") or [] if c.startswith("License")])


def test_nothing_under_the_gpl():
    names = default_install()
    assert len(names) > 15
    assert not {"phonemizer-fork", "phonemizer", "espeakng-loader", "spacy", "torch", "num2words"} & names
    offenders = {n: licences(n) for n in names if COPYLEFT.search(LESSER.sub("", licences(n)))}
    assert not offenders


def test_the_check_knows_the_gpl():
    assert COPYLEFT.search(licences("phonemizer-fork"))


def test_english_needs_nothing_else():
    code = (
        "import sys\n"
        "for name in ('phonemizer', 'espeakng_loader', 'spacy', 'torch', 'num2words', 'transformers'): sys.modules[name] = None\n"
        "from kokoro_tvm.runtime.text.g2p import G2P\n"
        "from kokoro_tvm.runtime.text.windows import join_phonemes\n"
        "print(join_phonemes(G2P('a')('Hello Blick, 42!')), join_phonemes(G2P('b')('Hello car')))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("həlˈO blˈɪk, fˈɔɹTi tˈu! həlˈQ kˈɑː")
