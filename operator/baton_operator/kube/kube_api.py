"""The operator's interface to the Kubernetes API, with typed errors.

Passes, informers and the Lease run against the Protocol; `http_client` talks to a real API server. A write whose answer
is lost may have happened or not: after `Unavailable` a caller reads before it writes again.

KubeError
├── NotFound, AlreadyExists, Expired (410: list anew), Unauthorized
├── Conflict          a precondition does not hold, or another manager owns a field that an apply without force sets
├── Forbidden         not allowed, a quota is used up (`is_quota`), or an admission webhook does not answer
├── Invalid           refused by field
├── TooManyRequests   retry after `retry_after_s`
└── Unavailable       no answer, a time-out or a 5xx: the outcome of a write is unknown
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, overload

from baton_control.errors import FieldProblem, OperatorError
from baton_operator.kube.object_fields import Manifest

Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of namespaced object, at one version of its API."""

    group: str
    """Empty for the core API."""
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class Change(enum.StrEnum):
    """The kinds of watch events. A bookmark carries only a resource version."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    change: Change
    object: Manifest


class ReadLater(Sequence[Manifest], Generic[Given]):
    """A sequence whose objects are decoded from `given` at each access and never kept: thousands of decoded objects
    take ten times the memory of their JSON."""

    def __init__(self, given: Sequence[Given], read: Callable[[Given], Manifest]) -> None:
        self._given, self._read = given, read

    def __len__(self) -> int:
        return len(self._given)

    @overload
    def __getitem__(self, index: int) -> Manifest: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Manifest]: ...

    def __getitem__(self, index: int | slice) -> Manifest | Sequence[Manifest]:
        if isinstance(index, slice):
            return ReadLater(self._given[index], self._read)
        return self._read(self._given[index])


@dataclass(frozen=True, slots=True)
class Listing:
    items: Sequence[Manifest]
    resource_version: str
    """The version from which a watch continues."""


class KubeApi(Protocol):
    """The calls. Each has a deadline of its own and raises nothing but KubeError.

    Manifests carry `metadata.name` and `metadata.namespace`. Where a manifest that is applied or replaced carries
    `metadata.uid` or `metadata.resourceVersion`, these are preconditions: another one raises Conflict; so does a uid
    where no object exists. Answers are whole objects as stored.
    """

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        """The object now, not from a cache. Raises NotFound."""

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        """All objects of a namespace (None: of all) that the label selector selects, `a=b,c` for instance, and the
        field selector, `involvedObject.uid=x` for instance."""

    def watch(
        self, resource: Resource, namespace: str | None, resource_version: str, selector: str = "", *, timeout_s: float
    ) -> AsyncIterator[WatchEvent]:
        """Changes since `resource_version`, bookmarks included. Ends, normally or by Unavailable, after `timeout_s` at
        the latest. Raises Expired when changes since then are no longer known. An object that stops to match the
        selector is DELETED, with its last state."""

    async def apply(
        self,
        resource: Resource,
        manifest: Manifest,
        *,
        manager: str,
        force: bool,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Manifest:
        """Server-side apply: creates what is absent, except through a subresource (NotFound). Fields that this manager
        applied before and leaves out now are removed unless another manager has them too. Without `force`, a field
        with another value that another manager owns raises Conflict with that manager in `managers`."""

    async def create(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        """Create an object. `metadata.generateName` is honoured. All its fields, defaults of the server included,
        belong to an update of the manager, so that its applies do not remove them. Raises AlreadyExists."""

    async def replace(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        """Replace an object. Raises NotFound, or Conflict when `metadata.resourceVersion` is not the stored one."""

    async def set_managed_fields(
        self, resource: Resource, namespace: str, name: str, entries: Sequence[Manifest], *, uid: str, version: str
    ) -> Manifest:
        """Make `entries` the object's `managedFields` and change nothing else. Raises NotFound, or Conflict when the
        object has another uid or resource version by now."""

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        """Delete that very object, its dependants in the background. Raises NotFound, or Conflict for another one."""

    async def served(self, group: str, version: str) -> frozenset[str]:
        """The plurals of the kinds in that version of a group; empty when the server does not have the version."""


class KubeError(OperatorError):
    """A refusal or a failure of the API server."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFound(KubeError):
    pass


class AlreadyExists(KubeError):
    pass


class Expired(KubeError):
    pass


class Unauthorized(KubeError):
    pass


class Conflict(KubeError):
    def __init__(self, message: str, managers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.managers = managers
        """The owners of the fields in conflict; empty when a precondition failed."""


class Forbidden(KubeError):
    def __init__(self, message: str, is_quota: bool = False) -> None:
        super().__init__(message)
        self.is_quota = is_quota


class Invalid(KubeError):
    def __init__(self, message: str, problems: tuple[FieldProblem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class TooManyRequests(KubeError):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(KubeError):
    pass
