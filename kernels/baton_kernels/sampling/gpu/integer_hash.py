"""The integer mixing functions of `baton_kernels.sampling.integer_hash` for use inside Triton kernels, on unsigned
integers."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def splitmix64(x):
    """x uint64, any shape."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def mix32(x, key):
    """x, key uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x ^= key
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def noise_key(seed, choice, index):
    """Mix seed, choice and index, int64 scalars, into the key of a row's noise, uint64."""
    start = seed.to(tl.uint64, bitcast=True) + choice.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    return splitmix64(splitmix64(start) + index.to(tl.uint64, bitcast=True))


@triton.jit
def uniform_or_one(key, token):
    """Hash tokens [n] int32 to float32 in (0, 1]. Good for comparing; noise needs `uniform`."""
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = (key >> 32).to(tl.uint32)
    hashed = mix32(mix32(token.to(tl.uint32), 0) ^ low, high)
    return tl.fma((hashed & 0x7FFFFFFF).to(tl.int32).to(tl.float32), 1.0 / 2147483648.0, 0.5 / 2147483648.0)


@triton.jit
def below_one(w):
    """`uniform` of `uniform_or_one`."""
    return tl.minimum(w, 1.0 - 1.0 / 16777216.0)


@triton.jit
def uniform(key, token):
    """Hash tokens [n] int32 to float32 in (0, 1)."""
    return below_one(uniform_or_one(key, token))


@triton.jit
def gumbel_of(w):
    """The noise of `baton_kernels.sampling.gumbel` of a uniform number."""
    return -tl.log(tl.where(w < 1.0 / 4096.0, w + w * w * 0.5, -tl.log(1.0 - w)))


@triton.jit
def gumbel(seed, choice, index, token):
    """The noise of `baton_kernels.sampling.gumbel`: seed, choice, index int64 scalars, token [n] int32 → [n]
    float32."""
    return gumbel_of(uniform(noise_key(seed, choice, index), token))
