"""The spec of one pod of a workload has at most 256 KiB; pods of a cluster are read without this limit."""

import pytest

from hetsched.adapters.objects.manifests import MOST_SPEC_BYTES
from hetsched.contracts.errors import InputError

from .reading import content, pod, pod_text


def test_oversized_pod_spec_is_rejected() -> None:
    def said(characters: int) -> str:
        return f"containers: [{{name: main, args: ['{'x' * characters}']}}]"

    pod(said(MOST_SPEC_BYTES - 100))
    with pytest.raises(InputError) as refused:
        pod(said(MOST_SPEC_BYTES))
    assert (refused.value.code, str(MOST_SPEC_BYTES) in refused.value.message) == ("PodTooLarge", True)


def test_oversized_controller_template_is_rejected() -> None:
    job = f"""
        apiVersion: batch/v1
        kind: Job
        metadata: {{name: j}}
        spec: {{template: {{spec: {{containers: [{{name: main, args: ['{"x" * MOST_SPEC_BYTES}']}}]}}}}}}
        """
    with pytest.raises(InputError) as refused:
        content(job)
    assert refused.value.code == "PodTooLarge"


def test_running_pod_is_read_at_any_size() -> None:
    text = pod_text(f"nodeName: n1\ncontainers: [{{name: main, args: ['{'x' * MOST_SPEC_BYTES}']}}]")
    assert len(content(text, workload=False).running) == 1
