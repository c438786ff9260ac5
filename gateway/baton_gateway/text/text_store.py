"""Text models of the revisions that are linked, each loaded once."""

from __future__ import annotations

import asyncio
import weakref

from baton_gateway.answers.formats import AS_FOUND, FormatNames
from baton_gateway.helper_processes.process_lane import HealthProblem
from baton_gateway.text.revision_text import TextModel, load_text_model, text_model_apart, unforeseen
from baton_gateway.text.tokenizer_process import LARGE_BUNDLE_BYTES, TokenizerApart

_PATTERN = b"Regex"
"""How `tokenizer.json` names a pattern."""


class TextStore:
    """Text models by bundle hash; the most recently used few are kept, since loading one takes a second."""

    def __init__(
        self, capacity: int = 4, large_bytes: int = LARGE_BUNDLE_BYTES, formats: FormatNames = AS_FOUND
    ) -> None:
        """The tokenizers of bundles of more than `large_bytes` are loaded in processes apart. `formats`: how all models
        write calls and thoughts.
        """
        self._formats = formats
        self._capacity = capacity
        self._large_bytes = large_bytes
        self._models: dict[str, TextModel] = {}
        self._loading: dict[str, asyncio.Task[TextModel]] = {}
        self._apart: weakref.WeakSet[TokenizerApart] = weakref.WeakSet()

    async def load(self, data: bytes, bundle_hash: str) -> TextModel:
        """The model of a bundle. Raises BundleError. Workers of one revision that link at once share one load, and one
        that takes longer than a link waits goes on for the next.
        """
        model = self._models.pop(bundle_hash, None)
        if model is None:
            task = self._loading.get(bundle_hash)
            if task is None:
                task = self._loading[bundle_hash] = asyncio.create_task(self._load(data, bundle_hash))
            return await asyncio.shield(task)
        self._models[bundle_hash] = model
        return model

    async def stop(self) -> None:
        """End what is being loaded, and the processes."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(apart.close() for apart in list(self._apart)))

    async def look(self) -> None:
        """Ask processes that fail whether they serve again."""
        await asyncio.gather(*(apart.look() for apart in list(self._apart)))

    def ailments(self, now: float) -> list[HealthProblem]:
        return [ailment for apart in list(self._apart) for ailment in apart.ailments(now)]

    async def _load(self, data: bytes, bundle_hash: str) -> TextModel:
        try:
            model = await (self._load_apart if self._is_apart(data) else self._load_here)(data, bundle_hash)
            self._models[bundle_hash] = model
            while len(self._models) > self._capacity:
                dropped = self._models.pop(next(iter(self._models)))
                if dropped.apart is not None:  # a revision that is still linked starts its processes again
                    await dropped.apart.release()
            return model
        finally:
            del self._loading[bundle_hash]

    def _is_apart(self, data: bytes) -> bool:
        """Also one with patterns of its own, which may take any time, and panic."""
        return len(data) > self._large_bytes or _PATTERN in data

    async def _load_apart(self, data: bytes, bundle_hash: str) -> TextModel:
        apart = TokenizerApart(data, bundle_hash)
        self._apart.add(apart)
        model = None
        try:
            loaded = await apart.load()
            try:
                model = text_model_apart(apart, loaded, self._formats)
            except BaseException as error:  # a file that nobody foresaw
                raise unforeseen(error) from error
        finally:
            if model is None:
                await apart.close()
        return model or await self._load_here(data, bundle_hash)

    async def _load_here(self, data: bytes, bundle_hash: str) -> TextModel:
        return await asyncio.to_thread(load_text_model, data, bundle_hash, self._formats)
