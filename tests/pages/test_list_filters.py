"""Filters of lists match in linear time, and the same in Python, SQLite and PostgreSQL.

PostgreSQL is a private server. Not tested here: the fields of each list (`test_filter_expressions.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import ConnectionHandler, connection

from hetsched.contracts.api.decision import Reason
from hetsched.placement.models import Decision
from hetsched.storage.text_lookups import Wildcard, folded
from tests.builders import a_node
from tests.situations import a_cluster
from tests.system.databases import postgres
from web.pages.lists.kinds import ValueKind

LONG = "a" * 252 + "b"
TEXTS = (
    "", "a", "A", "ab", "aba", "abab", "a%b", "a_b", "axb", "a\\b", "a\\%b", "%", "_", "\\", "a*b", "ÄB", "äb", "ß",
    "SS", "I", "ı", "ſ", "K", "k", "x" * 253, "vf2-3", "VF2-30", 'quo"te', "new\nline", "a.b", "(a)", "[a]",
)  # fmt: skip
PATTERNS = (
    "*", "**", "a", "A*", "*b", "a*b", "a**b", "*a*b*", "ab*ab", "ab*b", "a%b", "a%*", "%", "*%*", "_", "a_b", "*_*",
    "\\", "a\\b", "*\\*", "\\%", "äb", "ÄB", "*ä*", "i", "k", "*k*", "s", "vf2-*", "a.b", "(a)", "[a]", "*\n*",
    '*"*', "*a*a*a*",
    "*" * 900 + "x",
)  # fmt: skip


def _least_seconds(call: Any, times: int = 3) -> float:
    """Return the processor time of the fastest of some calls; other load only makes it longer."""
    found = []
    for _ in range(times):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize(
    "pattern",
    ["*" * 999 + "x", "*a" * 499 + "x", "*ab" * 333, "a*" * 499 + "c", "*" + "a" * 120 + "*" + "a" * 132 + "x"],
)
def test_thousand_wildcards_match_in_linear_time(pattern: str) -> None:
    assert len(pattern) >= 250
    match = ValueKind().test("=", pattern)
    assert _least_seconds(lambda: [match(LONG) for _ in range(100)]) < 0.05


@pytest.mark.parametrize("pattern", ["*" * 990 + "x", "*a" * 495 + "x", "a*" * 495 + "c"])
@pytest.mark.parametrize("page", ["nodes", "workloads", "decisions", "audit"])
def test_thousand_wildcards_answer_in_linear_time(db: Any, browsing: Any, page: str, pattern: str) -> None:
    a_cluster(a_node("a" * 250 + "n.b"))
    client = browsing("viewer")
    field = {"audit": "object"}.get(page, "name")
    client.get(f"/{page}/", {"q": f"{field}=x"})  # templates are compiled once
    answer = client.get(f"/{page}/", {"q": f"{field}={pattern}"})
    calm = _least_seconds(lambda: client.get(f"/{page}/", {"q": f"{field}=x"}))
    assert answer.status_code == 200
    assert _least_seconds(lambda: client.get(f"/{page}/", {"q": f"{field}={pattern}"})) < calm + 0.05


def test_wildcards_in_python_match_as_a_simple_reference() -> None:
    for pattern in PATTERNS:
        # The reference is safe here, because the test defines the patterns and the texts are short.
        expression = ".*".join(re.escape(piece) for piece in re.sub(r"\*+", "*", folded(pattern)).split("*"))
        for text in TEXTS:
            expected = re.fullmatch(expression, folded(text), re.DOTALL) is not None
            assert Wildcard(pattern).matches(text) is expected, (pattern, text)


@pytest.mark.django_db
def test_sqlite_matches_as_python() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the tests run on another database")
    assert list(_differences(connection)) == []


@pytest.mark.django_db
@pytest.mark.needs("postgres")
def test_postgresql_matches_as_python() -> None:
    with postgres() as database:
        where = {"HOST": "127.0.0.1", "PORT": database.port, "NAME": database.name}
        where |= {"USER": "hetsched", "PASSWORD": "hetsched"}
        server = ConnectionHandler({"default": {"ENGINE": "django.db.backends.postgresql", **where}})["default"]
        try:
            assert list(_differences(server)) == []
        finally:
            server.close()


def _differences(database: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (lookup, pattern, text) for which a database and Python disagree."""
    tests = {
        "text_matches": lambda pattern: Wildcard(pattern).matches,
        "text_equals": lambda pattern: lambda text: folded(text) == folded(pattern),
        "text_contains": lambda pattern: ValueKind().test("~", pattern),
        "text_starts": lambda pattern: lambda text: folded(text).startswith(folded(pattern)),
    }
    column = Decision._meta.get_field("pod_name")
    with database.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE placement_decision (pod_name text, reasons " + _json(database) + ")")
        for text in TEXTS:
            words = [text, Decision._meta.get_field("reasons").get_db_prep_value((_reason(text),), database)]
            cursor.execute("INSERT INTO placement_decision VALUES (%s, %s)", words)
        for name, test in [*tests.items(), ("codes_match", tests["text_matches"])]:
            path = "reasons" if name == "codes_match" else column.name
            for pattern in PATTERNS:
                rows = Decision.objects.filter(**{f"{path}__{name}": pattern}).values_list("pod_name").order_by()
                cursor.execute(*rows.query.get_compiler(connection=database).as_sql())
                found = {text for (text,) in cursor.fetchall()}
                yield from ((name, pattern, text) for text in TEXTS if (text in found) != test(pattern)(text))


def _json(database: Any) -> str:
    return "jsonb" if database.vendor == "postgresql" else "text"


def _reason(code: str) -> Reason:
    return Reason(code=code, plugin="p", nodes=1, message="m")


def test_no_user_text_becomes_a_regular_expression() -> None:
    root = Path(__file__).resolve().parents[2]
    sources = [path for folder in ("hetsched", "web", "workers") for path in (root / folder).rglob("*.py")]
    assert [str(path) for path in sources if re.search(r"__i?regex\b", path.read_text())] == []
