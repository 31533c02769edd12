"""Measures of the layout: modules in a folder, modules named by a gerund, import cycles of the
engine, transactions outside the write lock, private internals of Django, and statements that skip its compiler.

The limit `MOST_HOT_STATEMENTS` only ever falls.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, Manager, Model, QuerySet
from django.db.models.deletion import Collector
from django.db.models.options import Options
from django.db.models.sql import Query
from django.http import HttpRequest, HttpResponse

from hetsched.engine.framework.registry import load_registry

ROOT = Path(__file__).parents[3]
MOST_MODULES = 25
HOT_STATEMENTS = "hetsched/storage/hot_statements.py"
MOST_HOT_STATEMENTS = 15
PREPARED = {"PreparedQuery", "PreparedUpdate"}
_CLASS = re.compile(r"^ *class (\w+)[(:\[]", re.MULTILINE)
DJANGO = (BaseDatabaseWrapper, Collector, Field, HttpRequest, HttpResponse, Manager, Model, Options, Query, QuerySet)
# Gerunds that are terms of the field stay: binding, scoring, routing, tipping points, queueing hints.
TERMS = {"binding", "matching", "packing", "clustering", "pending", "queueing", "routing", "scheduling"} | {
    "scoring", "sharing", "spelling", "terminating", "tipping", "training", "waiting"
}  # fmt: skip
# Classes of one name that hold the same kind of thing in two layers, or whose name is given from outside.
SHARED_CLASS_NAMES = {
    "Command", "Meta",  # of Django
    "Eviction", "Policy", "Preemption",  # a row, and its value or plugin in the engine
    "Document", "Problem", "Readiness", "Request",  # of two interfaces
    "Attempt", "CardFacts", "Devices", "Gang", "Goal", "PluginInfo",  # of engine or contracts, and of REST
}  # fmt: skip
# Plugins with the name of a field or table; such a name counts where it is compared with a plugin's, or is a source.
FIELD_NAMES = {"devices", "gang", "power", "preemption", "quota", "taints", "volumes"}
SOURCES = {"PluginUse", "Reason", "WaitsFor", "_wait", "for_anything"}
BUILTIN_POLICIES = "hetsched/engine/framework/builtin_policies.py"
# The client repeats the bodies of REST, which it can read without Django.
CLIENT_DOCUMENTS = "hetsched/client/documents.py"


def modules() -> list[Path]:
    """Return the modules of the product, relative to the root, without migrations."""
    found = [path for package in ("hetsched", "web", "workers") for path in (ROOT / package).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in found if not {"migrations", "assets"} & set(path.parts))


def test_no_folder_grows_beyond_its_limit() -> None:
    sizes = Counter(str(path.parent) for path in modules())
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_class_names_are_unique() -> None:
    """A name that two modules use for different things sends a reader to the wrong one."""
    places: dict[str, list[str]] = {}
    for path in modules():
        if str(path) != CLIENT_DOCUMENTS:
            for name in _CLASS.findall((ROOT / path).read_text()):
                places.setdefault(name, []).append(str(path))
    repeated = {name: found for name, found in places.items() if len(found) > 1 and name not in SHARED_CLASS_NAMES}
    assert (len(places) > 0, repeated) == (True, {})


def test_no_file_contains_merge_conflicts() -> None:
    marked = re.compile(rb"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)
    folders = ("hetsched", "web", "workers", "tests", "templates", "static", "docs", "deploy", "locale")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert [str(path.relative_to(ROOT)) for path in files if marked.search(path.read_bytes())] == []


def test_modules_are_not_named_by_gerunds() -> None:
    assert [str(path) for path in modules() if _has_gerund(path.stem)] == []


def test_transactions_that_write_take_the_write_lock() -> None:
    """SQLite's writers enter in order only where every one of them uses `storage.write_lock.write_transaction`."""
    outside = [path for path in modules() if path.parts[:2] != ("hetsched", "storage")]
    assert [str(path) for path in outside if "transaction.atomic" in (ROOT / path).read_text()] == []


def test_no_module_uses_private_django_internals() -> None:
    """Private names of querysets, queries, models, fields, requests and connections change without notice.

    `_meta`, `_state` and `_fields` of named tuples are documented; `prepared_queries` compiles statements of the ORM.
    """
    private = {name for owner in DJANGO for name in _private_names(owner)} - {"_fields", "_meta", "_state"}
    allowed = {("hetsched/storage/prepared_queries.py", "_iterable_class")}
    found = {(str(path), name) for path in modules() for name in _read_of_others(path) & private}
    assert found - allowed == set()


def test_hot_statements_are_few_and_in_one_module() -> None:
    """A new statement that skips the ORM's compiler is measured first, and takes the place of another one."""
    found: dict[str, int] = {}
    for path in modules():
        source = (ROOT / path).read_text()
        tree = ast.walk(ast.parse(source)) if any(name in source for name in PREPARED) else ()
        calls = [ast.unparse(node.func).rpartition(".")[2] for node in tree if isinstance(node, ast.Call)]
        found[str(path)] = sum(name in PREPARED for name in calls)
    few = found.pop(HOT_STATEMENTS)
    assert {path: number for path, number in found.items() if number} == {}
    assert 0 < few <= MOST_HOT_STATEMENTS


def test_each_hot_statement_is_documented() -> None:
    """A docstring below each statement says when it runs and what it returns."""
    body = ast.parse((ROOT / HOT_STATEMENTS).read_text()).body
    undocumented = [
        ast.unparse(node).partition("\n")[0]
        for node, after in zip(body, [*body[1:], None], strict=True)
        if isinstance(node, ast.Assign) and any(f"{name}(" in ast.unparse(node.value) for name in PREPARED)
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]
    assert undocumented == []


def _private_names(owner: type) -> set[str]:
    """Return the private attributes of a class and those that its methods set."""
    named = {name for base in owner.__mro__ for name in vars(base)}
    named |= set(re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(owner)))
    return {name for name in named if name.startswith("_") and not name.startswith("__")}


def _read_of_others(path: Path) -> set[str]:
    """Return the attributes that a module reads from names other than `self`, `cls` and classes of its own."""
    tree = ast.parse((ROOT / path).read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} | {"self", "cls"}
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in attributes if not (isinstance(node.value, ast.Name) and node.value.id in own)}


def test_only_plugins_and_policies_name_plugins() -> None:
    """A plugin owns all of itself: others read what it declares (`plugin_interfaces`, `PluginInfo`), or a code."""
    names = {info.name for info in load_registry()}
    layers = ("contracts", "engine", "placement", "policies", "scheduling")
    others = [
        path for path in modules() if path.parts[1] in layers and path.parts[:3] != ("hetsched", "engine", "plugins")
    ]
    found = {f"{path}:{line}" for path in others for line in _lines_naming(names, path)}
    assert {place for place in found if not place.startswith(BUILTIN_POLICIES)} == set()
    assert found  # those of the built-in policies


def _lines_naming(names: set[str], path: Path) -> set[int]:
    """Return the lines that name a plugin; a name that is also one of a field counts only in a comparison or call."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Constant) and node.value in names - FIELD_NAMES:
            found.add(node.lineno)
        compared = isinstance(node, ast.Compare) and re.search(r"\b(name|plugin)\b", ast.unparse(node.left))
        source = isinstance(node, ast.Call) and ast.unparse(node.func) in SOURCES
        if compared or source:
            values = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            found |= {node.lineno} if any(value in names for value in values) else set()
    return found


def test_engine_has_no_import_cycle() -> None:
    """Imports for type checking count, those inside functions do not. A cycle raises `CycleError` with its modules."""
    engine = {_dotted(path): path for path in modules() if path.parts[:2] == ("hetsched", "engine")}
    graph = {name: _imported(path) & engine.keys() - {name} for name, path in engine.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(engine)


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path) -> set[str]:
    """Return the modules, and the members of modules, that a file imports outside its functions."""
    package = path.parent.parts
    found = set()
    blocks = [ast.parse((ROOT / path).read_text())]
    while blocks:
        for node in blocks.pop().body:
            if isinstance(node, ast.If):
                blocks.append(node)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                module = ".".join([*base, *([node.module] if node.module else [])])
                found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def _has_gerund(stem: str) -> bool:
    return any(word.endswith("ing") and word not in TERMS for word in stem.split("_"))
