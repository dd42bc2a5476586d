"""``python -m kokoro_tvm`` is ``kokoro-tvm``."""

from kokoro_tvm.cli.__main__ import main

raise SystemExit(main())
