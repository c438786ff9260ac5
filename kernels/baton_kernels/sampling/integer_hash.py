"""Integer mixing functions on torch tensors, wrapping as unsigned arithmetic does: noise and KV checksums are made
of them.

splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. mix32: the
multiply-xorshift of C. Wellons' hash search ("lowbias32"), here with a key mixed in half-way. torch has no unsigned
arithmetic: values are the int64 or int32 bit patterns, and a logical shift is an arithmetic one with the sign's
copies masked away.
"""

from __future__ import annotations

from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
SPLITMIX_1 = 0xBF58476D1CE4E5B9
SPLITMIX_2 = 0x94D049BB133111EB
MIX32_1 = 0x7FEB352D
MIX32_2 = 0x846CA68B


def signed(value: int, bits: int) -> int:
    """The signed integer with the bit pattern of an unsigned one."""
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


def splitmix64(x: Tensor) -> Tensor:
    """The splitmix64 output for state x (int64), any shape: x plus the golden gamma, then finalised."""
    x = x + signed(GOLDEN, 64)
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(signed(SPLITMIX_1, 64))
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(signed(SPLITMIX_2, 64))
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))


def mix32(x: Tensor, key: Tensor | int) -> Tensor:
    """x (int32) mixed with a key (an int32 tensor that broadcasts to x, or an integer)."""
    x = x ^ (x >> 16).bitwise_and_(0xFFFF)
    x.mul_(signed(MIX32_1, 32)).bitwise_xor_(key)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(signed(MIX32_2, 32))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
