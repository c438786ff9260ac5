"""The CustomResourceDefinitions, written from the API types.

`python -m baton_operator.schema.crd FOLDER` writes them, `--check FOLDER` fails when a file is not what would be
written.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from baton_control.spec.api import API_VERSION, KIND, LLMDeployment
from baton_control.spec.tenant_fields import TENANT_KIND, LLMTenant, TenantSpec
from baton_operator.schema.cel import RULES
from baton_operator.schema.llm_pool import POOL_KIND, PoolFacadeSpec
from baton_operator.schema.status import DeploymentStatus, PoolFacadeStatus, TenantStatus
from baton_operator.schema.structural import Schema, schema_of

GROUP, VERSION = API_VERSION.split("/")
HEADER = "# Written from control/baton_control/spec/api.py by `make format`; do not edit.\n"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`."""

    name: str
    path: str
    kind: str = "string"
    is_wide: bool = False

    def entry(self) -> Schema:
        """The column as the definition holds it."""
        wide: Schema = {"priority": 1} if self.is_wide else {}
        return {"name": self.name, "type": self.kind, "jsonPath": self.path, **wide}


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


AGE = Column("Age", ".metadata.creationTimestamp", "date")
DEPLOYMENT_COLUMNS = (
    Column("Model", ".spec.model.servedName"),
    Column("Prefill", ".status.prefill.summary"),
    Column("Decode", ".status.decode.summary"),
    Column("TTFT", ".status.slo.ttft"),
    Column("TPOT", ".status.slo.tpot"),
    Column("Ready", _condition("Ready", "status")),
    Column("Status", ".status.summary"),
    AGE,
    Column("Message", ".status.message", is_wide=True),
    Column("Lane", ".status.kvTransfer.lane", is_wide=True),
    Column("Bandwidth", ".status.kvTransfer.bandwidth", is_wide=True),
    Column("Decision", ".status.lastScaling.reason", is_wide=True),
    Column("Revision", ".status.revision", is_wide=True),
)
POOL_COLUMNS = (
    Column("Deployment", ".spec.deployment"),
    Column("Role", ".spec.role"),
    Column("Wanted", ".spec.replicas", "integer"),
    Column("Effective", ".status.effective", "integer"),
    Column("Workers", ".status.replicas", "integer"),
    AGE,
)
TENANT_COLUMNS = (
    Column("Weight", ".spec.weight", "integer"),
    Column("Requests", ".spec.limits.requestsPerMinute", "integer"),
    Column("Ready", _condition("Ready", "status")),
    AGE,
    Column("Message", _condition("Ready", "message"), is_wide=True),
    Column("Month", ".status.usage.month", is_wide=True),
    Column("Tokens", ".status.usage.tokens", "integer", is_wide=True),
)
SCALE: Schema = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def definitions() -> dict[str, Schema]:
    """Every CustomResourceDefinition by its file name."""
    return {
        "llmdeployments.yaml": deployment_definition(),
        "llmpools.yaml": pool_definition(),
        "llmtenants.yaml": tenant_definition(),
    }


def deployment_definition() -> Schema:
    """The definition of the LLMDeployment."""
    schema = schema_of(LLMDeployment)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    spec = properties["spec"]
    assert isinstance(spec, dict)
    root = _root("One model served by a prefill pool, a decode pool and a gateway.", spec, schema_of(DeploymentStatus))
    root["x-kubernetes-validations"] = [rule.entry() for rule in RULES[LLMDeployment]]
    return _definition(KIND, ("llm",), root, DEPLOYMENT_COLUMNS, {"status": {}})


def pool_definition() -> Schema:
    """The definition of the LLMPool."""
    text = "The scale facade of one pool of an LLMDeployment; made by Baton."
    root = _root(text, schema_of(PoolFacadeSpec), schema_of(PoolFacadeStatus))
    return _definition(POOL_KIND, ("llmp",), root, POOL_COLUMNS, {"status": {}, "scale": SCALE})


def tenant_definition() -> Schema:
    """The definition of the LLMTenant."""
    root = _root("A team that uses the gateways of its namespace.", schema_of(TenantSpec), schema_of(TenantStatus))
    root["x-kubernetes-validations"] = [rule.entry() for rule in RULES[LLMTenant]]
    return _definition(TENANT_KIND, ("llmt",), root, TENANT_COLUMNS, {"status": {}})


def _root(description: str, spec: Schema, status: Schema) -> Schema:
    properties: Schema = {
        "apiVersion": {"type": "string", "description": "Version of the schema that this object follows."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},  # API servers refuse a description of it
        "spec": {"description": "The wanted state.", **spec},
        "status": {"description": "The observed state; only Baton writes it.", **status},
    }
    return {"type": "object", "description": description, "properties": properties, "required": ["spec"]}


def _definition(
    kind: str, short: tuple[str, ...], root: Schema, columns: tuple[Column, ...], subresources: Schema
) -> Schema:
    plural = f"{kind.lower()}s"
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": list(short),
        "categories": ["all", "baton"],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": subresources,
        "additionalPrinterColumns": [column.entry() for column in columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def text_of(definition: Schema) -> str:
    """A definition as its file holds it."""
    return HEADER + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes everything out: kubectl reads aliases, but people comparing files should not have to."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def main(arguments: list[str]) -> int:
    """Write or compare the files. Returns the exit status."""
    is_check, folder = arguments[:1] == ["--check"], Path(arguments[-1])
    stale = []
    for name, definition in definitions().items():
        path, text = folder / name, text_of(definition)
        if not is_check:
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
    for path in stale:
        print(f"{path} is not what the API types say: run `make format`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
