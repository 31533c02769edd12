"""Pods excluded from rebalancing: by their owner, or by the data that they keep on their node."""

import pytest

from tests.unit.adapters.reading import content, pod_text

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"


@pytest.mark.parametrize(
    ("volumes", "annotations", "expected"),
    [
        ("[]", {}, ""),
        ("[]", {SAFE: "false"}, "annotation"),
        ("[{name: a, emptyDir: {}}]", {}, "local-volume"),
        ("[{name: a, emptyDir: {medium: Memory}}]", {}, ""),
        ("[{name: a, hostPath: {path: /var/lib/a}}]", {}, "local-volume"),
        ("[{name: a, configMap: {name: c}}]", {}, ""),
        ("[{name: a, emptyDir: {}}]", {SAFE: "true"}, ""),
        ("[{name: a, emptyDir: {}}]", {VOLUMES: "b, a"}, ""),
        ("[{name: a, emptyDir: {}}, {name: c, emptyDir: {}}]", {VOLUMES: "a"}, "local-volume"),
    ],
)
def test_unmovable_pod_has_a_reason(volumes: str, annotations: dict[str, str], expected: str) -> None:
    (pod,) = content(pod_text(f"volumes: {volumes}", annotations=annotations)).pending
    assert pod.stays == expected
