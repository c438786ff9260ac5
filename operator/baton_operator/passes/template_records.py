"""Records of rendered templates, because of which an operator upgrade restarts nothing. Pure.

A deployment's Pod templates are rendered once from what its user wrote. A ControllerRevision of the LLMDeployment keeps
the inputs, the rendered Pods, the images and the template version. A pass renders again only if the inputs differ from
the recorded ones, so that other images, flags or defaults of a newer operator change nothing. Images change when the
user asks for it (a new value of the annotation `baton.dev/upgrade`), or when an edit needs a template version that the
recorded images do not support. Then both pools change together, because their workers have to fit. The current record
has the highest revision; older ones stay while workers made from them run.

The current record also has, in an annotation, the spec that was last carried out as a whole. While a newer one is
refused, passes carry that one out.

Inputs are compared field by field, in their normal form (`recorded_inputs`). A field that only the newer operator
knows counts as unchanged while it has its default. A field that only the older one knew is ignored. An input that
follows from fields which the older operator knew, and did not record, counts as unchanged once and is then recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from baton_control.hashes import Revision, content_hash
from baton_control.names import record_name
from baton_control.spec.api import LLMDeployment
from baton_control.spec.served_model import ModelSpec
from baton_control.worker_specs import keeps_answers, pool_roles, pool_spec
from baton_operator.kube.object_fields import Manifest, integer, mapping, text
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.metadata import object_head
from baton_operator.objects.pods import TEMPLATE_VERSION, gateway_template, worker_template
from baton_operator.passes.recorded_inputs import normal_inputs
from baton_wire.messages.values import POOL_ROLES, Role

UPGRADE_ANNOTATION = "baton.dev/upgrade"
ROLES = (*POOL_ROLES, Role.GATEWAY)
_NOT_IN_PODS = ("replicas", "autoscaling", "service", "route", "openAccess")
"""Fields of the gateway that its Pods do not depend on."""
_NOT_IN_WORKERS = ("generationDefaults", "aliases", "toolFormat", "reasoningFormat", "fetch")
"""Fields of the model that workers do not depend on."""
_ONLY_RECORDED = {"model": ("credentialsSecret",), "cache": ("size", "storageClassName")}
"""Fields that Pods do not depend on. They are recorded for older operators, which compare them."""
_NOT_IN_TEMPLATES = ("replicas", "serviceAccountAnnotations")
"""Fields of a pool that its Pods do not depend on."""
KEEPS_ANSWERS = "keepsAnswers"
"""Derived input: prefill workers decode, too. It follows from `routing` and the layers that the pool offloads."""
_FLIPS = "flips"
"""Input of workers that flip, and of no others, so that older records stay unchanged."""
GOOD_ANNOTATION = "baton.dev/last-good"
"""On the current record: the LLMDeployment that was last carried out, as JSON without status and labels."""
MAX_GOOD_BYTES = 128 << 10
"""Annotations of an object may have 256 KiB together."""
_LATER_RECORDED = (("targets",), ("maySleep",), ("kvTransfer", "minBandwidth"), (KEEPS_ANSWERS,))
"""Inputs that follow from older fields and were recorded by later operators alone. Pods that were rendered without such
an input do not depend on it, whatever the fields say."""
KEPT = 8
"""Most older records."""
_NONE: Mapping[Role, Sequence[Manifest]] = {}


@dataclass(frozen=True, slots=True)
class Rendered:
    """The template of one role and what it was rendered from."""

    inputs: Manifest
    revision: Revision
    pod: Manifest
    """A PodTemplateSpec."""


@dataclass(frozen=True, slots=True)
class Record:
    version: int
    """The template version, which the rendering operator and its images share."""
    worker_image: str
    gateway_image: str
    upgrade: str
    """The value of the annotation that asked for these images."""
    rendered: Mapping[Role, Rendered]

    def data(self) -> Manifest:
        roles = {
            role.value: {
                "inputs": template.inputs,
                "fit": template.revision.fit,
                "template": template.revision.template,
                "pod": template.pod,
            }
            for role, template in self.rendered.items()
        }
        return {
            "version": self.version,
            "workerImage": self.worker_image,
            "gatewayImage": self.gateway_image,
            "upgrade": self.upgrade,
            "roles": roles,
        }


@dataclass(frozen=True, slots=True)
class Stored:
    """A record in the cluster."""

    name: str
    uid: str
    number: int
    record: Record
    good: str | None = None
    """The last LLMDeployment that was carried out with it; None: not noted."""


def current_record(
    deployment: LLMDeployment,
    platform: Platform,
    upgrade: str,
    stored: Iterable[Stored],
    version: int | None = None,
    restart: str = "",
    full_env: Mapping[Role, Sequence[Manifest]] = _NONE,
) -> Record:
    """The record to make the deployment from now. `restart`: the mark of the last requested restart; empty: none, and
    running workers keep theirs. `full_env`: the written `env` of pools whose `deployment` lacks variables that are
    refused by now. Their current template stays while nothing else is edited; no new or older template with these
    variables is used. Raises UnsupportedError for what this version cannot run."""
    version = TEMPLATE_VERSION if version is None else version
    newest_first = [record.record for record in sorted(stored, key=lambda record: -record.number)]
    if not restart and newest_first:
        restart = text(newest_first[0].rendered[Role.PREFILL].inputs.get("restart")) or ""
    wanted = {role: inputs(deployment, role, restart) for role in ROLES}
    if newest_first and newest_first[0].upgrade == upgrade:
        base = newest_first[0]
        unchanged = {
            role: _find_unedited(role, wanted[role], base, full_env)
            or _find_rendered(role, wanted[role], base, newest_first)
            for role in ROLES
        }
        if Role.DECODE not in pool_roles(deployment):
            unchanged[Role.DECODE] = base.rendered[Role.DECODE]  # no Pod is made from it
        if all(unchanged.values()) or base.version == version:
            pinned = replace(platform, worker_image=base.worker_image, gateway_image=base.gateway_image)
            rendered = {role: unchanged[role] or _render(deployment, role, pinned, wanted[role]) for role in ROLES}
            return replace(base, rendered=rendered)
    rendered = {role: _render(deployment, role, platform, wanted[role]) for role in ROLES}
    return Record(version, platform.worker_image, platform.gateway_image, upgrade, rendered)


def _find_unedited(
    role: Role, wanted: Manifest, base: Record, full_env: Mapping[Role, Sequence[Manifest]]
) -> Rendered | None:
    """The current template of a pool with refused variables, if the written spec equals what it was rendered from; else
    None."""
    if role not in full_env:
        return None
    written = {**wanted, "pool": {**mapping(wanted["pool"]), "env": list(full_env[role])}}
    return _find_rendered(role, written, base, [base])


def _find_rendered(role: Role, wanted: Manifest, base: Record, records: Iterable[Record]) -> Rendered | None:
    """The template that was rendered from equal inputs before, for the same images; None: there is none."""
    source = (base.version, base.worker_image, base.gateway_image, base.upgrade)
    for record in records:
        template = record.rendered.get(role)
        is_alike = (record.version, record.worker_image, record.gateway_image, record.upgrade) == source
        if (template is not None and template.inputs.get(_FLIPS, False) is True) is not wanted.get(_FLIPS, False):
            continue
        if template is None or not is_alike:
            continue
        recorded, defaults = normal_inputs(template.inputs), _DEFAULTS[role]
        completed = _complete(recorded, wanted) if record is base else recorded
        if are_same_inputs(completed, _compared(wanted), defaults):
            is_recorded = completed == recorded and are_same_inputs(recorded, wanted, defaults)
            return template if is_recorded else replace(template, inputs=wanted)
    return None


def _complete(recorded: Manifest, wanted: Manifest) -> Manifest:
    """The recorded inputs, with the wanted value of each input that older operators did not record."""
    for *groups, name in _LATER_RECORDED:
        group = mapping(wanted.get(groups[0])) if groups else wanted
        before = mapping(recorded.get(groups[0])) if groups else recorded
        if name in group and name not in before:
            filled = {**before, name: group[name]}
            recorded = {**recorded, groups[0]: filled} if groups else filled
    return recorded


def _compared(wanted: Manifest) -> Manifest:
    """The inputs that Pods depend on."""
    if "model" not in wanted:
        return wanted
    model = mapping(wanted["model"])
    cache = {name: value for name, value in mapping(model["cache"]).items() if name not in _ONLY_RECORDED["cache"]}
    fields = {name: value for name, value in model.items() if name not in _ONLY_RECORDED["model"]}
    return {**wanted, "model": {**fields, "cache": cache}}


def _render(deployment: LLMDeployment, role: Role, platform: Platform, wanted: Manifest) -> Rendered:
    if role is Role.GATEWAY:
        pod = gateway_template(deployment, platform)
        return Rendered(wanted, Revision("", content_hash(pod)), pod)
    template = worker_template(deployment, role, platform, str(wanted["restart"]))
    return Rendered(wanted, template.spec.revision, template.pod)


def inputs(deployment: LLMDeployment, role: Role, restart: str = "") -> Manifest:
    """Everything of the spec that a role's template is rendered from, as plain data."""
    spec = deployment.spec
    dump = spec.model_dump(mode="json", by_alias=True)
    shared = {name: dump[name] for name in ("podMetadata", "imagePullSecrets")}
    longest = spec.gateway.limits.max_request_duration
    if role is Role.GATEWAY:
        gateway = {name: value for name, value in dump["gateway"].items() if name not in _NOT_IN_PODS}
        targets = {name: target["target"] for name, target in dump["slo"].items()}
        may_sleep = spec.prefill.replicas.min == 0
        routing = {name: value for name, value in dump["routing"].items() if name != "keepAnswers"}
        more = {"routing": routing, "targets": targets, "maySleep": may_sleep}
        more |= {name: dump["model"][name] for name in ("toolFormat", "reasoningFormat")}
        more["generationDefaults"] = spec.model.generation_defaults
        more["aliases"] = [f"{alias}={spec.model.served_name}" for alias in spec.model.aliases]
        more["tracing"] = dump["telemetry"]["tracing"]
        return {**shared, "gateway": gateway, "maxRequestDuration": longest, **more}
    pool = {name: value for name, value in dump[role.value].items() if name not in _NOT_IN_TEMPLATES}
    if pool["accelerator"] is not None:  # its price and its alternatives are no reason to restart workers
        devices = {name: pool["accelerator"][name] for name in ("resource", "claim", "with")}
        pool["accelerator"] = {name: value for name, value in devices.items() if value}
    pools = {pool_role.value: pool_spec(deployment, pool_role) for pool_role in POOL_ROLES}
    more = {KEEPS_ANSWERS: keeps_answers(deployment)} if role is Role.PREFILL else {}
    return {
        **shared,
        **more,
        "model": {name: value for name, value in dump["model"].items() if name not in _NOT_IN_WORKERS},
        "pool": pool,
        "kvTransfer": dump["kvTransfer"],
        "accelerated": {name: pool_of.accelerator is not None for name, pool_of in pools.items()},
        "maxRequestDuration": longest,
        "restart": restart,
        **({_FLIPS: True} if spec.autoscaling.flips else {}),
    }


def are_same_inputs(recorded: Manifest, wanted: Manifest, defaults: Manifest) -> bool:
    """True if a template rendered from `recorded` serves `wanted`."""
    for name, value in wanted.items():
        default = defaults.get(name)
        before = recorded.get(name, default)
        if isinstance(default, dict) and default and isinstance(before, dict) and isinstance(value, dict):
            if not are_same_inputs(before, value, default):
                return False
        elif before != value:
            return False
    return True


def _of_defaults(role: Role) -> Manifest:
    model = ModelSpec.model_construct(source="", served_name="", max_context_tokens=0)
    blank = LLMDeployment.model_validate(
        {
            "apiVersion": "baton.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "x"},
            "spec": {"model": {"source": "file:///x", "servedName": "x", "maxContextTokens": 16}},
        }
    )
    return inputs(blank.model_copy(update={"spec": blank.spec.model_copy(update={"model": model})}), role)


_DEFAULTS = {role: _of_defaults(role) for role in ROLES}


def record_manifest(
    record: Record, number: int, deployment: LLMDeployment, owner: Owner, good: str = "", name: str | None = None
) -> Manifest:
    """The ControllerRevision of a record, named by its content; `good` is noted on it, if there is room. An existing
    one keeps its `name`: a backup or another version may have named it by other bytes of the same content."""
    data = record.data()
    name = name or record_name(deployment.metadata.name, content_hash(data))
    head = object_head("apps/v1", "ControllerRevision", name, deployment, owner)
    if 0 < len(good.encode()) <= MAX_GOOD_BYTES:
        head["metadata"] = {**mapping(head["metadata"]), "annotations": {GOOD_ANNOTATION: good}}
    return head | {"revision": number, "data": data}


def read_record(live: Manifest) -> Stored | None:
    """The record in a live ControllerRevision; None for one that cannot be read, which then counts as absent."""
    data, metadata = mapping(live.get("data")), mapping(live.get("metadata"))
    number, version = integer(live.get("revision")), integer(data.get("version"))
    images = text(data.get("workerImage")), text(data.get("gatewayImage"))
    rendered = {role: _read_rendered(mapping(mapping(data.get("roles")).get(role.value))) for role in ROLES}
    if number is None or version is None or images[0] is None or images[1] is None:
        return None
    complete = {role: template for role, template in rendered.items() if template is not None}
    if len(complete) < len(ROLES):
        return None
    record = Record(version, images[0], images[1], text(data.get("upgrade")) or "", complete)
    good = text(mapping(metadata.get("annotations")).get(GOOD_ANNOTATION))
    return Stored(str(metadata.get("name")), str(metadata.get("uid")), number, record, good)


def newest_record(records: Iterable[Stored]) -> Stored | None:
    """The current one; None: nothing was ever rendered."""
    return max(records, key=lambda record: record.number, default=None)


def _read_rendered(data: Manifest) -> Rendered | None:
    fit, template, pod, given = (data.get(name) for name in ("fit", "template", "pod", "inputs"))
    if not (isinstance(fit, str) and isinstance(template, str) and isinstance(pod, dict) and isinstance(given, dict)):
        return None
    return Rendered(given, Revision(fit, template), pod)


def find_outdated(records: Iterable[Stored], live_templates: Iterable[str]) -> tuple[Stored, ...]:
    """Records that can be deleted: not the current one, and every live worker's template is in a newer one too."""
    newest_first = sorted(records, key=lambda record: -record.number)
    missing = set(live_templates)
    unneeded = []
    for place, record in enumerate(newest_first):
        templates = {
            rendered.revision.template for role, rendered in record.record.rendered.items() if role in POOL_ROLES
        }
        if place > 0 and (not templates & missing or place > KEPT):
            unneeded.append(record)
        else:
            missing -= templates
    return tuple(unneeded)
