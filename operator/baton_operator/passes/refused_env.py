"""Variables that an installation carried out before and refuses now, after an upgrade or with a shorter list. Pure.

Running workers keep their recorded template, and the spec is not refused, so that the deployment is sized, edited and
repaired as before. A template that is made anew lacks these variables. A spec that adds such a variable is refused as
always.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from baton_control.errors import FieldProblem
from baton_operator.kube.object_fields import Manifest, mapping
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.passes.template_records import Record, Stored
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class Variable:
    """An entry of `env` as a spec or a recorded template has it."""

    role: Role
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class WrittenSpec:
    """A spec without the variables that are left out, and with them."""

    raw: Manifest
    """The LLMDeployment without variables that are refused now and were carried out before."""
    full: Mapping[Role, list[Manifest]]
    """The written `env` of pools that had such variables."""
    left_out: tuple[FieldProblem, ...] = ()


def read_written_spec(raw: Manifest, policy: PodPolicy, before: Stored | None) -> WrittenSpec:
    """The spec to carry out after the record `before`; None: there is no record yet."""
    known = frozenset[Variable]() if before is None else _known_variables(before)
    spec = dict(mapping(raw.get("spec")))
    full: dict[Role, list[Manifest]] = {}
    left_out: list[FieldProblem] = []
    for role in POOL_ROLES:
        entries = mapping(spec.get(role.value)).get("env")
        allowed: list[object] = []
        for place, entry in enumerate(entries if isinstance(entries, list) else []):
            variable = _variable(role, entry)
            problem = None
            if variable is not None and variable in known:
                problem = policy.env_problem(variable.name, variable.value)
            if problem is None:
                allowed.append(entry)
            else:
                left_out.append(FieldProblem(f"spec.{role}.env[{place}].{problem.path}", problem.message))
        if isinstance(entries, list) and len(allowed) < len(entries):
            spec[role.value] = {**mapping(spec[role.value]), "env": allowed}
            full[role] = [_entry(written) for written in _variables(role, entries)]
    return WrittenSpec({**raw, "spec": spec} if full else raw, full, tuple(left_out))


def find_refused_env(
    records: Iterable[Record], live_templates: Iterable[str], policy: PodPolicy, roles: Iterable[Role] = POOL_ROLES
) -> tuple[str, ...]:
    """The refused variables in used templates: templates of the first record, from which the next Pods are made, and
    templates with live workers. Each as `spec.decode.env: NAME`. `roles`: the deployment's pools."""
    live, fields, pools = set(live_templates), dict[str, None](), tuple(roles)
    for place, record in enumerate(records):
        for role in pools:
            if place == 0 or record.rendered[role].revision.template in live:
                for variable in _of_record(record, role):
                    if policy.env_problem(variable.name, variable.value) is not None:
                        fields[f"spec.{role}.env: {variable.name}"] = None
    return tuple(fields)


def _known_variables(before: Stored) -> frozenset[Variable]:
    """The variables of the spec that was carried out last and of its templates."""
    variables = {variable for role in POOL_ROLES for variable in _of_record(before.record, role)}
    if before.good is not None:
        spec = mapping(mapping(msgspec.json.decode(before.good)).get("spec"))
        for role in POOL_ROLES:
            variables |= set(_variables(role, mapping(spec.get(role.value)).get("env")))
    return frozenset(variables)


def _of_record(record: Record, role: Role) -> Iterator[Variable]:
    return _variables(role, mapping(record.rendered[role].inputs.get("pool")).get("env"))


def _variables(role: Role, entries: object) -> Iterator[Variable]:
    for entry in entries if isinstance(entries, list) else []:
        variable = _variable(role, entry)
        if variable is not None:
            yield variable


def _variable(role: Role, entry: object) -> Variable | None:
    """The variable of an entry of `env`; None: the entry is malformed, as its parser reports."""
    fields = mapping(entry)
    name, value = fields.get("name"), fields.get("value")
    return Variable(role, name, value) if isinstance(name, str) and isinstance(value, str) else None


def _entry(variable: Variable) -> Manifest:
    return {"name": variable.name, "value": variable.value}
