"""Files and batches in the OpenAPI document. A gateway serves them if it has a folder for them."""

from __future__ import annotations

from openapi_answers import REFUSALS, Schema

from baton_gateway.batches.batch_record import WINDOW, BatchStatus
from baton_gateway.batches.lines import URLS
from baton_gateway.http_api.batch_api import MAX_KEY_CHARS, MAX_METADATA, MAX_VALUE_CHARS
from baton_gateway.http_api.upload_body import LEAST_KEPT_S, MOST_KEPT_S, PURPOSES

ONLY = "Only where the gateway has --batch-folder: docs/batches.md."
EXPIRY: Schema = {
    "type": ["object", "null"],
    "required": ["anchor", "seconds"],
    "additionalProperties": False,
    "properties": {
        "anchor": {"const": "created_at"},
        "seconds": {"type": "integer", "minimum": LEAST_KEPT_S, "maximum": MOST_KEPT_S},
    },
}
SCHEMAS: dict[str, Schema] = {
    "BatchRequest": {
        "type": "object",
        "required": ["endpoint", "input_file_id", "completion_window"],
        "additionalProperties": False,
        "properties": {
            "endpoint": {"enum": list(URLS)},
            "input_file_id": {"type": "string"},
            "completion_window": {"enum": [WINDOW]},
            "metadata": {
                "type": ["object", "null"],
                "maxProperties": MAX_METADATA,
                "propertyNames": {"maxLength": MAX_KEY_CHARS},
                "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARS},
            },
            "output_expires_after": EXPIRY,
        },
    },
    "FileUpload": {
        "type": "object",
        "required": ["file", "purpose"],
        "additionalProperties": False,
        "properties": {
            "file": {"type": "string", "format": "binary", "description": "JSON lines, each a request."},
            "purpose": {"enum": list(PURPOSES)},
            "expires_after": EXPIRY,
        },
    },
    "File": {
        "type": "object",
        "required": ["id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status"],
        "properties": {
            "object": {"const": "file"},
            "bytes": {"type": "integer", "minimum": 0},
            "purpose": {"enum": [*PURPOSES, "batch_output"]},
        },
    },
    "Batch": {
        "type": "object",
        "required": ["id", "object", "endpoint", "input_file_id", "completion_window", "status", "created_at"],
        "properties": {
            "object": {"const": "batch"},
            "status": {"enum": [status.value for status in BatchStatus]},
            "output_file_id": {"type": ["string", "null"]},
            "error_file_id": {"type": ["string", "null"]},
            "request_counts": {"type": "object", "required": ["total", "completed", "failed"]},
        },
    },
}
FILE, BATCH = ({"$ref": f"#/components/schemas/{name}"} for name in ("File", "Batch"))
PLACE: dict[str, Schema] = {
    "after": {"type": "string", "description": "Begin after this id."},
    "order": {"enum": ["asc", "desc"]},
    "purpose": {"type": "string"},
}


def _limit(most: int) -> dict[str, Schema]:
    return {"limit": {"type": "integer", "minimum": 1, "maximum": most}}


def _page(item: Schema) -> Schema:
    return {
        "type": "object",
        "required": ["object", "data", "first_id", "last_id", "has_more"],
        "properties": {"data": {"type": "array", "items": item}, "has_more": {"type": "boolean"}},
    }


def _operation(
    method: str,
    path: str,
    answer: Schema,
    body: Schema | None = None,
    query: dict[str, Schema] | None = None,
    refused: tuple[str, ...] = (),
) -> tuple[str, Schema]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    texts = REFUSALS | {"404": "no such file or batch of this tenant", "409": "its state does not allow it"}
    responses: Schema = {"200": {"description": "the answer", "content": answer}}
    for status in sorted({"400", "401", "404", "500", "503", *refused}):
        responses[status] = {"description": texts[status], "content": error}
    operation: Schema = {"operationId": f"{method} {path}", "description": ONLY, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    if query is not None:
        operation["parameters"] = [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
    return method, operation


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def paths() -> dict[str, Schema]:
    """The paths with their operations."""
    deleted = {"type": "object", "required": ["id", "object", "deleted"]}
    upload = {"multipart/form-data": {"schema": {"$ref": "#/components/schemas/FileUpload"}}}
    request = _json({"$ref": "#/components/schemas/BatchRequest"})
    pages = {name: schema for name, schema in PLACE.items() if name == "after"} | _limit(100)
    operations: dict[str, tuple[tuple[str, Schema], ...]] = {
        "/v1/files": (
            _operation("get", "/v1/files", _json(_page(FILE)), query=PLACE | _limit(10_000)),
            _operation("post", "/v1/files", _json(FILE), upload, refused=("408", "413", "415", "429")),
        ),
        "/v1/files/{id}": (
            _operation("get", "/v1/files/{id}", _json(FILE)),
            _operation("delete", "/v1/files/{id}", _json(deleted), refused=("409",)),
        ),
        "/v1/files/{id}/content": (_operation("get", "/v1/files/{id}/content", {"application/jsonl": {}}),),
        "/v1/batches": (
            _operation("get", "/v1/batches", _json(_page(BATCH)), query=pages),
            _operation("post", "/v1/batches", _json(BATCH), request, refused=("408", "413", "415", "429")),
        ),
        "/v1/batches/{id}": (_operation("get", "/v1/batches/{id}", _json(BATCH)),),
        "/v1/batches/{id}/cancel": (_operation("post", "/v1/batches/{id}/cancel", _json(BATCH), refused=("409",)),),
    }
    named = {"parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]}
    return {path: dict(found) | (named if "{id}" in path else {}) for path, found in operations.items()}
