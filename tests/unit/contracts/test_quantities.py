from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError
from hetsched.contracts.units import INT64_MAX, format_amount, parse_amount, parse_quantity

FACTORS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
}  # fmt: skip
RESOURCES = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "nvidia.com/gpu")


@pytest.mark.parametrize(
    ("resource", "quantity", "amount"),
    [
        ("cpu", "500m", 500),
        ("cpu", "2", 2000),
        ("cpu", 2, 2000),
        ("cpu", 0.1, 100),
        ("cpu", "1.5", 1500),
        ("cpu", ".5", 500),
        ("cpu", "2.", 2000),
        ("cpu", "+1", 1000),
        # 100u = 0.1 millicores, rounded up.
        ("cpu", "100u", 1),
        ("cpu", "1e3", 1_000_000),
        ("cpu", "0", 0),
        ("memory", "1Gi", 2**30),
        ("memory", "1G", 10**9),
        ("memory", "1.5Ki", 1536),
        # 1 byte and a tenth, rounded up.
        ("memory", "1100m", 2),
        ("memory", "1E3", 1000),
        ("memory", "12e6", 12_000_000),
        ("pods", "110", 110),
        ("nvidia.com/gpu", "8", 8),
        ("hetsched.io/network-mbps", "1k", 1000),
    ],
)
def test_quantities_become_base_units(resource: str, quantity: object, amount: int) -> None:
    assert parse_amount(resource, quantity) == amount


@pytest.mark.parametrize(
    ("resource", "quantity", "code"),
    [
        ("cpu", "", "QuantityMalformed"),
        ("cpu", "1 ", "QuantityMalformed"),
        ("cpu", "abc", "QuantityMalformed"),
        ("cpu", "1mm", "QuantityMalformed"),
        ("cpu", "1K", "QuantityMalformed"),
        ("cpu", "0x10", "QuantityMalformed"),
        ("cpu", "1e", "QuantityMalformed"),
        ("cpu", "\u0661", "QuantityMalformed"),
        ("cpu", "9" * 65, "QuantityMalformed"),
        ("cpu", float("nan"), "QuantityMalformed"),
        ("cpu", float("inf"), "QuantityMalformed"),
        ("cpu", True, "QuantityMalformed"),
        ("cpu", None, "QuantityMalformed"),
        ("cpu", ["1"], "QuantityMalformed"),
        ("cpu", "-1", "QuantityNegative"),
        ("memory", -1, "QuantityNegative"),
        ("memory", "1e300", "QuantityTooLarge"),
        ("cpu", "9e18", "QuantityTooLarge"),
        ("nvidia.com/gpu", "0.5", "QuantityNotInteger"),
        ("nvidia.com/gpu", "500m", "QuantityNotInteger"),
    ],
)
def test_wrong_quantities_have_a_code(resource: str, quantity: object, code: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_amount(resource, quantity)
    assert refused.value.code == code


def test_long_decimals_are_exact() -> None:
    # 31 significant digits: one part in 10^30 above 1 byte still needs a second byte.
    assert parse_amount("memory", "1." + "0" * 29 + "1") == 2


@given(st.integers(0, 10**12), st.integers(0, 999), st.sampled_from(sorted(FACTORS)))
def test_quantities_equal_their_fraction_rounded_up(whole: int, thousandths: int, suffix: str) -> None:
    text = f"{whole}.{thousandths:03d}{suffix}"
    exact = (whole + Fraction(thousandths, 1000)) * FACTORS[suffix]
    if exact > INT64_MAX // 1000:
        with pytest.raises(InputError):
            parse_quantity(text)
    else:
        assert parse_amount("memory", text) == -(-exact.numerator // exact.denominator)
        assert Fraction(parse_quantity(text)) == exact


@given(st.sampled_from(RESOURCES), st.integers(0, INT64_MAX // 1000))
def test_formatted_amount_round_trips(resource: str, amount: int) -> None:
    assert parse_amount(resource, format_amount(resource, amount)) == amount


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        assert 0 <= parse_amount("memory", text) <= INT64_MAX
