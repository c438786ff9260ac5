"""The prefix cache's index: which block holds the KV of which context, by chained digests of full blocks.

The digests are those of `baton_wire.rules.prefix_digests`. The index finds the block of such KV; `blocks` decides when
a block may be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set


class PrefixIndex:
    """Published blocks of one `kv_group` by digest. One block per digest: a second block with the same content stays
    unpublished.

    >>> from baton_wire.rules.prefix_digests import block_digest, root_digest
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

    def withdraw(self, block: int) -> bytes:
        """Remove a block whose content is about to be lost, and return its digest."""
        digest, parent = self._digests.pop(block)
        del self._block_of[digest]
        siblings = self._children[parent]
        del siblings[block]
        if not siblings:
            del self._children[parent]
        return digest

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
