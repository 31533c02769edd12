"""Every error message and hint that a page can show has a Chinese form.

The templates are collected from the source; each is translated once with words and once with numbers. Messages of the
command line and of programs without a page are excepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from django.utils import translation

from hetsched.contracts.message import Message
from tests.pages.worded import HOLE, QUOTED, Worded, worded
from web.translation import translate

ROOT = Path(__file__).resolve().parents[2]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
HOLES = re.compile(f"([{HOLE}{QUOTED}])")
MOST_HOLES = 5
# Modules whose errors only programs and terminals meet.
NO_PAGE = (
    "hetsched/adapters/http/certificates.py",  # created by a command
    "hetsched/adapters/files.py",  # files of a terminal
    "hetsched/adapters/kubernetes/extender_messages.py",  # another scheduler
    "hetsched/adapters/oci/layout.py",  # images of a terminal
    "hetsched/adapters/traces/openb.py",  # traces of the lab
    "hetsched/adapters/traces/openb_results.py",
    "hetsched/agent/",
    "hetsched/cli/",
    "hetsched/client/",
    "hetsched/inventory/agent_messages.py",  # agents
    "hetsched/agent/isa/emulation.py",
    "hetsched/storage/backup.py",  # backups
    "hetsched/lab/",
    "hetsched/project/",
    "web/api/clusters/agent.py",
    "web/api/monitoring/prometheus.py",
    "web/api/clusters/agent_authentication.py",
    "web/live/",  # scripts, on their socket
    "hetsched/scheduling/extender/",
)
# Errors of a faulty script, and the beginnings of messages whose rest has its own pattern.
NOT_MET = {
    "Topics: cluster:<name>, watch:<name>, node:<name>, decisions, workload:<id>, policies, goldens, plans",
}


@pytest.fixture(autouse=True)
def chinese() -> Iterator[None]:
    with translation.override("zh-hans"):
        yield


def sources() -> Iterator[Path]:
    for folder in ("hetsched", "web", "workers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(NO_PAGE):
                yield path


@cache
def found_in_source() -> set[Worded]:
    return worded(sources())


def is_translated(template: str) -> bool:
    """Return whether a template is translated, with words and with numbers as parameters."""
    parts = HOLES.split(template)
    holes = parts[1::2]
    for values in product(("n1", "3"), repeat=min(len(holes), MOST_HOLES)):
        filled = [*values, *["n1"] * (len(holes) - len(values))]
        parts[1::2] = [repr(value) if hole == QUOTED else value for hole, value in zip(holes, filled, strict=True)]
        if CHINESE.search(translate("".join(parts))):
            return True
    return False


def test_every_error_of_a_page_has_a_chinese_form() -> None:
    found = found_in_source()
    assert len(found) > 100
    silent = {
        f"{one.path.relative_to(ROOT)}:{one.line}: {one.template.replace(HOLE, '{}').replace(QUOTED, '{!r}')}"
        for one in found
        if re.search("[a-z]{2}", one.template) and one.template not in NOT_MET and not is_translated(one.template)
    }
    assert silent == set()


def test_excepted_strings_exist() -> None:
    assert [path for path in NO_PAGE if not (ROOT / path).exists()] == []
    assert NOT_MET - {one.template for one in found_in_source()} == set()


@pytest.mark.parametrize(
    ("english", "said"),
    [
        # A field before the message is kept.
        ("spec.containers[0].image: must be text, it is 3", "spec.containers[0].image：必须是文本，现为 3"),
        # A message with its hint, as the one text of a misconfigured pod contains them.
        (
            "'rv99' is no instruction set known here; write a RISC-V string or profile (rv64gc, rva22u64), amd64 or "
            "x86-64-v1 to v4, arm64 or armv8.2-a",
            "'rv99' 不是已知的指令集；请写 RISC-V 字符串或 Profile（rv64gc、rva22u64）、amd64 或 "
            "x86-64-v1 至 v4、arm64 或 armv8.2-a",
        ),
        ("pods: is something that nobody ever said", "pods: is something that nobody ever said"),
        (
            Message(
                "{resource}: {asked} requested, {held} in use, the quota of this token is {most}",
                resource="cpu",
                asked="20",
                held="50",
                most="64",
            ),
            "请求 20 的 cpu，已占用 50，而此令牌的配额为 64",
        ),
        (
            "no hold was created: 1 of 2 pods fit",
            "没有预留任何内容：2 个 Pod 中有 1 个放得下",
        ),
    ],
    ids=["field", "hint", "unknown", "quota", "hold"],
)
def test_error_is_translated(english: str, said: str) -> None:
    assert translate(english) == said
