"""The prefix cache's index: which block holds the KV of which context, by hash chains over full blocks.

A full block's digest covers its own token ids and, through its parent's digest, everything before it; the chain starts
from the salt, so that tenants (or adapters) never share. Two equal digests mean equal contexts, hence equal KV. The
index finds the block of such KV; `blocks` decides when a block may be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from hashlib import blake2b

from baton_wire.messages.values import pack_ids

DIGEST_BYTES = 32


def root_digest(salt: str) -> bytes:
    """Parent of every first block under `salt`."""
    text = salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=DIGEST_BYTES, person=b"baton-prefix").digest()


def block_digest(parent: bytes, ids: list[int] | tuple[int, ...]) -> bytes:
    """Digest of the full block that holds `ids` after the context whose digest is `parent`."""
    return blake2b(parent + pack_ids(ids), digest_size=DIGEST_BYTES).digest()


class PrefixIndex:
    """Published blocks of one `kv_group` by digest. One block per digest: a second block with the same content stays
    unpublished.

    >>> root = root_digest(salt="")
    >>> first = block_digest(root, (5, 6))
    >>> second = block_digest(first, (7, 8))
    >>> index = PrefixIndex()
    >>> index.publish(3, first, root), index.publish(9, second, first)
    (True, True)
    >>> index.match([first, second, block_digest(second, (1, 1))], limit=3)
    [3, 9]
    """

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digests: dict[int, tuple[bytes, bytes]] = {}  # block → its digest, its parent's digest
        self._children: dict[bytes, dict[int, None]] = {}  # parent's digest → blocks, in order of publication

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, block: int) -> bool:
        return block in self._digests

    def blocks(self) -> Set[int]:
        """All published blocks."""
        return self._digests.keys()

    def publish(self, block: int, digest: bytes, parent: bytes) -> bool:
        """Publish a block that holds computed or verified KV of `digest`. No effect, and False, when another block
        already has this digest."""
        if digest in self._block_of or block in self._digests:
            return False
        self._block_of[digest] = block
        self._digests[block] = (digest, parent)
        self._children.setdefault(parent, {})[block] = None
        return True

    def withdraw(self, block: int) -> None:
        """Remove a block whose content is about to be lost."""
        digest, parent = self._digests.pop(block)
        del self._block_of[digest]
        siblings = self._children[parent]
        del siblings[block]
        if not siblings:
            del self._children[parent]

    def children(self, block: int) -> Iterable[int]:
        """Published blocks that continue this block's context."""
        return self._children.get(self._digests[block][0], ())

    def block(self, digest: bytes) -> int | None:
        """The block with this digest: the last one of its context."""
        return self._block_of.get(digest)

    def match(self, digests: Sequence[bytes], limit: int) -> list[int]:
        """Blocks of the longest published prefix of the chain, at most `limit`."""
        blocks: list[int] = []
        for digest in digests[:limit]:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks
