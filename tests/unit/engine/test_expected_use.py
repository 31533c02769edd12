"""Expected use: declared, otherwise learnt from earlier pods of the same controller, otherwise requested."""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.cluster import PodUsage
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.cluster.expected_use import LEAST_PODS, LearntUse, basis_of, learn, p95
from tests.builders import PodBuilder, a_pod

WEB = "Deployment/web"


def used(count: int, *, controller: str = WEB, namespace: str = "default", start: int = 1) -> list[PodUsage]:
    """Return pods that used 1000, 2000 … millicores and as many bytes of memory, the last one first."""
    amounts = range((start + count - 1) * 1000, (start - 1) * 1000, -1000)
    return [PodUsage(namespace, f"p{n}", controller, {CPU: n, MEMORY: n}) for n in amounts]


def a_web_pod(name: str = "new") -> PodBuilder:
    return a_pod(name).having(controller=WEB)


def test_p95_is_the_nearest_rank() -> None:
    # ceil(.95 * 12) = ceil(11.4) = 12;  ceil(.95 * 40) = 38;  ceil(.95 * 20) = 19;  ceil(.95 * 1) = 1
    for count, position in ((12, 12), (40, 38), (20, 19), (1, 1)):
        assert p95(list(range(count, 0, -1))) == position


def test_expected_use_follows_the_siblings() -> None:
    expected = learn(used(12)).applied(a_web_pod().build())
    assert dict(expected.shape.expected_usage) == {CPU: 12_000, MEMORY: 12_000}
    assert basis_of(expected) == "learnt p95 of 12 pods of Deployment/web"


def test_declared_use_precedes_learnt_use() -> None:
    expected = learn(used(12)).applied(a_web_pod().expecting(cpu="2").build())
    assert dict(expected.shape.expected_usage) == {CPU: 2000}
    assert basis_of(expected) == "declared"


def test_few_samples_are_not_learnt() -> None:
    pod = a_web_pod().build()
    assert LEAST_PODS == 5
    assert basis_of(learn(used(4)).applied(pod)) == "requested"
    assert basis_of(learn(used(5)).applied(pod)) == "learnt p95 of 5 pods of Deployment/web"


def test_resource_is_learnt_from_enough_samples() -> None:
    samples = used(12)
    some = [msgspec.structs.replace(sample, amounts={CPU: sample.amounts[CPU]}) for sample in samples[4:]]
    assert learn(samples[:4] + some).learnt == {"default/Deployment/web": LearntUse(((CPU, 12_000),), 12, 6500.0)}


def test_learning_is_per_namespace_and_controller() -> None:
    samples = [*used(9, namespace="other"), *used(9, controller="Job/web"), *used(9, controller="")]
    experience = learn(samples)
    assert basis_of(experience.applied(a_web_pod().build())) == "requested"
    assert basis_of(experience.applied(a_pod().build())) == "requested"


def test_pods_of_one_controller_share_a_shape() -> None:
    experience = learn([*used(9), *used(9, controller="Job/batch", start=5)])
    pod = a_web_pod().build()
    twin = msgspec.structs.replace(pod, name="twin")
    other = msgspec.structs.replace(pod, name="other", controller="Job/batch")
    first, second, third = (experience.applied(one).shape for one in (pod, twin, other))
    assert first is second
    assert dict(first.expected_usage)[CPU] == 9_000
    assert dict(third.expected_usage)[CPU] == 13_000


def test_repeated_application_has_no_effect() -> None:
    experience = learn(used(9))
    once = experience.applied(a_web_pod().build())
    assert experience.applied(once) is once


def test_load_profile_is_learnt_from_the_share_of_the_request() -> None:
    # 1000..9000 millicores: mean 5000, p95 9000. Of 10 CPUs the mean is half: busy; of 11 it is less; of 90 the p95 is
    # a tenth: idle; of 89 it is more.
    experience = learn(used(9))
    for cpus, profile in ((10, "busy"), (11, ""), (89, ""), (90, "idle"), (0, "")):
        assert experience.applied(a_web_pod().cpu(cpus).build()).shape.load_profile == profile


def test_declared_load_profile_precedes_the_learnt_one() -> None:
    stated = a_web_pod().cpu(1).shaped(load_profile="peaks=08-10").build()
    assert learn(used(9)).applied(stated).shape.load_profile == "peaks=08-10"


def test_pod_with_declared_use_learns_its_profile() -> None:
    declared = a_web_pod().cpu(1).expecting(cpu="2").build()
    expected = learn(used(9)).applied(declared)
    assert (expected.shape.load_profile, dict(expected.shape.expected_usage)) == ("busy", {CPU: 2000})
    assert basis_of(expected) == "declared"
