"""Components as ONNX: what the operators mean there, the files, and the way from them to Relax. Imports no PyTorch."""
