"""Changes to kernels before they are compiled: how tests inject faults."""

from __future__ import annotations

import re
from collections.abc import Callable

Edit = Callable[[str, str], str]
"""From a kernel's name and its MSL to the MSL that is compiled in its place."""


def replace_once(kernel: str, pattern: str, replacement: str, occurrence: int = 0) -> Edit:
    """An edit that replaces one match of a regular expression, and insists that there is something to replace.

    Args:
        kernel: Regular expression; the edit concerns kernels in whose name it is found.
        pattern: Regular expression in the MSL.
        replacement: As for ``re.sub``.
        occurrence: Which match, from 0.

    Returns:
        The edit. It raises ValueError where the kernel has too few matches.
    """

    def edit(name: str, msl: str) -> str:
        if not re.search(kernel, name):
            return msl
        matches = list(re.finditer(pattern, msl))
        if len(matches) <= occurrence:
            raise ValueError(f"kernel {name}: {len(matches)} matches of {pattern!r}, expected more than {occurrence}")
        match = matches[occurrence]
        return msl[: match.start()] + match.expand(replacement) + msl[match.end() :]

    return edit
