"""Remedies for values that a msgspec type rejects, at every depth of the type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from hetsched.contracts.type_remedies import field_of, remedy_for


class _Item(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=5)]
    share: Annotated[int, msgspec.Meta(gt=0, lt=10)] = 1
    size: Annotated[int, msgspec.Meta(ge=1)] = 1
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    mode: Literal["plain", "upstream"] | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    all_items: list[_Item] = []
    by_name: dict[str, _Item] = {}
    point: tuple[int, float] | None = None
    enabled: bool = True


@pytest.mark.parametrize(
    ("value", "field", "remedy"),
    [
        ({"allItem": []}, "allItem", "Did you mean allItems? Known: allItems, byName, point, enabled"),
        ({"allItems": [{}]}, "allItems[0].name", "Add this field"),
        ({"allItems": {}}, "allItems", "Write a list"),
        ({"allItems": [5]}, "allItems[0]", "Write an object"),
        ({"allItems": [{"name": 5}]}, "allItems[0].name", "Write the value in quotes"),
        ({"allItems": [{"name": ""}]}, "allItems[0].name", "Write 1 to 5 characters"),
        ({"allItems": [{"name": "a", "share": 10}]}, "allItems[0].share", "Allowed range: 1 to 9"),
        ({"allItems": [{"name": "a", "share": "3"}]}, "allItems[0].share", "Remove the quotes: 3"),
        ({"allItems": [{"name": "a", "share": "3.5"}]}, "allItems[0].share", "Allowed range: 1 to 9"),
        ({"allItems": [{"name": "a", "size": 0}]}, "allItems[0].size", "Smallest allowed value: 1"),
        ({"allItems": [{"name": "a", "weight": 5000}]}, "allItems[0].weight", "More than 0, at most 1000"),
        ({"allItems": [{"name": "a", "weight": "2.5"}]}, "allItems[0].weight", "Remove the quotes: 2.5"),
        (
            {"allItems": [{"name": "a", "mode": "plane"}]}, "allItems[0].mode",
            "Did you mean plain? Allowed values: plain, upstream",
        ),
        (
            {"byName": {"a": {"nam": "b"}}}, "byName[...].nam",
            "Did you mean name? Known: name, share, size, weight, mode",
        ),
        ({"point": [1]}, "point", "Write a list of 2 items"),
        ({"point": [1, "x"]}, "point[1]", "Write a number"),
        ({"enabled": "yes"}, "enabled", "Allowed values: true, false"),
        ({"enabled": "1"}, "enabled", "Allowed values: true, false"),
        ([], "", "Write an object"),
    ],
)  # fmt: skip
def test_remedy_names_field_and_correction(value: Any, field: str, remedy: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, _Document)
    assert field_of(caught.value) == field
    assert remedy_for(caught.value, _Document, value) == remedy
