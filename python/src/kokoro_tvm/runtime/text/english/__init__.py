"""English text to the phonemes that Kokoro was trained on, without a tagger, a dictionary or a synthesizer of others' installed.

What it is: a front end of our own over misaki's lexicons (data files of the package ``misaki``, Apache-2.0). What it is not:
the choice between front ends (``text.g2p``), or any other language.
"""

from kokoro_tvm.runtime.text.english.frontend import English, Spoken

__all__ = ["English", "Spoken"]
