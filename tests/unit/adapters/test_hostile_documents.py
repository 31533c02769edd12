from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.plain_values import MAX_DEPTH
from hetsched.contracts.errors import InputError

HEAD = "apiVersion: v1\nkind: X\n"


def refusal(text: str | bytes, name: str = "f.yaml", **limits: int) -> InputError:
    with pytest.raises(InputError) as refused:
        load_documents(text if isinstance(text, bytes) else text.encode(), name=name, **limits)
    return refused.value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: &x 1\n", "YamlAliasRefused"),
        ("a: *x\n", "YamlAliasRefused"),
        ("a: &x [1]\n", "YamlAliasRefused"),
        ("&x a: 1\n", "YamlAliasRefused"),
        ("<<: {a: 1}\n", "YamlAliasRefused"),
        ("a: !!python/object/apply:os.system [ls]\n", "YamlTagRefused"),
        ("a: !secret x\n", "YamlTagRefused"),
        ("a: !!binary aGk=\n", "YamlTagRefused"),
        ("a: 1\na: 2\n", "ManifestDuplicateKey"),
        ("a: {b: 1, b: 2}\n", "ManifestDuplicateKey"),
        ("a: .nan\n", "NumberNotFinite"),
        ("a: -.inf\n", "NumberNotFinite"),
        ("a: 1e999\n", "NumberNotFinite"),
        ("? [a]\n: b\n", "ManifestMalformed"),
        ("a: b: c\n", "ManifestMalformed"),
        ("a: [1\n", "ManifestMalformed"),
        ("a: \x01\n", "ManifestMalformed"),
        ("a: \x00\n", "ManifestMalformed"),
        ('a: "\\0"\n', "TextHasNul"),
        ('"\\0": 1\n', "TextHasNul"),
    ],
)
def test_yaml(text: str, code: str) -> None:
    assert refusal(HEAD + text).code == code


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ('"a": NaN', "NumberNotFinite"),
        ('"a": -Infinity', "NumberNotFinite"),
        ('"a": 1e999', "NumberNotFinite"),
        ('"a": ' + "9" * 5000, "NumberTooLarge"),
        ('"a": "\\u0000"', "TextHasNul"),
        ('"\\u0000": 1', "TextHasNul"),
        ('"a": "\\ud800"', "TextHasSurrogate"),
        ('"a": ["\\udfff"]', "TextHasSurrogate"),
        ('"kind": "Y"', "ManifestDuplicateKey"),
        ('"a": 1,', "ManifestMalformed"),
    ],
)
def test_json(member: str, code: str) -> None:
    assert refusal('{"apiVersion": "v1", "kind": "X", ' + member + "}", "f.json").code == code


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "[" * 33 + "]" * 33, HEAD + "a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH,
     "".join(f"{'  ' * level}a:\n" for level in range(40))],
)  # fmt: skip
@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_deep_nesting_is_refused_before_anything_else(text: str, name: str) -> None:
    assert refusal(text, name).code in ("ManifestTooDeep", "ManifestMalformed")


def test_maximum_nesting_depth_is_read() -> None:
    # The object itself is one level, so MAX_DEPTH - 1 lists fit in it.
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    for text in (HEAD + f"a: {inner}\n", f'{{"apiVersion": "v1", "kind": "X", "a": {inner}}}'):
        (document,) = load_documents(text.encode(), name="f")
        assert str(document.object["a"]) == inner


def test_yaml_bomb_is_rejected_at_its_first_anchor() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
    )
    assert refusal(HEAD + bomb).place == "f.yaml#1 line 3"


def test_size_is_capped() -> None:
    assert refusal(HEAD + "#" * 200, max_bytes=100).code == "ManifestTooLarge"


@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_number_of_values_is_limited(name: str) -> None:
    text = '{"apiVersion": "v1", "kind": "X", "a": [' + "1," * 50 + "1]}"
    assert load_documents(text.encode(), name=name, max_nodes=60)
    assert refusal(text, name, max_nodes=50).code == "ManifestTooLarge"


def test_size_of_one_object_is_limited() -> None:
    text = '{"apiVersion": "v1", "kind": "X", "a": [' + "1," * 100_000 + "1]}"
    assert refusal(text, "f.json").code == "ObjectTooLarge"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a: \xed\xa0\x80", "kind: X".encode("utf-16")])
def test_only_utf_8_is_read(data: bytes) -> None:
    assert refusal(data).code == "ManifestNotUtf8"


@pytest.mark.parametrize("text", ["", "# only words\n", "---\n---\n", " \n"])
def test_file_without_objects_is_rejected(text: str) -> None:
    assert refusal(text).code == "ManifestEmpty"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(InputError):
        assert isinstance(load_documents(data, name="f"), list)


@given(st.text(alphabet="{}[]:,&*!-? '\"\n#ab1", max_size=60))
def test_any_yaml_looking_text_is_read_or_refused(text: str) -> None:
    try:
        found = load_documents((HEAD + text).encode(), name="f")
    except InputError as error:
        found, place = [], error.place
    else:
        place = found[0].file
    assert place.startswith("f")
