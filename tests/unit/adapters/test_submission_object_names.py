"""Objects of a submission to a live cluster have deterministic names from the workload and the submission."""

from hetsched.adapters.kubernetes.object_submission import MOST_NAME, wanted
from hetsched.contracts.objects.submitted import ObjectToCreate

from .reading import pod_text

MADE = pod_text().replace("name: p", "generateName: ci-", 1)


def ready(text: str, identity: str = "build-17") -> list[ObjectToCreate]:
    return wanted(text.encode(), workload="w-1", identity=identity, scheduler_name="hetsched")


def test_names_are_stable_for_one_submission() -> None:
    assert ready(MADE)[0].name == ready(MADE)[0].name
    assert ready(MADE)[0].name.startswith("ci-")


def test_names_differ_between_submissions() -> None:
    assert ready(MADE)[0].name != ready(MADE, "build-18")[0].name


def test_objects_with_one_name_prefix_get_distinct_names() -> None:
    first, second = ready(f"{MADE}---\n{MADE}")
    assert first.name != second.name
    assert [new_object.name for new_object in ready(f"{MADE}---\n{MADE}")] == [first.name, second.name]
    assert {new_object.document["metadata"]["name"] for new_object in (first, second)} == {first.name, second.name}


def test_long_prefix_is_truncated_for_the_suffix() -> None:
    assert len(ready(MADE.replace("ci-", "x" * 200 + "-"))[0].name) <= MOST_NAME + 11
