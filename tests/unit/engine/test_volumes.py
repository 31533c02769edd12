"""Pods run where their volumes are or can be provisioned, one pod after the other on the same storage."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.allocation import VolumeGrant
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.storage import (
    NO_PROVISIONER,
    PersistentVolume,
    Storage,
    StorageClass,
    VolumeClaim,
)
from hetsched.contracts.objects.workload import ClaimRequest, ClaimUse, LabelSelector, PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.status import SKIP
from hetsched.engine.plugins.constraints.volumes import Volumes
from hetsched.engine.simulation.what_if import what_if
from tests.builders import NodeBuilder, a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, ZONE, policy_of

GIB = 2**30
LOCAL = StorageClass(NO_PROVISIONER, waits=True)
MADE = StorageClass("csi.example.org", waits=True)


def zoned(*zones: str) -> list[NodeBuilder]:
    """Return one node in each zone, with the zone's name."""
    return [a_node(zone).labelled({ZONE: zone}) for zone in zones]


def in_zone(zone: str) -> tuple[NodeTerm, ...]:
    return (NodeTerm((Expression(ZONE, "In", (zone,)),)),)


def volume(name: str, zone: str = "", *, size: int = 10, **facts: object) -> PersistentVolume:
    """Return a volume of the local class, usable in one zone if one is named."""
    own = {"storage_class": "local", "modes": ("ReadWriteOnce",), "terms": in_zone(zone) if zone else None} | facts
    return PersistentVolume(name, size * GIB, **own)  # type: ignore[arg-type]


def claim(
    name: str, *, size: int = 5, kind: str | None = "local", modes: str = "ReadWriteOnce", **facts: object
) -> VolumeClaim:
    asks = ClaimRequest(kind, size * GIB, (modes,), selector=facts.pop("selector", None))  # type: ignore[arg-type]
    return VolumeClaim("default", name, asks, **facts)  # type: ignore[arg-type]


def storage(*things: PersistentVolume | VolumeClaim, **classes: StorageClass) -> Storage:
    return Storage(
        {thing.name: thing for thing in things if isinstance(thing, PersistentVolume)},
        {thing.key: thing for thing in things if isinstance(thing, VolumeClaim)},
        {"local": LOCAL, "made": MADE, **classes},
    )


def using(name: str, *claims: str) -> PodSpec:
    return a_pod(name).shaped(claims=tuple(ClaimUse(claim) for claim in claims)).build()


def on(nodes: list[NodeBuilder], stored: Storage, *running: PodSpec, policy: str = "hetsched") -> Scheduler:
    state = ClusterState([node.build() for node in nodes], running, storage=stored)
    return Scheduler(state, compile_policy(BUILTIN[policy], REGISTRY))


def place(pod: PodSpec, nodes: list[NodeBuilder], *things: PersistentVolume | VolumeClaim) -> Outcome:
    return on(nodes, storage(*things)).schedule(pod)


def why(pod: PodSpec, nodes: list[NodeBuilder], stored: Storage, *running: PodSpec) -> Diagnosis:
    return diagnose(on(nodes, stored, *running), pod)


# -- bound claims ------------------------------------------------------------------------------------------------------


def test_pod_is_placed_at_its_volume() -> None:
    things = volume("disk", "b", claim="default/data"), claim("data", volume="disk")
    assert place(using("p", "data"), zoned("a", "b", "c"), *things).node == "b"


@pytest.mark.parametrize("key", [ZONE, "failure-domain.beta.kubernetes.io/zone"])
def test_zone_labels_of_a_volume_restrict_its_nodes(key: str) -> None:
    nodes = [a_node("a").labelled({key: "a"}), a_node("b").labelled({key: "b"})]
    disk = volume("disk", zones=(Expression(ZONE, "In", ("b", "c")),))
    assert place(using("p", "data"), nodes, disk, claim("data", volume="disk")).node == "b"


def test_nodes_without_access_to_the_volume_name_it() -> None:
    stored = storage(volume("disk", "z"), claim("data", volume="disk"))
    found = why(using("p", "data"), zoned("a", "b"), stored)
    assert found.verdict is Verdict.NOT_NOW
    assert [(r.code, r.plugin, r.nodes, r.missing) for r in found.reasons] == [
        ("VolumeNodeConflict", "volumes", 2, ("disk",))
    ]


@pytest.mark.parametrize(
    ("things", "code"),
    [
        ((), "VolumeClaimMissing"),
        ((claim("data", volume="disk"),), "VolumeMissing"),
        ((claim("data", deleting=True),), "VolumeClaimDeleting"),
        ((claim("data", lost=True),), "VolumeLost"),
        ((claim("data", kind="none"),), "StorageClassMissing"),
        ((claim("data", kind="at-once"),), "VolumeNotBound"),
        ((claim("data", kind=""),), "VolumeNotBound"),
        ((claim("data", kind=None),), "VolumeNotBound"),
        ((claim("data", wanted="disk"), volume("disk")), "VolumeNotBound"),
    ],
)
def test_unusable_claim_is_not_now_with_its_code(things: tuple[PersistentVolume | VolumeClaim, ...], code: str) -> None:
    stored = msgspec.structs.replace(storage(*things), classes={"at-once": StorageClass("x"), "local": LOCAL})
    found = why(using("p", "data"), zoned("a"), stored)
    assert found.verdict is Verdict.NOT_NOW
    assert [reason.code for reason in found.reasons] == [code]
    assert "data" in found.summary


def test_migrated_volume_type_is_named_with_its_field() -> None:
    stored = storage(volume("disk", source="gcePersistentDisk"), claim("data", volume="disk"))
    found = why(using("p", "data"), zoned("a"), stored)
    assert found.verdict is Verdict.MISCONFIGURED
    assert [(r.code, r.field) for r in found.reasons] == [
        ("FeatureNotSupported", "PersistentVolume disk: spec.gcePersistentDisk")
    ]


# -- claims that wait for their pod -----------------------------------------------------------------------------------


def test_smallest_suitable_volume_is_selected() -> None:
    things = (
        volume("large", "a", size=50),
        volume("small", "a", size=4),
        volume("right", "a", size=10),
        volume("other", "a", size=6, claim="default/else"),
        volume("ended", "a", size=6, gone=True),
        volume("class", "a", size=6, storage_class="made"),
        volume("block", "a", size=6, block=True),
        volume("modes", "a", size=6, modes=("ReadOnlyMany",)),
    )
    outcome = place(using("p", "data"), zoned("a", "b"), *things, claim("data"))
    assert outcome.node == "a"
    assert outcome.allocation.volumes == (VolumeGrant("data", "right"),)


def test_claim_gets_a_volume_of_its_selector() -> None:
    gold = LabelSelector((Expression("tier", "In", ("gold",)),))
    things = volume("a", size=5), volume("b", size=9, labels={"tier": "gold"})
    outcome = place(using("p", "data"), zoned("n"), *things, claim("data", selector=gold))
    assert outcome.allocation.volumes == (VolumeGrant("data", "b"),)


def test_volume_with_a_claim_reference_is_reserved_for_it() -> None:
    things = volume("a", size=5), volume("mine", "b", size=9, claim="default/data", claim_uid="u")
    outcome = place(using("p", "data"), zoned("a", "b"), *things, claim("data", uid="u"))
    assert (outcome.node, outcome.allocation.volumes) == ("b", (VolumeGrant("data", "mine"),))
    assert place(using("p", "data"), zoned("b"), things[1], claim("data", uid="another")).node is None


def test_volume_is_selected_once_and_released_with_its_pod() -> None:
    stored = storage(volume("v", "a"), claim("one"), claim("two"))
    scheduler = on(zoned("a"), stored)
    first, second = using("p1", "one"), using("p2", "two")
    empty = scheduler.state.digest()
    taken = scheduler.schedule(first)
    assert taken.node == "a"
    assert scheduler.schedule(second).node is None
    assert [r.code for r in diagnose(scheduler, second).reasons] == ["VolumeNotAvailable"]
    scheduler.undo(taken)
    assert scheduler.state.digest() == empty
    assert scheduler.schedule(second).allocation.volumes == (VolumeGrant("two", "v"),)


def test_claims_of_one_pod_get_different_volumes_on_one_node() -> None:
    # a has one volume, b has two; the larger claim needs the larger one.
    things = volume("a1", "a", size=20), volume("b1", "b", size=20), volume("b2", "b", size=6)
    claims = claim("big", size=15), claim("small", size=5)
    outcome = place(using("p", "big", "small"), zoned("a", "b"), *things, *claims)
    assert outcome.node == "b"
    assert outcome.allocation.volumes == (VolumeGrant("big", "b1"), VolumeGrant("small", "b2"))
    found = why(using("p", "big", "small"), zoned("a"), storage(things[0], *claims))
    assert [(r.code, r.message) for r in found.reasons] == [
        ("VolumeNotAvailable", "there are too few volumes for all claims of the pod")
    ]


def test_class_provisions_in_its_topologies() -> None:
    made = msgspec.structs.replace(MADE, topologies=in_zone("c"))
    scheduler = on(zoned("a", "c"), storage(claim("data", kind="made"), made=made))
    outcome = scheduler.schedule(using("p", "data"))
    assert (outcome.node, outcome.allocation.volumes) == ("c", ())


def test_claim_during_provisioning_stays_with_its_node() -> None:
    things = claim("data", kind="made", selected_node="b")
    assert place(using("p", "data"), zoned("a", "b", "c"), things).node == "b"


def test_pods_that_share_a_claim_follow_its_first_user() -> None:
    scheduler = on(zoned("a", "b", "c"), storage(volume("v", "b"), claim("static"), claim("dynamic", kind="made")))
    assert scheduler.schedule(using("p1", "static")).node == "b"
    again = scheduler.schedule(using("p2", "static"))
    assert (again.node, again.allocation.volumes) == ("b", (VolumeGrant("static", "v"),))
    first = scheduler.schedule(using("p3", "dynamic")).node
    assert scheduler.schedule(using("p4", "dynamic")).node == first
    elsewhere = diagnose(scheduler, using("p5", "dynamic")).reasons
    assert not elsewhere or {r.code for r in elsewhere} == {"VolumeSelectedElsewhere"}


def test_missing_claim_is_taken_from_the_pod() -> None:
    own = ClaimUse("p-scratch", ClaimRequest("local", 5 * GIB, ("ReadWriteOnce",)))
    pod = a_pod("p").shaped(claims=(own,)).build()
    assert place(pod, zoned("a", "b"), volume("v", "b")).allocation.volumes == (VolumeGrant("p-scratch", "v"),)


def test_default_class_applies_to_claims_without_a_class() -> None:
    default = msgspec.structs.replace(LOCAL, default=True)
    stored = storage(volume("v", "b"), claim("data", kind=None), local=default)
    assert on(zoned("a", "b"), stored).schedule(using("p", "data")).node == "b"


# -- other users of the volume ----------------------------------------------------------------------------------------


def test_read_write_once_pod_claim_is_exclusive() -> None:
    stored = storage(volume("v"), claim("data", volume="v", modes="ReadWriteOncePod"))
    running = msgspec.structs.replace(using("user", "data"), node_name="a")
    found = why(using("p", "data"), zoned("a", "b"), stored, running)
    assert [(r.code, r.nodes) for r in found.reasons] == [("VolumeInUse", 1), ("VolumeInUse", 1)]
    assert found.resolvable == (0,)  # only on its user's node could that one be evicted


def test_attach_limits_are_respected() -> None:
    # a can attach 2 and has h1; one more fits, and h1 again adds none; two more are 1 + 2 > 2.
    nodes = [a_node("a").having(attach_limits={"csi": 2})]
    things = [volume(f"v{i}", driver="csi", handle=f"h{i}") for i in range(1, 4)]
    stored = storage(*things, *(claim(f"c{i}", volume=f"v{i}") for i in range(1, 4)))
    running = msgspec.structs.replace(using("user", "c1"), node_name="a")
    assert on(nodes, stored, running).schedule(using("p", "c1", "c2")).node == "a"
    found = why(using("p", "c2", "c3"), nodes, stored, running)
    assert [(r.code, r.missing) for r in found.reasons] == [("VolumeLimitExceeded", ("csi",))]
    assert found.resolvable == (0,)


def test_volumes_to_provision_count_for_their_driver() -> None:
    nodes = [a_node("a").having(attach_limits={"csi.example.org": 1}), a_node("b")]
    scheduler = on(nodes, storage(*(claim(f"c{i}", kind="made") for i in range(3))), policy="first-fit")
    assert [scheduler.schedule(using(f"p{i}", f"c{i}")).node for i in range(3)] == ["a", "b", "b"]


# -- together with other rules ----------------------------------------------------------------------------------------


def test_pod_without_claims_is_not_filtered() -> None:
    state = ClusterState([a_node().build()])
    assert Volumes().pre_filter(state.compile(a_pod().build()), state) is SKIP


def test_copy_and_rebuilt_state_have_the_chosen_volumes() -> None:
    stored = storage(volume("v", "a"), claim("one"), claim("two"))
    scheduler = on(zoned("a"), stored)
    taken = scheduler.schedule(using("p1", "one"))
    running = msgspec.structs.replace(taken.pod, node_name="a", allocation=taken.allocation)
    for state in (scheduler.state.fork(), ClusterState(scheduler.state.reports, [running], storage=stored)):
        assert state.volumes.claim_of_volume == {"v": "default/one"}
        assert Scheduler(state, scheduler.policy).schedule(using("p2", "two")).node is None


def test_state_digest_depends_on_storage() -> None:
    nodes = [a_node().build()]
    digests = {ClusterState(nodes, storage=s).digest() for s in (None, storage(volume("v")), storage(volume("w")))}
    assert len(digests) == 3


def test_what_if_considers_volumes() -> None:
    content = ClusterContent(
        nodes=tuple(node.build() for node in zoned("a", "b")), storage=storage(volume("v", "b"), claim("one"))
    )
    pods = [using("p1", "one"), using("p2", "missing")]
    answer = what_if(ClusterState.of(content), policy_of("volumes"), pods, evaluated_at="", explain=True)
    assert [(placed.pod, placed.node) for placed in answer.placements] == [("default/p1", "b")]
    assert [reason.code for reason in answer.unplaced[0].reasons] == ["VolumeClaimMissing"]
    assert answer.verdict is Verdict.NOT_NOW


def test_storage_of_the_pods_is_added_to_that_of_the_cluster() -> None:
    scheduler = on(zoned("a", "b"), storage(volume("v", "b")))
    before = scheduler.state.digest()
    scheduler.state.add_storage(Storage({"v": volume("v", "a")}, {"default/data": claim("data")}))
    assert scheduler.state.digest() != before
    assert scheduler.schedule(using("p", "data")).node == "b"
