#!/usr/bin/env python3
"""Compiles what ``kokoro-tvm export --format onnx`` wrote to build/kokoro.so and build/kokoro_params.npz, without PyTorch."""

from kokoro_tvm.cli.compile_onnx import main

if __name__ == "__main__":
    raise SystemExit(main())
