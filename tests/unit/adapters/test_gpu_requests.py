import pytest

from hetsched.contracts.objects.workload import GpuDemand
from tests.unit.adapters.reading import pod, problems

NUMBER, MEMORY, CORE = "oks/gpu-number", "oks/gpu-memory", "oks/gpu-core"
MODEL, MILLI, MATCH = "hetsched.io/gpu-model", "hetsched.io/gpu-milli", "hetsched.io/gpu-model-match"


def limits(*resources: str) -> str:
    return f"containers: [{', '.join(f'{{resources: {{limits: {{{r}}}}}}}' for r in resources)}]"


ONE, TWO = limits("nvidia.com/gpu: 1"), limits("nvidia.com/gpu: 1", "nvidia.com/gpu: 1")


@pytest.mark.parametrize(
    ("annotations", "spec", "demand"),
    [
        ({}, "", None),
        ({NUMBER: "2"}, "", GpuDemand(2)),
        ({"oks/gpunumber": "3"}, "", GpuDemand(3)),
        ({NUMBER: "0"}, "", None),
        ({}, TWO, GpuDemand(2, vendor="nvidia")),
        ({}, limits("amd.com/gpu: 4"), GpuDemand(4, vendor="amd")),
        ({NUMBER: "2"}, TWO, GpuDemand(2, vendor="nvidia")),
        ({MILLI: "300"}, "", GpuDemand(1, milli=300)),
        ({MILLI: "300"}, ONE, GpuDemand(1, milli=300, vendor="nvidia")),
        ({MILLI: "1000", NUMBER: "4"}, "", GpuDemand(4)),
        ({MEMORY: "8192"}, "", GpuDemand(1, memory_mib=8192)),
        ({NUMBER: "1", MEMORY: "8192", CORE: "5120"}, "", GpuDemand(1, memory_mib=8192, cores=5120)),
        ({MODEL: "A100 | H100"}, ONE, GpuDemand(1, models=("A100", "H100"), vendor="nvidia")),
        ({MODEL: "P100", MATCH: "exact"}, "", GpuDemand(1, models=("P100",), exact_models=True)),
        ({MATCH: "exact", NUMBER: "1"}, "", GpuDemand(1)),
    ],
)
def test_gpu_requests_are_parsed(annotations: dict[str, str], spec: str, demand: GpuDemand | None) -> None:
    found = pod(spec, annotations=annotations)
    assert (found.shape.gpu, found.problems) == (demand, ())


@pytest.mark.parametrize(
    ("annotations", "spec", "code", "field"),
    [
        ({MILLI: "0"}, "", "GpuMilliInvalid", MILLI),
        ({MILLI: "1001"}, "", "GpuMilliInvalid", MILLI),
        ({MILLI: "-1"}, "", "GpuMilliInvalid", MILLI),
        ({MILLI: "50%"}, "", "GpuMilliInvalid", MILLI),
        ({MILLI: ""}, "", "GpuMilliInvalid", MILLI),
        ({MILLI: "500", NUMBER: "2"}, "", "GpuMilliWithManyCards", MILLI),
        ({MILLI: "500"}, TWO, "GpuMilliWithManyCards", MILLI),
        ({NUMBER: "one"}, "", "GpuNumberInvalid", NUMBER),
        ({NUMBER: "-1"}, "", "GpuNumberInvalid", NUMBER),
        ({NUMBER: "1"}, TWO, "GpuNumberContradiction", NUMBER),
        ({NUMBER: "0"}, ONE, "GpuNumberContradiction", NUMBER),
        ({MEMORY: "16Gi"}, "", "GpuMemoryInvalid", MEMORY),
        ({CORE: "many"}, ONE, "GpuCoreInvalid", CORE),
        ({MODEL: "A100|"}, "", "GpuModelInvalid", MODEL),
        ({MODEL: "nvidia"}, "", "GpuModelInvalid", MODEL),
        ({MODEL: "A100", MATCH: "fuzzy"}, "", "GpuModelInvalid", MATCH),
        ({}, limits("nvidia.com/gpu: 1", "amd.com/gpu: 1"), "FeatureNotSupported", "nvidia.com/gpu"),
    ],
)
def test_invalid_annotations_are_problems_of_the_pod(
    annotations: dict[str, str], spec: str, code: str, field: str
) -> None:
    assert problems(pod(spec, annotations=annotations)) == [(code, field)]


def test_all_problems_are_reported_together() -> None:
    found = pod(annotations={MILLI: "0", MEMORY: "x", "hetsched.io/isa": "z80"})
    assert [field for _, field in problems(found)] == [MILLI, MEMORY, "hetsched.io/isa"]
