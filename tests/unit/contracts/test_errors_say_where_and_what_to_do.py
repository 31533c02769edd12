from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError


def test_an_error_reads_as_one_line() -> None:
    error = InputError("QuantityNegative", "cpu may not be negative", place="spec.cpu", hint="Write 1")
    assert str(error) == "spec.cpu: cpu may not be negative [QuantityNegative]. Write 1"


def test_place_and_hint_are_left_out_where_there_are_none() -> None:
    assert str(InputError("ManifestEmpty", "there is no object in it")) == "there is no object in it [ManifestEmpty]"


@given(st.text(), st.text(), st.text(), st.text(), st.text())
def test_a_place_seen_from_further_out_keeps_everything_else(
    code: str, message: str, place: str, hint: str, outer: str
) -> None:
    error = InputError(code, message, place=place, hint=hint).at(outer)
    assert (error.code, error.message, error.place, error.hint) == (code, message, outer + place, hint)
