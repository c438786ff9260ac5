"""Recording needs a process without garbage collection."""

from __future__ import annotations

import gc
import weakref

import pytest

from baton_engine.running.capturing import no_garbage_collection


class Graph:
    """One that only the collector frees, as an engine's do that refer to each other."""

    def __init__(self) -> None:
        self.self = self


def test_nothing_is_collected_while_a_graph_is_recorded_and_all_is_later() -> None:
    gone = weakref.ref(Graph())
    with no_garbage_collection():
        young = [Graph() for _ in range(2 * gc.get_threshold()[0])]
        assert gone() is not None
        assert len(young) > 0
    assert gc.isenabled()
    gc.collect()
    assert gone() is None


def test_a_recording_that_fails_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ValueError, match="capture"), no_garbage_collection():
        raise ValueError("capture")
    assert gc.isenabled()
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
