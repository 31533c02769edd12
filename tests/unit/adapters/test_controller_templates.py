import pytest

from hetsched.contracts.errors import InputError
from tests.unit.adapters.reading import content


def controller(kind: str, spec: str, name: str = "web") -> str:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    template = "template: {metadata: {labels: {app: web}}, spec: {containers: [{resources: {requests: {cpu: 1}}}]}}"
    return f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec} {template}}}}}\n"


@pytest.mark.parametrize(
    ("kind", "spec", "names"),
    [
        ("Deployment", "replicas: 3,", ["web-0", "web-1", "web-2"]),
        ("Deployment", "", ["web-0"]),
        ("Deployment", "replicas: 0,", []),
        ("ReplicaSet", "replicas: 2,", ["web-0", "web-1"]),
        ("StatefulSet", "replicas: 2, ordinals: {start: 5},", ["web-5", "web-6"]),
        ("Job", "", ["web-0"]),
        ("Job", "parallelism: 2, completions: 10,", ["web-0", "web-1"]),
        ("Job", "parallelism: 5, completions: 2,", ["web-0", "web-1"]),
        ("Job", "parallelism: 3, suspend: true,", []),
    ],
)
def test_job_parallelism_determines_the_pods(kind: str, spec: str, names: list[str]) -> None:
    found = content(controller(kind, spec)).pending
    assert [pod.name for pod in found] == names
    assert all(pod.controller == f"{kind}/web" and pod.labels == {"app": "web"} for pod in found)


def test_pods_of_a_controller_share_one_shape() -> None:
    first, second = content(controller("Deployment", "replicas: 2,")).pending
    assert first.shape is second.shape


def test_controllers_of_one_name_do_not_collide() -> None:
    text = "---\n".join((controller("Deployment", ""), controller("StatefulSet", "")))
    assert [pod.name for pod in content(text).pending] == ["web-0", "web-statefulset-0"]


def test_templates_in_a_cluster_file_are_not_expanded() -> None:
    assert content(controller("Deployment", ""), workload=False).pending == ()


def test_generated_names_are_numbered() -> None:
    job = (
        "{apiVersion: batch/v1, kind: Job, metadata: {generateName: ci-}, spec: {template: {spec: {containers: [{}]}}}}"
    )
    assert [pod.name for pod in content(f"{job}\n---\n{job}").pending] == ["ci-0-0", "ci-1-0"]


@pytest.mark.parametrize("spec", ["replicas: -1,", "replicas: x,", "replicas: 1.5,", "replicas: 10000000000,"])
def test_wrong_counts_are_refused(spec: str) -> None:
    with pytest.raises(InputError) as refused:
        content(controller("Deployment", spec))
    assert refused.value.place == "file.yaml#1 spec.replicas"


def test_excessive_replica_count_is_rejected() -> None:
    with pytest.raises(InputError) as refused:
        content(controller("Deployment", "replicas: 2000000000,"))
    assert refused.value.code == "TooManyPods"


def test_controllers_without_a_pod_count_are_named_as_left_out() -> None:
    text = "---\n".join(
        (
            controller("DaemonSet", "", "proxy"),
            "{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: lab}}\n",
            controller("Job", ""),
        )
    )
    found = content(text)
    assert found.left_out == ("DaemonSet default/proxy", "CronJob lab/nightly")
    assert [pod.name for pod in found.pending] == ["web-0"]
    # In a cluster file they do not become pods.
    assert content(text, workload=False).left_out == ()
