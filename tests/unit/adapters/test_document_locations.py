import pytest

from hetsched.adapters.objects.documents import load_documents
from hetsched.contracts.errors import InputError
from tests.unit.adapters.reading import content

POD = "{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{resources: {requests: {cpu: %s}}}]}}\n"


def place(text: str) -> str:
    with pytest.raises(InputError) as refused:
        content(text)
    return refused.value.place


def test_wrong_field_is_located_by_file_document_and_path() -> None:
    text = POD % ("a", "1") + "---\n" + POD % ("b", "-1")
    assert place(text) == "file.yaml#2 spec.containers[0].resources.requests.cpu"


def test_empty_documents_count() -> None:
    assert place("---\n---\n" + POD % ("b", "-1")).startswith("file.yaml#2 ")


def test_list_item_is_located_by_index() -> None:
    items = f"[{POD % ('a', '1')}, {POD % ('b', '-1')}]"
    text = f"{{apiVersion: v1, kind: List, items: {items}}}"
    assert place(text) == "file.yaml#1 items[1].spec.containers[0].resources.requests.cpu"


def test_wrong_template_field_is_located_in_the_controller() -> None:
    text = """\
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: web}
        spec: {template: {spec: {containers: [{name: a}, {name: a}]}}}
    """
    assert place(text) == "file.yaml#1 spec.template.spec.containers[1].name"


def test_keys_with_dots_are_quoted() -> None:
    assert place("{apiVersion: v1, kind: Node, metadata: {name: n, labels: {a.b/c: 1}}}") == (
        "file.yaml#1 metadata.labels['a.b/c']"
    )


def test_lists_of_lists_are_flattened_in_order() -> None:
    text = """\
        {"apiVersion": "v1", "kind": "List", "items": [
          {"apiVersion": "v1", "kind": "A"},
          {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "B"}]},
          {"apiVersion": "v1", "kind": "C"}]}
    """
    found = load_documents(text.encode(), name="f.json")
    assert [(d.object["kind"], d.path) for d in found] == [
        ("A", "items[0]."), ("B", "items[1].items[0]."), ("C", "items[2]."),
    ]  # fmt: skip


def test_items_of_a_typed_list_have_the_kind_of_the_list() -> None:
    text = "{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}, spec: {containers: [{}]}}]}"
    assert [pod.name for pod in content(text).pending] == ["a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "file.yaml#1"),
        ("- {}", "file.yaml#1"),
        ("words", "file.yaml#1"),
        ("kind: Pod", "file.yaml#1 apiVersion"),
        ("apiVersion: v1", "file.yaml#1 kind"),
        ("{apiVersion: v1, kind: 7}", "file.yaml#1 kind"),
        ("{apiVersion: v1, kind: List, items: {}}", "file.yaml#1 items"),
        ("{apiVersion: v1, kind: List, items: [7]}", "file.yaml#1 items[0]"),
    ],
)
def test_non_object_is_rejected(text: str, expected: str) -> None:
    assert place(text) == expected
