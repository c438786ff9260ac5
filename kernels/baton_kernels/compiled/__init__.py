"""The compiler of CPU kernels: written in Python over typed vectors, made into code by LLVM."""
