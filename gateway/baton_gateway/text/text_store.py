"""The text models of the linked revisions, each loaded once."""

from __future__ import annotations

import asyncio
import weakref

from baton_gateway.answers.formats import DETECTED_FORMATS, FormatNames
from baton_gateway.helper_processes.process_lane import HealthProblem
from baton_gateway.text.revision_text import TextModel, bundle_error, load_text_model, text_model_of_process
from baton_gateway.text.tokenizer_process import LARGE_BUNDLE_BYTES, TokenizerProcess

_PATTERN = b"Regex"
"""The key of a regular expression in `tokenizer.json`."""


class TextStore:
    """Text models by bundle hash. The few used last are kept, since loading one takes a second."""

    def __init__(
        self, capacity: int = 4, large_bytes: int = LARGE_BUNDLE_BYTES, formats: FormatNames = DETECTED_FORMATS
    ) -> None:
        """`large_bytes`: the tokenizer of a larger bundle is loaded in helper processes. `formats`: the names of the
        formats in which all models write calls and reasoning.
        """
        self._formats = formats
        self._capacity = capacity
        self._large_bytes = large_bytes
        self._models: dict[str, TextModel] = {}
        self._loading: dict[str, asyncio.Task[TextModel]] = {}
        self._processes: weakref.WeakSet[TokenizerProcess] = weakref.WeakSet()

    async def load(self, data: bytes, bundle_hash: str) -> TextModel:
        """Return the model of a bundle. Raises BundleError.

        Workers of one revision that link at once share one load. A load that outlasts a link goes on for the next one.
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
        """Cancel loads and end the processes."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(process.close() for process in list(self._processes)))

    async def recheck(self) -> None:
        """Ask failing processes whether they serve again."""
        await asyncio.gather(*(process.recheck() for process in list(self._processes)))

    def health_problems(self, now: float) -> list[HealthProblem]:
        return [problem for process in list(self._processes) for problem in process.health_problems(now)]

    async def _load(self, data: bytes, bundle_hash: str) -> TextModel:
        try:
            load = self._load_in_process if self._needs_process(data) else self._load_in_thread
            model = await load(data, bundle_hash)
            self._models[bundle_hash] = model
            while len(self._models) > self._capacity:
                dropped = self._models.pop(next(iter(self._models)))
                if dropped.process is not None:  # a revision that is still linked starts its processes again
                    await dropped.process.release()
            return model
        finally:
            del self._loading[bundle_hash]

    def _needs_process(self, data: bytes) -> bool:
        """Return True for large bundles, and for patterns of their own, which may run for any time, or panic."""
        return len(data) > self._large_bytes or _PATTERN in data

    async def _load_in_process(self, data: bytes, bundle_hash: str) -> TextModel:
        process = TokenizerProcess(data, bundle_hash)
        self._processes.add(process)
        model = None
        try:
            loaded = await process.load()
            try:
                model = text_model_of_process(process, loaded, self._formats)
            except BaseException as error:  # an unexpected file
                raise bundle_error(error) from error
        finally:
            if model is None:
                await process.close()
        return model or await self._load_in_thread(data, bundle_hash)

    async def _load_in_thread(self, data: bytes, bundle_hash: str) -> TextModel:
        return await asyncio.to_thread(load_text_model, data, bundle_hash, self._formats)
