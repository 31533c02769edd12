"""Malformed objects are read, or rejected with a code, a path and a hint."""

import copy
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.adapters.objects.documents import Document
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.errors import InputError
from tests.unit.adapters.drawn_objects import CLUSTERS, Plain

ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        10**30,
        1.5,
        "",
        "x" * 300,
        "..",
        "\u202e",
        [],
        [None],
        {},
        {"a": 1},
        [[]],
        [{"name": 5}],
        "5",
        "-1",
    ]
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) inside a value."""
    found: list[tuple[Any, Any]] = []
    open_values = [value]
    while open_values:
        item = open_values.pop()
        keys: Any = item.keys() if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        found.extend((item, key) for key in keys)
        open_values.extend(item[key] for key in keys)
    return found


@settings(max_examples=500)
@given(CLUSTERS, st.lists(ODD, min_size=1, max_size=3), st.integers(0, 2**32))
def test_odd_values_at_any_path_are_read_or_rejected(objects: list[Plain], odd: list[Any], seed: int) -> None:
    objects = copy.deepcopy(objects)
    draw = random.Random(seed)
    for value in odd:
        container, key = draw.choice([place for place in places(objects) if place[1] not in ("kind", "apiVersion")])
        container[key] = copy.deepcopy(value)  # a recursive object has no finite encoding
    documents = [Document("f", number, plain) for number, plain in enumerate(objects, 1) if isinstance(plain, dict)]
    documents = [document for document in documents if isinstance(document.object.get("kind"), str)]
    try:
        read = read_content([d for d in documents if isinstance(d.object.get("apiVersion"), str)], workload=True)
    except InputError as error:
        outcome = (error.code.isalnum() and bool(error.hint), error.place.startswith("f#"))
    else:
        outcome = (len(read.pending) >= 0, True)
    assert outcome == (True, True)
