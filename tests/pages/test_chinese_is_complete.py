"""Every string of the pages has a Chinese form, and the compiled catalogue matches its source.

Strings are collected as Django's own extraction does. The catalogue is compiled with gettext's program, which neither
setup nor CI has, so the compiled file is compared with the source.
"""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

from django.test import Client
from django.utils.translation.template import templatize

from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.models import Cluster

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "locale/zh_Hans/LC_MESSAGES"
TEMPLATES = [*(ROOT / "templates").rglob("*.html"), *ROOT.glob("hetsched/access/templates/**/*.html")]
MODULES = [*(ROOT / "web/pages").rglob("*.py"), ROOT / "hetsched/placement/lifecycle.py"]
SAME = {"AMX", "AVX", "AVX-512", "CPU", "GPU", "Kubelet", "NUMA", "Pod", "SSE", "SVE", "Web"}

_LITERAL = r"""(u?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))"""
CALL = re.compile(rf"\b(n?p?gettext|_)\(\s*{_LITERAL}(?:\s*,\s*{_LITERAL})?")

Key = tuple[str, str]  # context, text


def compiled() -> gettext.GNUTranslations:
    with (FOLDER / "django.mo").open("rb") as file:
        return gettext.GNUTranslations(file)


def translated(catalogue: gettext.GNUTranslations, context: str, text: str) -> str:
    """Return the Chinese form of a text; of a text with plurals its only plural form."""
    found = catalogue.pgettext(context, text) if context else catalogue.gettext(text)
    return catalogue.ngettext(text, text, 1) if found == text else found


def in_template(path: Path) -> Iterator[Key]:
    """Yield the strings of one template: templatize turns its tags into calls of gettext."""
    code = templatize(path.read_text(), origin=str(path))
    for function, first, second in CALL.findall(code):
        texts = [ast.literal_eval(literal) for literal in (first, second) if literal]
        yield (texts[0], texts[1]) if "pgettext" in function else ("", texts[0])


def in_module(path: Path) -> Iterator[Key]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if node.func.id in ("_", "gettext", "gettext_lazy"):
            yield "", texts[0]
        elif node.func.id in ("pgettext", "pgettext_lazy") and texts[1:]:
            yield texts[0], texts[1]


def wanted() -> set[Key]:
    found = {key for path in TEMPLATES for key in in_template(path)}
    return found | {key for path in MODULES for key in in_module(path)}


def test_strings_are_found_in_templates_and_modules() -> None:
    assert {("", "Latest decisions"), ("", "%(shown)s node"), ("", "Never fits"), ("three letters", "mem")} <= wanted()


def test_every_string_has_a_chinese_form() -> None:
    catalogue = compiled()
    missing = {
        text
        for context, text in wanted()
        if text not in SAME and translated(catalogue, context, text) == text and not re.fullmatch(r"[\W\d_]*", text)
    }
    assert missing == set()


def test_every_plugin_has_a_chinese_summary() -> None:
    catalogue = compiled()
    missing = {info.name for info in load_registry() if translated(catalogue, "", info.summary) == info.summary}
    assert missing == set()


def test_placeholders_survive_translation() -> None:
    holder = re.compile(r"%\(\w+\)[sdg]|%[sdg]|\{\w+\}")
    for _context, source, target in written():
        assert sorted(holder.findall(source)) == sorted(holder.findall(target)), source


def written() -> Iterator[tuple[str, str, str]]:
    """Yield (context, text, translation) of the source file, whose strings are on one line each."""
    for entry in (FOLDER / "django.po").read_text().split("\n\n")[1:]:
        fields = dict(re.findall(r'^(msgctxt|msgid|msgstr(?:\[0\])?) (".*")$', entry, re.MULTILINE))
        values = {name: ast.literal_eval(value) for name, value in fields.items()}
        yield values.get("msgctxt", ""), values["msgid"], values.get("msgstr") or values["msgstr[0]"]


def test_compiled_catalogue_equals_the_source() -> None:
    catalogue = compiled()
    source = {(context, text): target for context, text, target in written()}
    assert len(source) > 300
    for (context, text), target in source.items():
        assert translated(catalogue, context, text) == target, f"{text!r}: compile the catalogue again"


def test_browser_that_prefers_chinese_gets_chinese(viewer: Client, cluster: Cluster) -> None:
    page = viewer.get("/", headers={"accept-language": "zh-CN,zh;q=0.9"}).content.decode()
    assert '<html lang="zh-hans"' in page
    assert "最近决策" in page
    assert "Latest decisions" not in page
