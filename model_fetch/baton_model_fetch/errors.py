"""Why a model could not be fetched.

FetchError
├── SourceRefused asking again will not help: no such model, no access, a broken source; the Job's message
├── VolumeRefused asking again will not help: the cache volume has no room, or lacks what a fetch needs
├── Damaged       what arrived is not what the source said it would be
└── Interrupted   a time-out, a lost connection or a server's 5xx: worth another try
    └── Busy      another process fetches the same model into the same cache: worth waiting for
"""

from __future__ import annotations


class FetchError(Exception):
    pass


class SourceRefused(FetchError):
    pass


class VolumeRefused(FetchError):
    pass


class Damaged(FetchError):
    pass


class Interrupted(FetchError):
    pass


class Busy(Interrupted):
    pass
