"""Hash chains over full blocks."""

from __future__ import annotations

from baton_engine.memory.prefix import PrefixIndex
from baton_wire.rules.prefix_digests import DIGEST_BYTES, block_digest, root_digest


def chain(*blocks: tuple[int, ...], salt: str = "") -> list[bytes]:
    digests = [root_digest(salt)]
    for ids in blocks:
        digests.append(block_digest(digests[-1], ids))
    return digests


def filled(digests: list[bytes]) -> PrefixIndex:
    """Publish block 10 + i under the i-th digest after the root."""
    index = PrefixIndex()
    for i in range(1, len(digests)):
        index.publish(9 + i, digests[i], digests[i - 1])
    return index


def test_digests_are_wide_enough_to_stand_for_contents() -> None:
    assert DIGEST_BYTES * 8 >= 128
    assert all(len(digest) == DIGEST_BYTES for digest in chain((1, 2), (3, 4)))


def test_a_digest_depends_on_everything_before_it() -> None:
    assert chain((1, 2), (3, 4))[2] != chain((1, 5), (3, 4))[2]
    assert chain((1, 2), (3, 4))[2] != chain((3, 4))[1]


def test_salt_and_layer_group_separate() -> None:
    assert chain((1, 2), salt="a")[1] != chain((1, 2), salt="b")[1]


def test_ids_are_not_confused_with_their_neighbours() -> None:
    assert chain((1, 256))[1] != chain((257, 0))[1]


def test_the_longest_published_beginning_is_found() -> None:
    digests = chain((1,), (2,), (3,))
    index = filled(digests)
    assert index.match(digests[1:], 9) == [10, 11, 12]
    assert index.match(digests[1:], 2) == [10, 11]
    assert index.match(chain((1,), (2,), (4,))[1:], 9) == [10, 11]
    assert index.match(chain((2,))[1:], 9) == []


def test_a_hole_ends_the_match() -> None:
    digests = chain((1,), (2,), (3,))
    index = filled(digests)
    index.withdraw(11)
    assert index.match(digests[1:], 9) == [10]
    index.publish(20, digests[2], digests[1])
    assert index.match(digests[1:], 9) == [10, 20, 12]


def test_the_first_block_with_a_content_stands_for_it() -> None:
    digests = chain((1,))
    index = filled(digests)
    index.publish(30, digests[1], digests[0])
    assert 30 not in index
    assert index.match(digests[1:], 9) == [10]


def test_children_are_known_until_withdrawn() -> None:
    digests = chain((1,), (2,))
    index = filled(digests)
    assert list(index.children(10)) == [11]
    index.withdraw(11)
    assert list(index.children(10)) == []
    assert len(index) == 1
