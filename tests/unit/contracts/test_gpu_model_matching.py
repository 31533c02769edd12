import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.objects.cards import card_from_table, facts_of, model_matches, model_tokens, vendor_of


@pytest.mark.parametrize(
    ("term", "model"),
    [
        ("A100", "A100-SXM4-80GB"),
        ("a100", "NVIDIA-A100-PCIE-40GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA-A100-80GB-PCIe"),
        ("A100-80", "A100-SXM4-80GB"),
        ("V100M32", "Tesla-V100-SXM2-32GB"),
        ("V100-SXM2-16GB", "V100M16"),
        ("P100", "Tesla P100-PCIE-16GB"),
        ("P100", "P100"),
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("H100-SXM5-80GB", "NVIDIA-H100-80GB-HBM3"),
        ("Instinct MI300X", "AMD_Instinct_MI300X"),
        ("RTX 4090", "NVIDIA-GeForce-RTX-4090"),
        ("G1", "G1"),
        ("future-9000", "NVIDIA-Future-9000-Ti"),
    ],
)
def test_terms_that_match(term: str, model: str) -> None:
    assert model_matches(term, model)


@pytest.mark.parametrize(
    ("term", "model"),
    [
        ("A10", "A100-SXM4-80GB"),
        ("A100", "A10"),
        ("A100-80", "A100-SXM4-40GB"),
        ("A100-80", "NVIDIA-A100-80GB-PCIe"),
        ("V100M32", "V100M16"),
        ("A100-SXM4-80GB", "A100"),
        ("G1", "G2"),
        ("nvidia", "A100"),
        ("", "A100"),
        ("A100", ""),
    ],
)
def test_terms_that_do_not_match(term: str, model: str) -> None:
    assert not model_matches(term, model)


@pytest.mark.parametrize(
    ("model", "vendor"),
    [("A100-PCIE-40GB", "nvidia"), ("MI300X", "amd"), ("AMD something new", "amd"), ("Tesla X9", "nvidia"), ("X9", "")],
)
def test_vendors_follow_from_names(model: str, vendor: str) -> None:
    assert vendor_of(model) == vendor


def test_known_gpu_matches_the_name_of_its_driver() -> None:
    card = card_from_table(3, "V100M32")
    # Sold with 32768 MiB; the driver shows 32510.
    assert (card.index, card.model, card.memory_mib, card.cores) == (3, "V100M32", 32510, 5120)


def test_hidden_models_have_no_facts() -> None:
    card = card_from_table(0, "G2")
    assert (card.vendor, card.memory_mib, card.cores) == ("nvidia", None, None)
    assert facts_of("no such card") is None


@given(st.text(max_size=30), st.text(max_size=30))
def test_term_matches_a_model_by_prefix(term: str, rest: str) -> None:
    assert model_matches(term, f"{term}-{rest}") == bool(model_tokens(term))
