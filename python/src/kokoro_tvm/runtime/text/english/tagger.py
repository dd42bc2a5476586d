"""Part-of-speech tags, as far as a pronunciation depends on them.

What it is: an averaged perceptron that reads left to right, its weights int8 in ``tagger.npz`` (``scripts/train_tagger`` makes
them). It imitates the tags that misaki's lexicon was used with: Penn Treebank's, as spaCy gives them. What it is not: a parser;
a token's tag depends on two neighbours on each side.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

import numpy as np

BUCKETS = 1 << 17
"""Rows of the weights; features share them by hash."""
CONTEXT = 2
"""Tokens seen on each side."""
_EDGE = ("<", "", "<", "")

MARK_TAGS = {
    **dict.fromkeys(".!?", "."),
    ",": ",",
    **dict.fromkeys(":;…—–", ":"),
    **dict.fromkeys("([{", "-LRB-"),
    **dict.fromkeys(")]}", "-RRB-"),
    "“": "``",
    "”": "''",
}
"""Tags of marks that need no thought."""


class Tagger:
    """A table of weights; safe to share between threads.

    Args:
        tags: The names of the columns.
        weights: [BUCKETS, tags], integers or floats.
        fixed: Words (lower case) that have one tag only.
    """

    def __init__(self, tags: Sequence[str], weights: np.ndarray, fixed: dict[str, str]) -> None:
        self.tags = tuple(tags)
        self.weights = weights
        self.fixed = fixed

    def __call__(self, words: Sequence[str]) -> list[str]:
        """The tag of each token of a paragraph."""
        seen = [_EDGE] * CONTEXT + [_view(w) for w in words] + [_EDGE] * CONTEXT
        tags: list[str] = []
        before, last = "<", "<"
        for i, word in enumerate(words):
            tag = MARK_TAGS.get(word) or self.fixed.get(seen[i + CONTEXT][0])
            if tag is None:
                rows = self.weights[features(seen, i + CONTEXT, last, before)]
                tag = self.tags[int(rows.sum(0, dtype=np.int32).argmax())]
            tags.append(tag)
            before, last = last, tag
        return tags


@lru_cache(maxsize=1)
def load() -> Tagger:
    """The tagger that is shipped."""
    with resources.files(__package__).joinpath("tagger.npz").open("rb") as file, np.load(file) as data:
        tags = str(data["tags"]).split()
        weights = np.zeros((BUCKETS, len(tags)), np.int8)
        weights.reshape(-1)[np.cumsum(data["gaps"], dtype=np.int64)] = data["values"]
        words = [line.split() for line in str(data["fixed"]).splitlines()]
    return Tagger(tags, weights, dict(words))


def features(seen: Sequence[tuple[str, str, str, str]], i: int, last: str, before: str) -> list[int]:
    """The rows for one token.

    Args:
        seen: What ``_view`` says of each token, with ``CONTEXT`` edges at both ends.
        i: Which one.
        last: The tag before it.
        before: The tag before that.
    """
    (w2, _, _, _), (w1, s1, e1, _), (w, s, e, p), (n1, t1, f1, _), (n2, _, f2, _) = seen[i - 2 : i + 3]
    names = (
        f"w{w}", f"e{e}", f"p{p}|{e}", f"s{s}|{s1}|{t1}", f"S{s}|{w1}", f"t{last}", f"T{last}|{before}", f"u{last}|{w}",
        f"a{w1}", f"b{w1}|{w}", f"c{w2}", f"d{e1}|{e}", f"n{n1}", f"m{w}|{n1}", f"f{f1}|{e}", f"g{n2}", f"h{last}|{n1}",
        f"k{last}|{e}|{f1}", f"o{n1}|{f2}", f"q{last}|{s}|{e}",
    )  # fmt: skip
    return [zlib.crc32(name.encode("utf-8", "surrogatepass")) & (BUCKETS - 1) for name in names]


@lru_cache(maxsize=65536)
def _view(word: str) -> tuple[str, str, str, str]:
    """A token as the features see it: lower case with digits as 0, its shape, its ending and its beginning."""
    word = word[:40].replace("’", "'")
    if word.isalpha() or not any(c.isdigit() for c in word):
        lower = word.lower()
    else:
        lower = "".join("0" if c.isdigit() else c for c in word.lower())
    if word.isupper():
        shape = "A" if len(word) == 1 else "AA"
    elif word[:1].isupper():
        shape = "Aa"
    else:
        shape = "a" if word.isalpha() else "0" if "0" in lower else "-"
    return lower, shape, lower[-3:], lower[:2]


view = _view
