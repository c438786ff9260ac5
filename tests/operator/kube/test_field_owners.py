"""Fields of a create become fields of an apply, and the fields of other managers keep their owners."""

from __future__ import annotations

from typing import Any

from baton_operator.kube.field_owners import as_applied, is_created_by

ME = "baton-operator"


Json = dict[str, Any]


def entry(manager: str, operation: str, fields: Json, subresource: str = "") -> Json:
    entry_made: Json = {
        "manager": manager,
        "operation": operation,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
        "time": "now",
    }
    return entry_made | ({"subresource": subresource} if subresource else {})


def test_the_create_and_the_applies_of_one_manager_become_one_apply() -> None:
    created = entry(ME, "Update", {"f:spec": {"f:a": {}, "f:b": {"f:c": {}}}, "f:metadata": {"f:labels": {".": {}}}})
    applied = entry(ME, "Apply", {"f:spec": {"f:b": {"f:d": {}}, "f:e": {}}})
    others = [entry("kubectl", "Update", {"f:spec": {"f:a": {}}}), entry(ME, "Update", {"f:status": {}}, "status")]
    for order in ((created, applied), (applied, created)):
        *rest, mine = as_applied([*others, *order], ME)
        assert rest == others
        assert (mine["manager"], mine["operation"], mine["fieldsType"]) == (ME, "Apply", "FieldsV1")
        spec: Json = {"f:a": {}, "f:b": {"f:c": {}, "f:d": {}}, "f:e": {}}
        assert mine["fieldsV1"] == {"f:spec": spec, "f:metadata": {"f:labels": {".": {}}}}
        assert not is_created_by({"metadata": {"managedFields": [*rest, mine]}}, ME)


def test_who_never_set_anything_gets_nothing() -> None:
    others = [entry("kubectl", "Update", {"f:spec": {}})]
    assert as_applied(others, ME) == others
    assert as_applied(None, ME) == []


def test_only_a_create_or_an_update_of_the_object_itself_counts() -> None:
    def seen(*entries: Json) -> bool:
        return is_created_by({"metadata": {"managedFields": list(entries)}}, ME)

    assert seen(entry(ME, "Update", {}))
    assert not seen(entry(ME, "Apply", {}), entry(ME, "Update", {}, "status"), entry("kubectl", "Update", {}))
    assert not is_created_by({"metadata": {}}, ME)
