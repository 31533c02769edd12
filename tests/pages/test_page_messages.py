"""Errors that a page can show are messages: no text is composed without a template, and each template has Chinese."""

from __future__ import annotations

import gettext
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.pages.message_texts import HOLE, Worded, worded
from web.api.problems import LISTS

ROOT = Path(__file__).resolve().parents[2]
# Texts that only a terminal or a program shows.
NO_PAGE = (
    "hetsched/adapters/http/certificates.py",
    "hetsched/adapters/files.py",
    "hetsched/adapters/kubernetes/extender_messages.py",
    "hetsched/adapters/look/",
    "hetsched/adapters/oci/layout.py",
    "hetsched/adapters/traces/openb.py",
    "hetsched/adapters/traces/openb_results.py",
    "hetsched/agent/",
    "hetsched/cli/",
    "hetsched/client/",
    "hetsched/inventory/agent_messages.py",
    "hetsched/agent/isa/emulation.py",
    "hetsched/storage/backup.py",
    "hetsched/lab/",
    "hetsched/project/",
    "hetsched/scheduling/extender/",
    "web/api/clusters/agent.py",
    "web/api/clusters/agent_authentication.py",
    "web/api/monitoring/prometheus.py",
    "web/live/",
)


def sources() -> Iterator[Path]:
    for folder in ("hetsched", "web", "workers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(NO_PAGE):
                yield path


@cache
def texts() -> set[Worded]:
    return worded(sources())


def placed(found: set[Worded]) -> set[str]:
    return {f"{one.path.relative_to(ROOT)}:{one.line}: {one.template.replace(HOLE, '{}')}" for one in found}


def test_no_message_is_composed_without_a_template() -> None:
    assert placed({text for text in texts() if HOLE in text.template}) == set()


def test_every_message_of_a_page_has_a_chinese_form() -> None:
    with (ROOT / "locale/zh_Hans/LC_MESSAGES/django.mo").open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    assert len(texts()) > 300
    unknown = {text for text in texts() if catalogue.pgettext("message", text.template) == text.template}
    assert placed(unknown) == set()
    assert {kind for kind in LISTS if catalogue.pgettext("message", kind) == kind} == set()


def test_excepted_modules_exist() -> None:
    assert [path for path in NO_PAGE if not (ROOT / path).exists()] == []


def test_composed_texts_are_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'raise InputError("A", f"no {x} here")\n'
        'raise InputError("B", "no " + x)\n'
        'raise InputError("C", "no %s here" % x)\n'
        'raise InputError("D", Message("no {x} at all", x=x), hint="write one")\n'
    )
    found = {one.template for one in worded([module])}
    assert {text for text in found if HOLE not in text} == {"no {x} at all", "write one"}
    assert len(found) == 5
