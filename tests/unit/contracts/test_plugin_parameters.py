from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError
from hetsched.contracts.params import Params, check_params, default_params, params_schema

Point = tuple[Annotated[float, msgspec.Meta(ge=0, le=100)], float]


class Curve(Params, frozen=True):
    shape: tuple[Point, ...] = ((0.0, 0.0), (100.0, 10.0))
    strength: Annotated[int, msgspec.Meta(ge=1, le=9, title="Strength")] = 5
    form: Annotated[Literal["mean", "product"], msgspec.Meta(title="Form")] = "mean"


def test_absent_parameters_have_their_defaults() -> None:
    assert check_params(Curve, {}, plugin="curve") == Curve()
    assert default_params(Curve) == {"shape": ((0.0, 0.0), (100.0, 10.0)), "strength": 5, "form": "mean"}


def test_given_parameters_are_converted() -> None:
    assert check_params(Curve, {"shape": [[0, 1]], "strength": 9}, plugin="curve") == Curve(((0.0, 1.0),), 9)


@pytest.mark.parametrize(
    "values",
    [
        {"strength": 0},
        {"strength": 10},
        {"strength": "5"},
        {"strength": True},
        {"strenght": 5},
        {"shape": [[0]]},
        {"shape": [[101, 1]]},
        {"shape": [[0, float("nan")]]},
        {"shape": [[0, float("inf")]]},
    ],
)
def test_wrong_parameters_name_the_plugin(values: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        check_params(Curve, values, plugin="curve")
    assert refused.value.code == "PolicyParamInvalid"
    assert "curve" in refused.value.message


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"form": "sum"}, "Allowed values: mean, product"),
        ({"strenght": 5}, "Did you mean strength? Known: shape, strength, form"),
    ],
)
def test_hint_lists_the_valid_values(values: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError) as refused:
        check_params(Curve, values, plugin="curve")
    assert refused.value.hint == hint


def test_schema_has_titles_bounds_and_defaults() -> None:
    strength = params_schema(Curve)["properties"]["strength"]
    assert strength == {"type": "integer", "minimum": 1, "maximum": 9, "title": "Strength", "default": 5}
    assert params_schema(Curve)["additionalProperties"] is False


@given(st.integers(1, 9), st.lists(st.tuples(st.floats(0, 100), st.floats(-1e9, 1e9)), max_size=5))
def test_checked_parameters_survive_plain_json(strength: int, shape: list[tuple[float, float]]) -> None:
    checked = check_params(Curve, {"strength": strength, "shape": [list(point) for point in shape]}, plugin="curve")
    assert check_params(Curve, msgspec.json.decode(msgspec.json.encode(checked)), plugin="curve") == checked
