"""kokoro-tvm: Kokoro-82M text-to-speech, compiled ahead of time with Apache TVM."""
