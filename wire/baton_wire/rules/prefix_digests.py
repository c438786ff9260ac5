"""Digests of a context's full blocks, chained from its salt: workers cache KV under them, gateways compare prompts.

A full block's digest covers its own token ids and, through its parent's digest, everything before it. The chain starts
from the salt, so that tenants never share. Two equal digests mean equal contexts, hence equal KV.

A *place* is the end of a full block in some context. Between processes it is named by the beginning of its digest.
Workers announce few of their places, and a gateway that finds one of its prompt's places announced knows that the
worker has all KV before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from baton_wire.messages.values import PACKED_ID_BYTES, PLACE_BYTES, pack_ids

DIGEST_BYTES = 32
MOST_PLACES = 32_768
"""Places that a worker announces at most: 256 KiB to a gateway that has just linked."""
ANNOUNCED_PER_S = 1_500
"""Changed places that a worker announces in a second at most: with the frames around them less than 16 KiB."""
DENSE_TOKENS = 1_024
"""In the first tokens of a context, up to this number, the end of each block is announced. Behind them only ends whose
number of blocks is a power of two, the context's own end, and the points where two cached contexts part."""


def root_digest(salt: str) -> bytes:
    """Parent of every first block under `salt`."""
    text = salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=DIGEST_BYTES, person=b"baton-prefix").digest()


def block_digest(parent: bytes, ids: list[int] | tuple[int, ...]) -> bytes:
    """Digest of the full block that holds `ids` after the context whose digest is `parent`."""
    return blake2b(parent + pack_ids(ids), digest_size=DIGEST_BYTES).digest()


def is_sparse(blocks: int, block_tokens: int) -> bool:
    """Return whether a context of this many full blocks ends at a place that is announced by its length alone.

    >>> [blocks for blocks in range(1, 1_025) if is_sparse(blocks, block_tokens=64)][14:]
    [15, 16, 32, 64, 128, 256, 512, 1024]
    """
    return blocks * block_tokens <= DENSE_TOKENS or blocks & (blocks - 1) == 0


def packed_places(packed: bytes, salt: str, block_tokens: int) -> bytes:
    """Names of all places of a prompt, in order, one after the other. `packed`: its ids, by `pack_ids`."""
    size, digest, names = PACKED_ID_BYTES * block_tokens, root_digest(salt), bytearray()
    for start in range(0, len(packed) - size + 1, size):
        digest = blake2b(digest + packed[start : start + size], digest_size=DIGEST_BYTES).digest()
        names += digest[:PLACE_BYTES]
    return bytes(names)


def split_places(names: bytes) -> list[bytes]:
    """Separate names that were put one after the other."""
    return [names[start : start + PLACE_BYTES] for start in range(0, len(names), PLACE_BYTES)]


@dataclass(slots=True)
class PromptPlaces:
    """The places of one prompt, computed once for each size of a worker's blocks."""

    packed: bytes
    salt: str
    _names: dict[int, bytes] = field(default_factory=dict)

    def names(self, block_tokens: int) -> bytes:
        """Names of all places, one after the other: some 1.2 ms for 100,000 tokens in blocks of 64."""
        names = self._names.get(block_tokens)
        if names is None:
            names = self._names[block_tokens] = packed_places(self.packed, self.salt, block_tokens)
        return names


def sparse_lengths(blocks: int, block_tokens: int) -> list[int]:
    """The sparse lengths of a context of this many full blocks, and its own, the longest first.

    >>> sparse_lengths(100, block_tokens=512)
    [100, 64, 32, 16, 8, 4, 2, 1]
    """
    dense = DENSE_TOKENS // block_tokens
    lengths = [1 << power for power in range(blocks.bit_length()) if 1 << power > dense]
    return sorted({*range(1, min(dense, blocks) + 1), *lengths, *([blocks] if blocks else [])}, reverse=True)


def common_blocks(names: bytes, others: bytes, least: int) -> int:
    """Number of blocks with which two contexts begin alike, `least` at least. Both: names of all places, in order.

    >>> common_blocks(b"12345678abcdefgh--------", b"12345678abcdefgh........", least=1)
    2
    """
    low, high = least, min(len(names), len(others)) // PLACE_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        place = slice((middle - 1) * PLACE_BYTES, middle * PLACE_BYTES)
        low, high = (middle, high) if names[place] == others[place] else (low, middle - 1)
    return low
