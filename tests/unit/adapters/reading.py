"""Shortcuts from text to contracts, for tests of the adapters."""

from textwrap import dedent, indent

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.workload import PodSpec


def content(text: str, *, workload: bool = True, known: ClusterContent | None = None) -> ClusterContent:
    """Parse YAML or JSON as if it were read from the file `file.yaml`."""
    return read_content(load_documents(dedent(text).encode(), name="file.yaml"), workload=workload, known=known)


def pod_text(
    spec: str = "", *, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, name: str = "p"
) -> str:
    """Return a pod with one container `main` without requests; `spec` contains further lines of its spec."""
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", f"  name: {name}"]
    for field, values in (("annotations", annotations), ("labels", labels)):
        if values:
            lines += [f"  {field}:", *(f"    {key}: {value!r}" for key, value in values.items())]
    spec = dedent(spec)
    lines.append("spec:")
    if not any(line.startswith("containers:") for line in spec.splitlines()):
        lines.append("  containers: [{name: main}]")
    return "\n".join([*lines, indent(spec, "  "), ""])


def pod(
    spec: str = "", *, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None,
    known: ClusterContent | None = None,
) -> PodSpec:  # fmt: skip
    """Parse the pod that `pod_text` returns."""
    read = content(pod_text(spec, annotations=annotations, labels=labels), known=known)
    (found,) = read.pending + read.running
    return found


def problems(found: PodSpec) -> list[tuple[str, str]]:
    """Return the problems of a pod as (code, field)."""
    return [(problem.code, problem.field) for problem in found.problems]
