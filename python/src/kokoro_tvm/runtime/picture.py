"""Speech as a picture: its spectrogram with the words below it.

What it is: one figure for a person to look at. What it is not: a comparison (``validate.report``) or a measure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kokoro_tvm.artifact import staged
from kokoro_tvm.errors import InputError, ToolchainError

if TYPE_CHECKING:
    from kokoro_tvm.runtime.synthesis import Speech

SUFFIXES = (".png", ".svg", ".pdf")
WINDOW, HOP = 600, 120
"""Samples: 25 ms show the harmonics of a voice, every 5 ms its transients."""
RANGE_DB = 80.0
"""Below the loudest value; what is softer is drawn black."""
_LONGEST = 2000
"""Columns that a picture can show: longer speech is shown in larger steps."""


def spectrogram(samples: np.ndarray, hop: int = HOP) -> np.ndarray:
    """Power in dB below the loudest value, [301, 1 + ⌊T / hop⌋], of samples [T]; column k is centred on sample k · hop."""
    padded = np.pad(np.asarray(samples, np.float64), WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1])).T ** 2
    loudest = power.max() or 1.0
    return 10 * np.log10(np.maximum(power / loudest, 10 ** (-RANGE_DB / 10)))


def write_spectrogram(path: Path | str, speech: Speech) -> Path:
    """Draws a speech into ``path``, whose ending is one of ``SUFFIXES``; all or nothing.

    Raises:
        InputError: The file type is unknown.
        OutputError: The file cannot be written.
        ToolchainError: matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"file type of {path} is unknown, expected one of {', '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolchainError(f"pictures need matplotlib ({error}): pip install 'kokoro-tvm[validate]'") from error
    hop = HOP * max(1, -(-len(speech.samples) // (HOP * _LONGEST)))
    figure = Figure(figsize=(min(24.0, 5 + 2.5 * speech.seconds), 4.2), layout="constrained")
    axis = figure.subplots()
    axis.imshow(
        spectrogram(speech.samples, hop), origin="lower", aspect="auto", cmap="magma", vmin=-RANGE_DB, vmax=0,
        extent=(0, speech.seconds, 0, speech.sample_rate / 2000),
    )  # fmt: skip
    axis.set_ylabel("kHz")
    axis.set_xlabel("seconds")
    words = axis.secondary_xaxis("top")
    words.set_xticks([(w.start + w.end) / 2 for w in speech.words], [w.text for w in speech.words], rotation=45, ha="left")
    for label in words.get_xticklabels():
        label.set_parse_math(False)  # "$" is money here
    words.tick_params(length=0)
    for word in speech.words:
        axis.axvline(word.start, color="white", linewidth=0.4, alpha=0.6)
    with staged(path) as temporary:
        figure.savefig(temporary, dpi=110)
    return path
