"""Every field with values at its edges and beyond: refused by path, reported by path, or ending as a fresh create does.

All values meet the definition here; of the long runs a share, the whole is `python -m campaigns.operator_proofs
fields`.
"""

from __future__ import annotations

import functools
from collections import Counter

from baton_control.errors import ManifestError
from baton_control.spec.api import LLMDeployment
from baton_control.spec.manifest import parse_live
from baton_operator.kube.kinds import DEPLOYMENTS
from baton_operator.schema.reference import rows
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.mutations import Bench, Mutation, base, mutations, names_the_path, paths, refusal, slipped

REFUSED_SHARE, ACCEPTED_SHARE = 12, 24


@functools.cache
def judge() -> tuple[tuple[Mutation, str | None], ...]:
    return tuple((mutation, refusal(mutation)) for mutation in mutations())


def test_every_leaf_has_at_least_five_values() -> None:
    documented = {row.path.removeprefix("spec.") for row in rows(LLMDeployment, "") if row.path.startswith("spec.")}
    known = set(paths())
    groups = {path for path in documented if any(leaf.startswith(f"{path}.") for leaf in known)}
    assert {path for path in documented - groups if "[]" not in path} <= known | {"decode"}
    assert min(Counter(mutation.path for mutation, _ in judge()).values()) >= 5


def test_what_the_definition_refuses_is_refused_by_its_path() -> None:
    refused = [(mutation, text) for mutation, text in judge() if text is not None]
    assert len(refused) > 500
    assert [str(mutation) for mutation, text in refused if not names_the_path(mutation, text)] == []


def test_what_the_definition_accepts_the_operator_can_read() -> None:
    unread = []
    for mutation, text in judge():
        if text is None:
            try:
                parse_live(Kinds().admit(DEPLOYMENTS, mutation.on(base()), None))
            except ManifestError as error:
                unread.append(f"{mutation}: {error}")
    assert unread == []


def test_what_slipped_through_leaves_the_old_spec_serving_under_a_condition_with_the_path() -> None:
    refused = [mutation for mutation, text in judge() if text is not None]
    assert slipped(refused[::REFUSED_SHARE]) == []


def test_an_accepted_edit_ends_as_a_fresh_create_does() -> None:
    # An installation may refuse variables: then a fresh create is not carried out, and after an edit the last spec is.
    accepted = [mutation for mutation, text in judge() if text is None and not mutation.path.endswith(".env")]
    assert len(accepted) > 150
    bench = Bench()
    complaints = {
        str(mutation): bench.complaint([(30.0, mutation.on(base()))]) for mutation in accepted[::ACCEPTED_SHARE]
    }
    assert {name: text for name, text in complaints.items() if text is not None} == {}
