"""CPU kernels compiled when a model is loaded: written in Python over typed vectors, made into code by LLVM."""
