"""Configurations of scheduler_perf become operations with resolved parameters, or skipped workloads with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from hetsched.cli.bench.scheduler_perf.configuration import PerfWorkload, read
from hetsched.cli.bench.scheduler_perf.operations import (
    Barrier,
    Churn,
    CreateNodes,
    CreatePods,
    CreateResourceDriver,
    DeletePods,
    NodeLabels,
    Sleep,
)
from hetsched.contracts.errors import InputError

MEASURED = {"opcode": "createPods", "countParam": "$measurePods", "collectMetrics": True}
NODES = {"opcode": "createNodes", "countParam": "$initNodes", "nodeTemplatePath": "../templates/node.yaml"}


def case(name: str, *operations: dict[str, Any], **fields: Any) -> dict[str, Any]:
    sizes = [
        {"name": "5Nodes", "params": {"initNodes": 5, "measurePods": 10}, "featureGates": {"B": False}},
        {"name": "500Nodes", "params": {"initNodes": 500, "measurePods": 1000}},
    ]
    return {"name": name, "workloadTemplate": list(operations), "workloads": sizes, **fields}


def write(folder: Path, *cases: dict[str, Any]) -> Path:
    for place in ("misc", "templates"):
        (folder / place).mkdir()
    (folder / "misc" / "performance-config.yaml").write_text(yaml.safe_dump(list(cases)))
    for kind in ("Node", "Pod", "ResourceClaimTemplate"):
        text = f"kind: {kind}\nmetadata:\n  generateName: {kind.lower()}-\n"
        (folder / "templates" / f"{kind.lower()}.yaml").write_text(text)
    return folder


def read_one(folder: Path, *operations: dict[str, Any], **fields: Any) -> PerfWorkload:
    (found,), skipped = read(write(folder, case("A", *operations, **fields)), sizes=["5Nodes"])
    assert skipped == []
    return found


def reason(folder: Path, *operations: dict[str, Any], **fields: Any) -> str:
    found, (skipped,) = read(write(folder, case("A", *operations, **fields)), sizes=["5Nodes"])
    assert (found, skipped.name) == ([], "A/5Nodes")
    return skipped.reason


def test_parameters_gates_and_the_default_template_are_resolved(tmp_path: Path) -> None:
    fields = {"defaultPodTemplatePath": "../templates/pod.yaml", "featureGates": {"A": True, "B": True}}
    found = read_one(tmp_path, NODES, MEASURED, **fields)
    assert found.name == "A/5Nodes"
    assert found.gates == {"A": True, "B": False}
    assert found.operations == (
        CreateNodes(5, node_template_path="../templates/node.yaml"),
        CreatePods(10, pod_template_path="../templates/pod.yaml", collect_metrics=True),
    )
    assert sorted(found.templates) == ["../templates/node.yaml", "../templates/pod.yaml"]


def test_all_operations_are_read(tmp_path: Path) -> None:
    label = {"labelKey": "zone", "labelValues": ["a", "b"]}
    found = read_one(
        tmp_path,
        {"opcode": "createNodes", "count": 1, "labelNodePrepareStrategy": label},
        {"opcode": "churn", "mode": "recreate", "number": 1, "templatePaths": ["../templates/pod.yaml"]},
        {"opcode": "barrier", "stageRequirement": "Attempted"},
        {"opcode": "sleep", "duration": "1m30s"},
        {"opcode": "deletePods", "namespace": "namespace-1", "deletePodsPerSecond": 50, "skipWaitToCompletion": True},
        {"opcode": "createResourceDriver", "driverName": "d", "nodes": "n-*", "maxClaimsPerNodeParam": "$initNodes"},
        MEASURED,
    )
    nodes, churn, barrier, sleep, deletion, driver, _ = found.operations
    assert isinstance(sleep, Sleep)
    assert sleep.seconds == 90
    assert nodes == CreateNodes(1, label_node_prepare_strategy=NodeLabels("zone", ("a", "b")))
    assert churn == Churn("recreate", ("../templates/pod.yaml",), number=1)
    assert barrier == Barrier(stage_requirement="Attempted")
    assert deletion == DeletePods("namespace-1", 50, skip_wait_to_completion=True)
    assert driver == CreateResourceDriver("d", "n-*", 5)


def test_pod_sets_become_one_operation_for_each_namespace(tmp_path: Path) -> None:
    inner = {"opcode": "createPods", "countParam": "$measurePods"}
    sets = {"opcode": "createPodSets", "count": 2, "namespacePrefix": "init", "createPodsOp": inner}
    found = read_one(tmp_path, sets, MEASURED)
    assert found.operations[:2] == (CreatePods(10, "init-0"), CreatePods(10, "init-1"))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"opcode": "startCollectingMetrics"}, "the operation startCollectingMetrics is not supported"),
        ({"opcode": "createPods", "count": 1, "steadyState": True}, "the field steadyState of createPods"),
        ({"opcode": "createPods", "countParam": "$absent"}, "no parameter $absent"),
        ({"opcode": "createPods", "count": "many"}, "createPods: Expected `int`"),
        ({"opcode": "barrier", "stageRequirement": "Bound"}, "barrier: Invalid enum value 'Bound'"),
        ({"opcode": "createAny", "templatePath": "../templates/absent.yaml"}, "absent.yaml cannot be read"),
        (
            {"opcode": "createAny", "templatePath": "../templates/resourceclaimtemplate.yaml"},
            "objects of kind ResourceClaimTemplate are not supported",
        ),
        ({"opcode": "createPodSets", "count": 1, "namespacePrefix": "a"}, "createPodSets has fields other than"),
    ],
)
def test_unsupported_operation_is_skipped_with_the_reason(
    tmp_path: Path, operation: dict[str, Any], expected: str
) -> None:
    assert expected in reason(tmp_path, operation, MEASURED)


def test_unsupported_field_of_a_test_case_is_skipped_with_the_reason(tmp_path: Path) -> None:
    assert "schedulerConfigPath" in reason(tmp_path, MEASURED, schedulerConfigPath="a.yaml")


def test_workload_without_measured_pods_is_skipped(tmp_path: Path) -> None:
    assert "collects metrics" in reason(tmp_path, NODES)


def test_missing_size_is_skipped_with_a_reason(tmp_path: Path) -> None:
    found, (skipped,) = read(write(tmp_path, case("A", MEASURED)), sizes=["50Nodes"])
    assert found == []
    assert msgspec.to_builtins(skipped) == {
        "name": "A",
        "reason": "no workload 50Nodes; the workloads are 5Nodes, 500Nodes",
    }


def test_only_the_named_test_cases_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, case("A", MEASURED), case("B", MEASURED))
    found, skipped = read(folder, sizes=["500Nodes", "5Nodes"], only=["B"])
    assert ([one.name for one in found], skipped) == (["B/5Nodes", "B/500Nodes"], [])
    with pytest.raises(InputError) as error:
        read(folder, sizes=["5Nodes"], only=["C"])
    assert error.value.code == "UnknownTestCase"


def test_folder_without_configurations_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, sizes=["5Nodes"])
    assert error.value.code == "ConfigurationMissing"
