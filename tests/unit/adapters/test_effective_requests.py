"""Effective requests: the amount that a node must have, and the amount for scoring."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError
from tests.unit.adapters.reading import content, pod, pod_text

GI = 2**30


def container(cpu: str = "", memory: str = "", *, limit: str = "", always: bool = False) -> str:
    requests = ", ".join(f"{name}: {amount}" for name, amount in (("cpu", cpu), ("memory", memory)) if amount)
    restart = ", restartPolicy: Always" if always else ""
    limits = f", limits: {{cpu: {limit}}}" if limit else ""
    return f"{{resources: {{requests: {{{requests}}}{limits}}}{restart}}}"


def spec(*containers: str, init: tuple[str, ...] = (), more: str = "") -> str:
    return f"containers: [{', '.join(containers)}]\ninitContainers: [{', '.join(init)}]\n{more}"


def cpu_of(text: str) -> int:
    return pod(text).shape.request("cpu")


def test_container_requests_are_summed_and_a_pod_uses_one_slot() -> None:
    shape = pod(spec(container("500m", "1Gi"), container("1500m", "2Gi"))).shape
    assert shape.requests == (("cpu", 2000), ("memory", 3 * GI), ("pods", 1))


def test_limits_replace_absent_requests() -> None:
    assert cpu_of(spec(container(limit="2"), container("1", limit="4"))) == 2000 + 1000


def test_largest_init_container_counts_if_above_the_sum() -> None:
    assert cpu_of(spec(container("1"), init=(container("3"), container("2")))) == 3000
    assert cpu_of(spec(container("4"), init=(container("3"),))) == 4000


def test_sidecars_count_with_later_containers() -> None:
    # Containers: 1 + sidecars 0.5 + 0.25 = 1.75. Init: first 2 alone; then 0.5 + 3 = 3.5, the second sidecar later.
    steps = (container("2"), container("500m", always=True), container("3"), container("250m", always=True))
    assert cpu_of(spec(container("1"), init=steps)) == 3500
    # With a 4-CPU container the sum 4 + 0.75 is larger.
    assert cpu_of(spec(container("4"), init=steps)) == 4750


def test_overhead_is_added_at_the_end() -> None:
    shape = pod(spec(container("1"), init=(container("3"),), more="overhead: {cpu: 250m, memory: 120Mi}")).shape
    # max(1, 3) + 0.25; no memory was requested, so only the overhead's 120Mi.
    assert (shape.request("cpu"), shape.request("memory")) == (3250, 120 * 2**20)


@pytest.mark.parametrize(("level", "cpus"), [("", [2]), ("{limits: {memory: 2Gi}}", [])])
def test_pods_with_pod_level_resources_get_no_exclusive_cpus(level: str, cpus: list[int]) -> None:
    # The kubelet's static policy skips every pod with pod-level CPU, memory or huge pages.
    own = "{resources: {limits: {cpu: 2, memory: 1Gi}}}"
    shape = pod(spec(own, more=f"resources: {level}" if level else "")).shape
    assert [container.cpus for container in shape.containers] == cpus
    assert shape.guaranteed is bool(cpus)


def test_pod_level_resources_take_the_place_of_the_sum() -> None:
    text = spec(container("1", "1Gi"), more="resources: {requests: {cpu: 3}, limits: {cpu: 4, memory: 8Gi}}")
    shape = pod(text).shape
    # CPU: stated for the pod. Memory: only a limit is stated, and containers request 1Gi.
    assert (shape.request("cpu"), shape.request("memory")) == (3000, GI)


def test_scoring_uses_defaults_for_containers_without_requests() -> None:
    shape = pod(spec("{}", container("50m"), "{}")).shape
    # CPU 100m + 50m + 100m; memory 3 x 200Mi. The request itself stays 50m.
    assert (shape.nonzero_cpu_millis, shape.nonzero_memory_bytes) == (250, 600 * 2**20)
    assert shape.requests == (("cpu", 50), ("pods", 1))


@pytest.mark.parametrize(
    ("more", "mebibytes"),
    [
        ("resources: {limits: {cpu: 6}}", 128),  # of one container; the other one gets no default
        ("resources: {limits: {cpu: 6}, requests: {memory: 300Mi}}", 300),
        ("resources: {}", 328),
    ],
)
def test_pod_level_resources_get_no_default_requests_for_scoring(more: str, mebibytes: int) -> None:
    assert pod(spec("{}", container("1", "128Mi"), more=more)).shape.nonzero_memory_bytes == mebibytes * 2**20


def test_overhead_of_a_pod_with_pod_level_resources_replaces_the_default() -> None:
    level = "resources: {limits: {cpu: 6}}"
    assert pod(spec("{}", more=level)).shape.nonzero_memory_bytes == 200 * 2**20
    assert pod(spec("{}", more=f"{level}\noverhead: {{memory: 128Mi}}")).shape.nonzero_memory_bytes == 128 * 2**20


def test_zero_request_gets_no_default() -> None:
    shape = pod(spec(container("0", "0"))).shape
    assert (shape.nonzero_cpu_millis, shape.nonzero_memory_bytes, shape.requests) == (0, 0, (("pods", 1),))


def test_extended_resources_are_counted_like_the_others() -> None:
    text = spec("{resources: {requests: {hetsched.io/network-mbps: 40, hugepages-2Mi: 4Mi}}}")
    shape = pod(text).shape
    assert (shape.request("hetsched.io/network-mbps"), shape.request("hugepages-2Mi")) == (40, 4 * 2**20)


@pytest.mark.parametrize(
    ("text", "qos"),
    [
        (spec("{}"), "BestEffort"),
        (spec(container("0", "0")), "BestEffort"),
        (spec(container("1")), "Burstable"),
        (spec("{resources: {limits: {cpu: 1, memory: 1Gi}}}"), "Guaranteed"),
        (spec("{resources: {limits: {cpu: 1}}}"), "Burstable"),
        (spec("{resources: {requests: {cpu: 500m}, limits: {cpu: 1, memory: 1Gi}}}"), "Burstable"),
        (spec("{resources: {limits: {cpu: 1, memory: 1Gi}}}", "{}"), "Burstable"),
        (spec("{resources: {limits: {cpu: 1, memory: 1Gi}}}", init=("{}",)), "Burstable"),
        (spec("{}", more="resources: {limits: {cpu: 1, memory: 1Gi}}"), "Guaranteed"),
        (spec("{resources: {limits: {nvidia.com/gpu: 1}}}"), "BestEffort"),
    ],
)
def test_quality_of_service(text: str, qos: str) -> None:
    assert pod(text).qos == qos


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("containers: []", "FieldInvalid"),
        ("containers: null", "FieldInvalid"),
        (spec(*["{}"] * 65), "TooManyContainers"),
        (spec(*["{}"] * 60, init=("{}",) * 5), "TooManyContainers"),
        (spec("{name: a}", "{name: a}"), "NameDuplicate"),
        (spec("{name: A}"), "NameInvalid"),
        (spec(container("2", limit="1")), "RequestAboveLimit"),
        (spec("{resources: {requests: {a.b/c: 1}, limits: {a.b/c: 2}}}"), "RequestAboveLimit"),
        (spec("{resources: {requests: {gpu: 1}}}"), "ResourceNameInvalid"),
        (spec("{resources: {requests: {pods: 1}}}"), "ResourceNameInvalid"),
        (spec("{resources: {requests: {'a b': 1}}}"), "ResourceNameInvalid"),
        (spec("{resources: {requests: {nvidia.com/gpu: 500m}}}"), "QuantityNotInteger"),
        (spec("{resources: {requests: {cpu: ''}}}"), "QuantityMalformed"),
        (spec("{resources: {requests: {cpu: true}}}"), "QuantityMalformed"),
        (spec("{resources: {requests: []}}"), "FieldInvalid"),
        (spec("{resources: 1}"), "FieldInvalid"),
        (spec("{}", more="overhead: {cpu: -1}"), "QuantityNegative"),
    ],
)
def test_request_invalid_for_the_api_server_is_rejected(text: str, code: str) -> None:
    with pytest.raises(InputError) as refused:
        pod(text)
    assert refused.value.code == code


amounts = st.integers(0, 64_000)


@given(st.lists(amounts, min_size=1, max_size=4), st.lists(st.tuples(amounts, st.booleans()), max_size=5))
def test_request_is_the_peak_of_the_lifecycle(containers: list[int], init: list[tuple[int, bool]]) -> None:
    # Simulate the pod's lifecycle: each init step runs with the sidecars so far; at the end all containers and sidecars
    # run.
    sidecars, moments = 0, []
    for amount, always in init:
        sidecars += amount if always else 0
        moments.append(sidecars if always else sidecars + amount)
    moments.append(sum(containers) + sidecars)
    text = spec(
        *(container(f"{amount}m") for amount in containers),
        init=tuple(container(f"{amount}m", always=always) for amount, always in init),
    )
    assert cpu_of(text) == max(moments)


# -- in-place resizes ------------------------------------------------------------------------------------------------


def resized(
    *, stated: str = "1", allocated: str = "1", actual: str = "1", pending: str = "", group: str = "container",
    more: str = "",
) -> int:  # fmt: skip
    """Return the CPU of a bound pod for whose container the kubelet reports these amounts."""
    own = f"{{name: c, resources: {{requests: {{cpu: {stated}}}}}, restartPolicy: Always}}"
    other = "{name: other, resources: {requests: {cpu: 1}}}"
    lists = f"containers: [{other}]\ninitContainers: [{own}]" if group == "initContainer" else f"containers: [{own}]"
    status = f"{{name: c, allocatedResources: {{cpu: {allocated}}}, resources: {{requests: {{cpu: {actual}}}}}}}"
    conditions = f"[{{type: PodResizePending, status: 'True', reason: {pending}}}]" if pending else "[]"
    text = pod_text(f"nodeName: n1\n{lists}\n{more}")
    text += f"status:\n  conditions: {conditions}\n  {group}Statuses: [{status}]\n"
    if group == "initContainer":
        text += "  containerStatuses: [{name: other, allocatedResources: {cpu: 1}}]\n"
    (found,) = content(text).running
    return found.shape.request("cpu")


@pytest.mark.parametrize(
    ("stated", "allocated", "actual", "pending", "counts"),
    [
        ("1", "1", "1", "", 1000),
        ("6", "1", "1", "", 6000),  # requested just now
        ("6", "6", "1", "", 6000),  # being actuated
        ("1", "6", "6", "", 6000),  # a shrink that is not actuated yet
        ("1", "1", "6", "", 6000),
        ("6", "1", "1", "Deferred", 6000),
        ("64", "1", "1", "Infeasible", 1000),
        ("64", "2", "3", "Infeasible", 3000),
    ],
)
@pytest.mark.parametrize(("group", "others"), [("container", 0), ("initContainer", 1000)])
def test_in_place_resize_counts_the_maximum_of_spec_allocated_and_actual(
    stated: str, allocated: str, actual: str, pending: str, counts: int, group: str, others: int
) -> None:
    found = resized(stated=stated, allocated=allocated, actual=actual, pending=pending, group=group)
    assert found == counts + others


def test_in_place_resize_of_the_pod_level_counts_the_maximum() -> None:
    text = pod_text("nodeName: n1\nresources: {requests: {cpu: 2}}\noverhead: {cpu: 100m}")
    status = "status: {resources: {requests: {cpu: 1}}, allocatedResources: {cpu: 5}}\n"
    (found,) = content(text + status).running
    assert found.shape.request("cpu") == 5100


def test_in_place_resize_does_not_change_an_equal_pod() -> None:
    one = pod_text("nodeName: n1\ncontainers: [{name: c, resources: {requests: {cpu: 1}}}]", name="one")
    status = "status: {containerStatuses: [{name: c, allocatedResources: {cpu: 4}, resources: {requests: {cpu: 4}}}]}\n"
    found = content(f"{one}{status}---\n{one.replace('name: one', 'name: two')}").running
    assert [(p.name, p.shape.request("cpu")) for p in found] == [("one", 4000), ("two", 1000)]


def test_in_place_resize_compares_the_sums_of_all_containers() -> None:
    shrinks, grows = "{name: a, resources: {requests: {cpu: 1}}}", "{name: b, resources: {requests: {cpu: 3}}}"
    text = pod_text(f"nodeName: n1\ncontainers: [{shrinks}, {grows}]")
    allocated = "{name: a, allocatedResources: {cpu: 3}}, {name: b, allocatedResources: {cpu: 1}}"
    (found,) = content(f"{text}status: {{containerStatuses: [{allocated}]}}\n").running
    assert found.shape.request("cpu") == 4000


def test_scoring_counts_resized_requests() -> None:
    text = pod_text("nodeName: n1\ncontainers: [{name: c, resources: {requests: {cpu: 1}}}]")
    status = "status: {containerStatuses: [{name: c, allocatedResources: {cpu: 4}, resources: {requests: {cpu: 4}}}]}\n"
    (found,) = content(text + status).running
    assert found.shape.nonzero_cpu_millis == 4000
