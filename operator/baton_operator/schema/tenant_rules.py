"""The CEL rules of the LLMTenant; they repeat the validators in `tenant_fields`."""

from __future__ import annotations

from baton_control.spec.base_model import Model
from baton_control.spec.tenant_fields import LLMTenant, TenantSpec
from baton_operator.schema.value_rules import Rule


def _differ(field: str, member: str = "") -> Rule:
    """The rule that the entries of a list differ."""
    rule = f"!has(self.{field}) || self.{field}.all(a, self.{field}.exists_one(b, b{member} == a{member}))"
    return Rule(rule, "entries must differ", f".{field}")


TENANT_RULES: dict[type[Model], tuple[Rule, ...]] = {
    LLMTenant: (
        Rule(
            "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
            "metadata.name must have at most 63 characters and no dot",
        ),
    ),
    TenantSpec: (_differ("apiKeys", ".sha256"), _differ("models"), _differ("priorities")),
}
