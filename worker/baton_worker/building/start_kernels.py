"""The kernels of a start on a GPU: found compiled, or compiled by the start itself.

They are found in the folder that `--kernels` names and in Triton's own cache. If one of the two covers a worker like
this one, the start skips the search for kernels to compile, which is most of a warm start.
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
    """The kernels of one process; created before anything is launched. Slow checks run while weights are loaded."""

    def __init__(self, folder: Path | None, gpu: str) -> None:
        """`gpu`: the name that the driver reports. A folder that does not fit is logged."""
        self._gpu = gpu
        self._is_serving = False
        self.here = CompiledHere(self._on_compiled)
        self.here.watch()
        if folder is not None and (folder / ABOUT).is_file():
            use_folder(folder)
        thread = ThreadPoolExecutor(1, "kernels")  # not `with`, which would wait for the thread
        self._folders = thread.submit(self._find_folders, folder)
        thread.shutdown(wait=False)

    def cover(self, launches: Launches) -> bool:
        """True when every kernel of these launches is compiled already, according to the folders."""
        return any(launches.digest in folder.covered for folder in self._folders.result())

    def keep(self, launches: Launches) -> None:
        """Record that all these kernels are compiled now: the next start with Triton's cache skips the search."""
        if self.cover(launches):
            return
        try:
            write_about(own_cache(), self._gpu, {launches.digest: str(launches)})
        except OSError as error:
            log.warning("kernels: %s cannot be written: %s", own_cache(), error.strerror)

    def ready(self) -> None:
        """Warn about every kernel compiled from now on: it delays requests."""
        self._is_serving = True
        names = self.here.names
        text = f": {', '.join(sorted(set(names)))}" if names else ""
        log.info("kernels: %d found, %d compiled here%s", self.here.found, len(names), text)

    def _on_compiled(self, name: str, seconds: float) -> None:
        if self._is_serving:
            log.warning("kernel %s was compiled while serving: %.2f s", name, seconds)

    def _find_folders(self, folder: Path | None) -> list[KernelFolder]:
        """The folder and Triton's own cache, if they fit and state what they cover. Hashes Triton: 0.7 s."""
        fitting = []
        if folder is not None:
            try:
                ahead = read_folder(folder)
            except ValueError as error:
                log.warning("kernels: %s", error)
            else:
                why = ahead.unfit(self._gpu)
                if why is None:
                    fitting.append(ahead)
                else:
                    log.warning("kernels of %s are not used: %s", folder, why)
        try:
            own = read_folder(own_cache())
        except ValueError:  # no start has completed before
            return fitting
        return fitting if own.unfit(self._gpu) else [*fitting, own]
