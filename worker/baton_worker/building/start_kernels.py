"""Which kernels a start on a GPU finds compiled, and which it compiles itself.

They are found in the folder that `--kernels` names and in Triton's own cache. Where one of the two says that it covers
a worker like this one, the start does not look for what there is to compile: most of a warm start is that.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from baton_engine.running.launches import Launches
from baton_kernels.ahead.kernel_folder import (
    ABOUT,
    CompiledHere,
    KernelFolder,
    own_cache,
    read_folder,
    use_folder,
    write_about,
)

log = logging.getLogger(__name__)


class StartKernels:
    """Of one process; made before anything is launched. What takes long is found out beside the loading of weights."""

    def __init__(self, folder: Path | None, gpu: str) -> None:
        """`gpu`: as its driver calls it. A folder that does not fit is said in the log."""
        self._gpu = gpu
        self._is_serving = False
        self.here = CompiledHere(self._compiled)
        self.here.watch()
        if folder is not None and (folder / ABOUT).is_file():
            use_folder(folder)
        thread = ThreadPoolExecutor(1, "kernels")  # not `with`: that would wait for what it is to do beside the loading
        self._folders = thread.submit(self._fitting, folder)
        thread.shutdown(wait=False)

    def cover(self, launches: Launches) -> bool:
        """Whether all that it launches before it is ready is compiled already, as far as the folders say."""
        return any(launches.digest in folder.covered for folder in self._folders.result())

    def keep(self, launches: Launches) -> None:
        """All of it is compiled now: the next start with Triton's cache need not look."""
        if self.cover(launches):
            return
        try:
            write_about(own_cache(), self._gpu, {launches.digest: str(launches)})
        except OSError as error:
            log.warning("kernels: %s cannot be written: %s", own_cache(), error.strerror)

    def ready(self) -> None:
        """From now on a kernel that has to be compiled holds up requests."""
        self._is_serving = True
        names = self.here.names
        text = f": {', '.join(sorted(set(names)))}" if names else ""
        log.info("kernels: %d found, %d compiled here%s", self.here.found, len(names), text)

    def _compiled(self, name: str, seconds: float) -> None:
        if self._is_serving:
            log.warning("kernel %s was compiled while serving: %.2f s", name, seconds)

    def _fitting(self, folder: Path | None) -> list[KernelFolder]:
        """That one and Triton's own cache, as far as they say what they cover and fit: hashes Triton, 0.7 s."""
        found = []
        if folder is not None:
            try:
                ahead = read_folder(folder)
            except ValueError as error:
                log.warning("kernels: %s", error)
            else:
                why = ahead.unfit(self._gpu)
                if why is None:
                    found.append(ahead)
                else:
                    log.warning("kernels of %s are not used: %s", folder, why)
        try:
            own = read_folder(own_cache())
        except ValueError:  # no start was through before
            return found
        return found if own.unfit(self._gpu) else [*found, own]
