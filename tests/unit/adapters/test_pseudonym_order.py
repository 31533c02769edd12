"""Pseudonyms: unique, in the order of the names, and different from names that stay."""

from hypothesis import given
from hypothesis import strategies as st

from hetsched.adapters.anonymising.pseudonyms import Pseudonyms, Realm
from hetsched.adapters.objects.fields import is_label_value

PLAIN = Realm("node-")
WORDS = Realm("alias-", accepts=lambda _, pseudonym: is_label_value(pseudonym))
NAMES = st.sets(st.from_regex(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,6}[A-Za-z0-9]", fullmatch=True), max_size=20)


def pseudonyms_of(names: set[str], realm: Realm = PLAIN, *, staying: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the pseudonyms of these names."""
    pseudonyms = Pseudonyms()
    for name in names:
        pseudonyms.of(realm, name, stays=name in staying)
    pseudonyms.settle()
    return {name: pseudonyms.of(realm, name, stays=name in staying) for name in names}


def test_names_are_numbered_in_their_order() -> None:
    assert pseudonyms_of({"zeus", "acme-1", "acme"}) == {
        "acme": "node-0001",
        "acme-1": "node-0002",
        "zeus": "node-0003",
    }


def test_pseudonym_numbers_grow_with_the_number_of_names() -> None:
    found = pseudonyms_of({f"n{number:05}" for number in range(10_000)})
    assert (found["n00000"], found["n09999"]) == ("node-00001", "node-10000")


def test_pseudonym_between_two_kept_names_sorts_between_them() -> None:
    found = pseudonyms_of({"false", "gold", "true", "yard"}, WORDS, staying=frozenset({"false", "true"}))
    assert found == {"false": "false", "gold": "g-alias-0001", "true": "true", "yard": "u-alias-0002"}


def test_empty_name_has_no_pseudonym() -> None:
    assert pseudonyms_of({"", "a"}) == {"": "", "a": "node-0001"}


@given(NAMES)
def test_order_is_preserved(names: set[str]) -> None:
    found = pseudonyms_of(names)
    assert sorted(names, key=found.__getitem__) == sorted(names)
    assert len(set(found.values())) == len(names)


@given(NAMES, st.sets(st.sampled_from(["5", "false", "kata", "m", "true"])))
def test_order_is_kept_around_unchanged_names(names: set[str], staying: set[str]) -> None:
    found = pseudonyms_of(names | staying, WORDS, staying=frozenset(staying))
    assert sorted(found, key=found.__getitem__) == sorted(found)
    assert len(set(found.values())) == len(found)
    assert all(is_label_value(pseudonym) for pseudonym in found.values())


@given(NAMES)
def test_pseudonyms_depend_only_on_the_order_of_names(names: set[str]) -> None:
    others = {f"x{place:04}": name for place, name in enumerate(sorted(names))}
    found, same = pseudonyms_of(names), pseudonyms_of(set(others))
    assert {others[name]: pseudonym for name, pseudonym in same.items()} == found
