"""The only writers of golden placements, and their periodic check.

The periodic check is needed because a change of the inventory may break a golden placement although no policy changed.
Saving and removing require a reason and are recorded in the audit trail. A golden placement that the active version
breaks is saved and reported as broken; it blocks the next activation until the golden placement or the policy is
corrected. `recheck_goldens` checks golden placements whose nodes or active versions changed since the last check, and
reports those that broke or recovered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b

import msgspec
import structlog
from django.db.models import F
from django.utils import timezone

from hetsched.adapters.objects.golden_placements import one_pod
from hetsched.contracts.api.golden import Expectation, GoldenState, GoldenVerdict
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, shortened
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.isa.isa_strings import required_isa
from hetsched.inventory.actions import check_name, require_reason
from hetsched.inventory.models import Cluster
from hetsched.journal import counters, metric_names
from hetsched.journal.audit import SYSTEM, Actor, record
from hetsched.journal.publish import publish_many
from hetsched.storage.named_locks import lock
from hetsched.storage.write_lock import write_transaction

from .actions import policy_unknown_error
from .documents import GOLDENS, golden_document
from .golden_checks import check_rows, empty_state, inventory_key, worst_result
from .golden_states import RecordedCluster, delete_state, store_state
from .models import GoldenPlacement, Policy, PolicyRevision, RevisionState

MOST_GOLDENS = 500
RESERVED = frozenset({"check"})  # these names are used in API paths
MOST_BYTES = 100_000
log = structlog.get_logger(__name__)


def save_golden(
    name: str,
    *,
    cluster: Cluster,
    manifest: str,
    expectation: Expectation,
    policy_name: str = "",
    enabled: bool = True,
    pod: PodSpec | None = None,
    agreed: RecordedCluster | None | msgspec.UnsetType = msgspec.UNSET,
    creates: bool = False,
    actor: Actor,
    reason: str,
) -> GoldenPlacement:
    """Create or change a golden placement, and check it under the active versions.

    With `creates`, a golden placement of this name must not exist yet.
    `agreed` is the decision whose cluster state the check uses, or None for empty nodes; if omitted, it stays
    unchanged. `pod` is the parsed pod of the manifest, if the caller already has it.
    Raises: InputError `ReasonMissing`, `GoldenNameInvalid`, `GoldenPodInvalid`, `GoldenExpectationInvalid`,
    `GoldenExists`, `GoldensTooMany`, `GoldenStateTooLarge`, `PolicyUnknown`, or the errors of the manifest or the
    instruction set.
    """
    reason = require_reason(reason)
    check_name(name, "GoldenNameInvalid", reserved=RESERVED)
    pod = pod or read_pod(manifest, cluster)
    expectation.checked()
    if expectation.isa:
        _check_isa(expectation.isa)
    if policy_name and not Policy.objects.filter(name=policy_name).exists():
        raise policy_unknown_error(policy_name)
    empty_state(cluster)  # fills the cache before any row is locked
    with write_transaction():
        if creates:
            lock(["golden placements"])
        row = GoldenPlacement.objects.select_for_update().filter(name=name).first()
        new = row is None
        if creates and not new:
            raise InputError("GoldenExists", Message("golden placement {name} already exists", name=name), place="name")
        if row is None:
            if GoldenPlacement.objects.count() >= MOST_GOLDENS:
                message = Message("the maximum of {n} golden placements is reached", n=MOST_GOLDENS)
                raise InputError("GoldensTooMany", message, place="name")
            row = GoldenPlacement(name=name)
        if not new and row.cluster_id != cluster.pk and agreed is msgspec.UNSET:
            agreed = None  # the stored state belongs to another cluster
        row.cluster, row.policy_name, row.manifest, row.pod = cluster, policy_name, manifest, pod
        row.expectation, row.enabled, row.author, row.reason = expectation, enabled, actor.name, reason
        row.changed_at, row.judged_on, row.broken_since = timezone.now(), "", None
        if agreed is not msgspec.UNSET:
            row.decision = None if agreed is None else agreed.decision
        row.save()
        if agreed is None:
            delete_state(row)
        elif agreed is not msgspec.UNSET:
            store_state(row, agreed)
        _check_and_save(row, _active_specs(), timezone.now())
        details = {"cluster": cluster.name, "policy": policy_name, "expects": expectation.words, "enabled": enabled}
        if row.decision is not None:
            details["decision"] = row.decision
        record(
            actor=actor.name, role=actor.role, action="golden.add" if new else "golden.change", obj=("golden", name),
            reason=reason, details={**details, "state": row.state},
        )  # fmt: skip
        publish_many({GOLDENS: lambda: {name: golden_document(row)}})
    return row


def remove_golden(name: str, *, actor: Actor, reason: str) -> None:
    """Remove a golden placement. Raises: InputError `GoldenUnknown` or `ReasonMissing`."""
    reason = require_reason(reason)
    with write_transaction():
        row = GoldenPlacement.objects.select_for_update().filter(name=name).first()
        if row is None:
            message = Message("unknown golden placement {name}", name=repr(name[:80]))
            raise InputError("GoldenUnknown", message, place="name")
        details = {"cluster": row.cluster.name, "policy": row.policy_name, "expects": row.expectation.words}
        row.delete()
        record(
            actor=actor.name, role=actor.role, action="golden.remove", obj=("golden", name), reason=reason,
            details=details,
        )  # fmt: skip
        publish_many({GOLDENS: {name: None}})


def read_pod(manifest: str, cluster: Cluster | None = None) -> PodSpec:
    """Parse the single pod of a golden placement. A Job or Deployment yields one of its pods.

    Raises: InputError `GoldenPodInvalid`, or the errors of the manifest.
    """
    if len(manifest.encode()) > MOST_BYTES:
        message = Message("the manifest has more than {n} bytes", n=MOST_BYTES)
        raise InputError("GoldenPodInvalid", message, place="manifest")
    return one_pod(manifest.encode(), cluster.definitions if cluster is not None else None)


def _check_isa(text: str) -> None:
    try:
        required_isa(text)
    except InputError as error:
        raise error.at("expect.isa ") from None


# -- periodic check ----------------------------------------------------------------------------------------------------


def recheck_goldens(now: datetime) -> dict[str, int]:
    """Check the golden placements whose nodes or active versions changed; return the number of placements per state."""
    specs = _active_specs()
    rows = GoldenPlacement.objects.filter(enabled=True).select_related("cluster").defer("cluster__definitions")
    for row in rows.order_by("cluster_id", "name"):
        if row.judged_on != _check_key(row, specs):
            try:
                _recheck(row, specs, now)
            except Exception:  # one failing check must not block the other checks
                log.exception("golden placement check failed", golden=row.name)
    states = Counter(GoldenPlacement.objects.filter(enabled=True).values_list("state", flat=True))
    counted = {state.value: states.get(state.value, 0) for state in GoldenState}
    counters.set_values(metric_names.GOLDENS, {(state,): float(count) for state, count in counted.items()})
    return counted


def _recheck(row: GoldenPlacement, specs: dict[str, PolicySpec], now: datetime) -> None:
    empty_state(row.cluster)  # fills the cache before any row is locked
    with write_transaction():
        locked = GoldenPlacement.objects.select_for_update().filter(pk=row.pk, enabled=True).first()
        if locked is not None:
            _check(locked, specs, now)


def _check(row: GoldenPlacement, specs: dict[str, PolicySpec], now: datetime) -> None:
    """Check one golden placement, and record and publish a change of its state."""
    before = row.state
    _check_and_save(row, specs, now)
    if row.state != before and GoldenPlacement.BROKEN in (row.state, before):
        broke = row.state == GoldenPlacement.BROKEN
        log.log(30 if broke else 20, "golden placement", golden=row.name, state=row.state, got=row.got)
        record(
            actor=SYSTEM.name, role=SYSTEM.role, action="golden.broken" if broke else "golden.kept",
            obj=("golden", row.name), details={"expected": row.expectation.words, "got": row.got},
        )  # fmt: skip
    publish_many({GOLDENS: lambda: {row.name: golden_document(row)}})


def _check_and_save(row: GoldenPlacement, specs: dict[str, PolicySpec], now: datetime) -> None:
    """Check one golden placement under the active versions of the policies that it guards, and save the result."""
    rows = GoldenPlacement.objects.filter(pk=row.pk)
    results: dict[str, GoldenVerdict] = {}
    for spec in _guarded_policies(row, specs):
        (results[spec.name],) = check_rows(spec, rows)
    state, got = worst_result(results)
    row.state = state.value if row.enabled else GoldenPlacement.OFF
    row.got, row.checked_at, row.judged_on = shortened(got, 500), now, _check_key(row, specs)
    if row.state != GoldenPlacement.BROKEN:
        row.broken_since = None
    elif row.broken_since is None:
        row.broken_since = now
    row.save(update_fields=["state", "got", "checked_at", "judged_on", "broken_since"])


def _guarded_policies(row: GoldenPlacement, specs: dict[str, PolicySpec]) -> Sequence[PolicySpec]:
    return [spec for name, spec in sorted(specs.items()) if row.policy_name in ("", name)]


def _check_key(row: GoldenPlacement, specs: dict[str, PolicySpec]) -> str:
    versions = ",".join(f"{spec.name}@{spec.version}" for spec in _guarded_policies(row, specs))
    nodes = inventory_key(row.cluster) if row.decision is None else f"decision {row.decision}"
    return blake2b(f"{nodes} {versions}".encode(), digest_size=16).hexdigest()


def _active_specs() -> dict[str, PolicySpec]:
    rows = PolicyRevision.objects.filter(state=RevisionState.ACTIVE, version=F("policy__active_version"))
    return {revision.spec.name: revision.spec for revision in rows}
