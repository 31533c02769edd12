"""Laws that hold for every string: closure, canonical text, match, and no unexpected exception."""

from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError
from hetsched.isa import SOURCES, Isa, label_value, match, parse
from hetsched.isa.arm import ARM
from hetsched.isa.codes import CODES
from hetsched.isa.riscv_closure import closure
from hetsched.isa.riscv_table import EXTENSIONS, PROFILES
from hetsched.isa.value import Source
from hetsched.isa.x86 import X86

# Names that are compatible in pairs on rv64: no conflicts, no other width, no lone vector length.
_PLAIN = sorted(
    name
    for name, row in EXTENSIONS.items()
    if (row["ratified"] or row.get("vendor"))
    and not row.get("conflicts")
    and "xlen" not in row
    and name not in ("i", "e", "g", "zce")
    and not name.startswith("zvl")
)
names = st.frozensets(st.sampled_from(_PLAIN), max_size=8)
widths = st.sampled_from([32, 64])


@st.composite
def riscv_strings(draw: st.DrawFn) -> str:
    chosen = draw(st.lists(st.sampled_from(_PLAIN), unique=True, max_size=8))
    profile = draw(st.sampled_from([None, None, *sorted(PROFILES)]))
    if profile is None:
        head = draw(st.sampled_from(["rv64i", "RV64I", "rv32i", "rv64i2p1"]))
    else:
        head = profile
        chosen = [name for name in chosen if name not in PROFILES[profile]["mandatory"]]
    return "_".join((head, *chosen))


@st.composite
def levelled_strings(draw: st.DrawFn) -> str:
    family = draw(st.sampled_from([X86, ARM]))
    features = draw(st.lists(st.sampled_from(sorted(set(family.features.values()))), unique=True, max_size=6))
    return "+".join((draw(st.sampled_from(sorted(family.spellings))), *features))


strings = st.one_of(riscv_strings(), levelled_strings())
isas = strings.map(parse)
# Few names that are parts of each other, so that one set often covers another.
related = st.frozensets(st.sampled_from(["a", "zaamo", "zalrsc", "c", "zca", "d", "f", "b", "zba", "zbb", "zbs"])).map(
    lambda chosen: parse("_".join(("rv64i", *sorted(chosen))))
)
anything = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="rv6432imafdcgbqhpsuxz_0123p+- \u212a", max_size=30).map(lambda tail: "rv64" + tail),
    st.tuples(strings, st.text(max_size=4)).map("".join),
)


@given(names, widths)
def test_closure_is_idempotent_and_extensive(chosen: frozenset[str], xlen: int) -> None:
    closed = closure(chosen, xlen)
    assert chosen <= closed
    assert closure(closed, xlen) == closed


@given(names, names, widths)
def test_closure_grows_with_its_argument(one: frozenset[str], more: frozenset[str], xlen: int) -> None:
    # c is named together with zca only while no d requires zcd too: the one exception, with zce.
    assert closure(one, xlen) - {"c", "zce"} <= closure(one | more, xlen)


@given(strings)
def test_canonical_text_is_idempotent_and_equivalent(text: str) -> None:
    isa = parse(text)
    again = parse(isa.canonical)
    assert (again.extensions, again.canonical, again.base, again.xlen) == (
        isa.extensions,
        isa.canonical,
        isa.base,
        isa.xlen,
    )


@given(strings)
def test_case_and_spaces_do_not_matter(text: str) -> None:
    assert parse(f" {text.upper()}\t").canonical == parse(text).canonical


@given(strings)
def test_label_form_is_equivalent(text: str) -> None:
    value = label_value(parse(text))
    if value is not None:
        assert parse(value).extensions == parse(text).extensions


@given(isas)
def test_every_set_covers_itself(isa: Isa) -> None:
    result = match(isa, isa)
    assert (result.satisfied, result.missing, result.affinity) == (True, (), 1.0)


@given(related, related, related)
def test_covering_is_transitive(isa: Isa, middle: Isa, other: Isa) -> None:
    # A profile has optional names, so as the middle link it may pass on less than it promises: none among these.
    if match(isa, middle).satisfied and match(middle, other).satisfied:
        assert match(isa, other).satisfied


@given(names, names)
def test_larger_extension_set_covers_a_subset(fewer: frozenset[str], more: frozenset[str]) -> None:
    small, large = ("_".join(("rv64i", *sorted(chosen))) for chosen in (fewer, fewer | more))
    missing = match(parse(small), parse(large)).missing
    assert set(missing) <= {"c", "zce"}


@given(names, names)
def test_adding_the_missing_items_satisfies_and_none_is_redundant(asked: frozenset[str], has: frozenset[str]) -> None:
    required = parse("_".join(("rv64i", *sorted(asked))))
    missing = set(match(required, parse("_".join(("rv64i", *sorted(has))))).missing)

    def satisfied(names: set[str]) -> bool:
        return match(required, parse("_".join(("rv64i", *sorted(names | has))))).satisfied

    if not (required.extensions & {"zca"}):
        assert satisfied(missing)
        assert not any(satisfied(missing - {name}) for name in missing)


@given(isas, isas)
def test_match_is_a_subset_and_mismatch_names_a_feature(required: Isa, offered: Isa) -> None:
    result = match(required, offered)
    if result.satisfied:
        assert required.needed <= offered.extensions
        assert result.affinity is not None
        assert 0 < result.affinity <= 1
    else:
        assert result.missing
        assert list(result.missing) == sorted(set(result.missing))
        assert result.affinity is None


@given(anything, st.sampled_from(SOURCES))
def test_any_text_is_read_or_refused_with_a_code(text: str, source: Source) -> None:
    answer = read(text, source)
    if isinstance(answer, InputError):
        assert answer.code in CODES
        assert answer.message
    else:
        assert parse(answer.canonical, source=source).extensions == answer.extensions


def read(text: str, source: Source) -> Isa | InputError:
    try:
        return parse(text, source=source)
    except InputError as error:
        return error
