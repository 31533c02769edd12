"""The mutation check: which changes it makes, that they act in loaded code, and which of them tests notice."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mutations import run
from tests.mutations.live_code import replace_code
from tests.mutations.plugin import fork, read_lines
from tests.mutations.points import PROBE_MODULE, mutations, with_probes

ROOT = Path(__file__).resolve().parents[3]


def changed(body: str) -> list[str]:
    """Return the body of a function in each of its mutations."""
    head = "def f(a, b):\n    "
    source = (head + body).encode()
    return [mutation.apply(source).decode().removeprefix(head) for mutation in mutations("m.py", source)]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("yield a < b", ["yield (a <= b)"]),
        ("g(a < b)", ["pass", "g((a <= b))"]),
        ("return a", ["return None"]),
        ("return None", []),
        ("a = b + 1", ["a = (b - 1)", "a = b + (2)", "a = b + (0)"]),
        ("a.x = b", ["pass"]),
        ("a += b", ["pass"]),
        ("a = b and not a", ["a = (b or not a)", "a = b and (a)"]),
        ("a = b not in a", ["a = (b in a)"]),
        ("a = min(b)", ["a = (max)(b)"]),
        ("a = g(b, x=True)", ["a = g(b, x=(False))"]),
        ("while a: break", ["while (not a): break", "while a: continue"]),
        ("for a in b: continue", ["for a in b: break"]),
        ("raise a", ["pass"]),
        ("log.info(a + b)", []),
        ("a = f'{b + 1}'", []),
        ("a: 'int | 1' = b", []),
    ],
)
def test_changes_of_a_statement(body: str, wanted: list[str]) -> None:
    assert changed(body) == wanted


def test_code_that_runs_at_import_stays() -> None:
    source = b"LIMIT = 1\ndef f(a=LIMIT + 1): pass\nclass C:\n    x = not LIMIT\n    def m(self): return self.x\n"
    assert [(mutation.function, mutation.line, mutation.kind) for mutation in mutations("m.py", source)] == [
        ("m", 5, "return None")
    ]


def test_every_mutation_of_the_checked_modules_compiles() -> None:
    for file in ("hetsched/engine/framework/cycle.py", "hetsched/storage/bulk_rows.py"):
        source = (ROOT / file).read_bytes()
        found = list(mutations(file, source))
        assert len(found) > 50
        for mutation in found:
            compile(mutation.apply(source), file, "exec")


def test_smaller_choice_is_the_start_of_a_larger_one() -> None:
    few, many = (run.choose(ROOT, ["hetsched/storage"], number, 7) for number in (3, 9))
    assert few == many[:3]
    assert len(set(many)) == 9
    assert run.choose(ROOT, ["hetsched/storage"], 9, 8) != many


def test_probes_report_their_place_and_keep_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    source = b"def f(a, b):\n    if (c := a) and b:\n        return [c + one for one in b]\n    g = 0\n    return g\n"
    reached: list[int] = []
    monkeypatch.setitem(sys.modules, PROBE_MODULE, SimpleNamespace(reached=reached.append))
    numbered = list(enumerate(mutations("m.py", source)))
    space: dict[str, object] = {}
    exec(with_probes(source, numbered), space)
    f = space["f"]
    assert callable(f)
    assert f(2, [1, 3]) == [3, 5]
    kinds = [(mutation.line, mutation.kind) for number, mutation in numbered if number in reached]
    assert kinds == [(2, "and/or"), (3, "return None"), (3, "operator")]
    assert f(2, []) == 0


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one module and its tests, which reach two of three functions and check one."""
    (tmp_path / "amounts_module.py").write_text(
        "from functools import cache\n"
        "@cache\ndef doubled(n):\n    return n * 2\n"
        "def half(n):\n    return n / 2\n"
        "def unused(n):\n    return n - n\n"
        "class Amount:\n    @property\n    def one(self):\n        return half(doubled(1))\n"
    )
    (tmp_path / "test_amounts.py").write_text(
        "import amounts_module\n"
        "def test_doubled():\n    assert amounts_module.doubled(4) == 8\n"
        "def test_half():\n    amounts_module.half(4)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amounts_module", raising=False)
    return tmp_path


def test_replaced_code_runs_through_references_and_decorators(tree: Path) -> None:
    module = importlib.import_module("amounts_module")
    half, amount = module.half, module.Amount()
    source = (tree / "amounts_module.py").read_bytes()
    replace_code(tree, "amounts_module.py", source.replace(b"n / 2", b"n + 7").replace(b"n * 2", b"n * 3"))
    assert (half(1), module.doubled(5), amount.one) == (8, 15, 10)


def test_fork_returns_the_exit_code_and_ends_at_its_limit() -> None:
    assert fork(lambda: None, 30) == 0
    assert fork(lambda: time.sleep(60), 0.2) is None


def test_results_say_which_mutations_tests_notice(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tree / "results"
    options = ["amounts_module.py", "--tree", str(tree), "--tests", "test_amounts.py", "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["run", *options])
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    assert run.main() == 0
    lines = read_lines(results / "results.jsonl")
    assert {(line["line"], line["outcome"]) for line in lines} == {
        (4, "caught"), (6, "survived"), (8, "not reached"), (12, "not reached")
    }  # fmt: skip
    assert {line["by"] for line in lines if line["outcome"] == "caught"} == {"test_amounts.py::test_doubled"}
    assert run.main() == 0
    assert read_lines(results / "results.jsonl") == lines  # complete results are not computed again
