"""A batch: its record on disk, how its state changes, and the object that clients see. Pure.

    validating → in_progress → finalizing → completed | expired | cancelled
    validating → failed

Only the process that owns a batch writes its record. A client's wish to cancel is a file next to it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

WINDOW: Final = "24h"
WINDOW_S: Final = 86_400
KEPT_S: Final = 30 * 86_400
"""How long a file is kept where its creation names no other time, and the record of a batch after its end."""
MAX_SHOWN_ERRORS: Final = 100
"""The most errors of an input file that a failed batch lists."""


class BatchStatus(enum.StrEnum):
    """The states of OpenAI's batches. `CANCELLING` is never in a record: it follows from the client's wish."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self in _ENDED


_ENDED: Final = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


class BatchProblem(msgspec.Struct, frozen=True):
    """One reason why a batch failed, or why it pauses."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(msgspec.Struct, frozen=True):
    """One batch. All times are seconds of the wall clock."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    """The ids that the files get if they have lines; they are chosen ahead, so that finalising can be repeated."""
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    ends_as: BatchStatus = BatchStatus.COMPLETED
    """The state after `FINALIZING`."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: tuple[BatchProblem, ...] = ()
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    ended_at: int | None = None
    has_output: bool = False
    has_errors: bool = False
    output_kept_s: int = KEPT_S
    """How long its files of answers are kept after they were made."""


def begin(record: BatchRecord, total: int, now: int) -> BatchRecord:
    """The input is valid: its lines are answered from now on."""
    return msgspec.structs.replace(record, status=BatchStatus.IN_PROGRESS, total=total, in_progress_at=now)


def fail(record: BatchRecord, errors: Sequence[BatchProblem], now: int) -> BatchRecord:
    """The input is invalid."""
    shown = tuple(errors[:MAX_SHOWN_ERRORS])
    return msgspec.structs.replace(record, status=BatchStatus.FAILED, errors=shown, ended_at=now)


def count(record: BatchRecord, completed: int, failed: int) -> BatchRecord:
    """Note how many lines are answered."""
    return msgspec.structs.replace(record, completed=completed, failed=failed)


def finalize(record: BatchRecord, ends_as: BatchStatus, now: int) -> BatchRecord:
    """No line is answered from now on."""
    return msgspec.structs.replace(record, status=BatchStatus.FINALIZING, ends_as=ends_as, finalizing_at=now)


def end(record: BatchRecord, now: int, *, has_output: bool, has_errors: bool) -> BatchRecord:
    """The files of answers can be read."""
    return msgspec.structs.replace(
        record, status=record.ends_as, ended_at=now, has_output=has_output, has_errors=has_errors
    )


@dataclass(frozen=True, slots=True)
class BatchWish:
    """The state of the files next to a record."""

    cancelled_at: int | None = None
    """When a client asked to cancel it; None: none did."""
    pause: BatchProblem | None = None
    """Why no line is answered at present; None: lines are."""


def shown_status(record: BatchRecord, wish: BatchWish) -> BatchStatus:
    """The state that clients see."""
    is_cancelled = wish.cancelled_at is not None and record.status is not BatchStatus.FAILED
    if is_cancelled and not record.status.has_ended:
        return BatchStatus.CANCELLING
    return record.status


def batch_object(record: BatchRecord, wish: BatchWish) -> dict[str, Any]:
    """The batch in OpenAI's form."""
    status = shown_status(record, wish)
    errors = record.errors or (() if wish.pause is None or record.status.has_ended else (wish.pause,))
    listed = [msgspec.structs.asdict(error) for error in errors]

    def ended(as_status: BatchStatus) -> int | None:
        return record.ended_at if status is as_status else None

    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "errors": {"object": "list", "data": listed} if listed else None,
        "input_file_id": record.input_file_id,
        "completion_window": WINDOW,
        "status": status.value,
        "output_file_id": record.output_file_id if record.has_output else None,
        "error_file_id": record.error_file_id if record.has_errors else None,
        "created_at": record.created_at,
        "in_progress_at": record.in_progress_at,
        "expires_at": record.expires_at,
        "finalizing_at": record.finalizing_at,
        "completed_at": ended(BatchStatus.COMPLETED),
        "failed_at": ended(BatchStatus.FAILED),
        "expired_at": ended(BatchStatus.EXPIRED),
        "cancelling_at": wish.cancelled_at,
        "cancelled_at": ended(BatchStatus.CANCELLED),
        "request_counts": {"total": record.total, "completed": record.completed, "failed": record.failed},
        "metadata": record.metadata,
    }
