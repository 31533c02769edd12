from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError


def test_error_text_has_one_line() -> None:
    error = InputError("QuantityNegative", "cpu may not be negative", place="spec.cpu", hint="Write 1")
    assert str(error) == "spec.cpu: cpu may not be negative [QuantityNegative]. Write 1"


def test_lower_case_hint_continues_the_sentence() -> None:
    """No sentence begins in lower case: the hint follows a full stop or, if it is no sentence, a semicolon."""
    asked = InputError("IsaUnknownExtension", "zbx is not a RISC-V extension", hint="did you mean zbb?")
    assert asked.advice == "zbx is not a RISC-V extension; did you mean zbb?"
    assert str(asked) == "zbx is not a RISC-V extension [IsaUnknownExtension]; did you mean zbb?"
    assert InputError("QuantityNegative", "it is negative", hint="Write 1").advice == "it is negative. Write 1"
    assert InputError("ManifestEmpty", "the manifest contains no objects").advice == "the manifest contains no objects"


def test_missing_place_and_hint_are_left_out() -> None:
    error = InputError("ManifestEmpty", "the manifest contains no objects")
    assert str(error) == "the manifest contains no objects [ManifestEmpty]"


@given(st.text(), st.text(), st.text(), st.text(), st.text())
def test_outer_path_keeps_message_and_hint(code: str, message: str, place: str, hint: str, outer: str) -> None:
    error = InputError(code, message, place=place, hint=hint).at(outer)
    assert (error.code, error.message, error.place, error.hint) == (code, message, outer + place, hint)
