"""Discover, check and describe plugins.

A new plugin needs one file; forms, REST schema, docs and tests are generated from its declaration. Every module of
`hetsched.engine.plugins` and its groups is scanned, then the entry points of group `hetsched.plugins`. A class
decorated with `@plugin` is registered under its name. Names, points and signatures are checked on loading; an error
names the file.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import msgspec

from hetsched.contracts.params import Params, default_params, params_schema
from hetsched.contracts.waits import ANYTHING, NODE_FACTS, Event

from .compiled_terms import BuiltinFilter, CompiledReserve, CompiledTerm, Formula, LoopReserve, SharedReservation
from .extension_points import COMPANIONS, POINTS, Reads, Scope

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\{\w+\}")


class PluginError(Exception):
    """Plugin that violates the rules of the extension points; the message names its file."""


class PluginInfo(msgspec.Struct, frozen=True):
    """Declaration of a plugin; `points` are the extension points it serves.

    `helped_by` are the events that may turn its refusal into an acceptance. `translations` maps a language to the
    translations of its messages, by message template. `implied` is true if the plugin takes part in every decision for
    a live cluster, whether or not the policy lists it. The last five fields are attributes of the class:
    `places_gangs_whole`, and those that the compiled loop reads (see `compiled_terms`).
    """

    name: str
    summary: str
    factory: type[Any]
    params: type[Params]
    reads: Reads
    scope: Scope
    points: tuple[str, ...]
    doc: str
    source: str
    helped_by: frozenset[Event] = ANYTHING
    translations: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    implied: bool = False
    places_gangs_whole: bool = False
    compiled_term: CompiledTerm | None = None
    compiled_filter: CompiledTerm | BuiltinFilter | None = None
    compiled_reserve: CompiledReserve | None = None
    evicts_lower_priority: bool = False

    def build(self, params: Params) -> Any:
        """Return an instance with these parameters."""
        instance = self.factory()
        instance.params = params
        return instance


C = TypeVar("C", bound=type[Any])


def plugin(
    name: str,
    *,
    summary: str,
    params: type[Params] = Params,
    reads: Reads = Reads.LOAD,
    scope: Scope = Scope.ROW,
    helped_by: frozenset[Event] | None = None,
    translations: Mapping[str, Mapping[str, str]] | None = None,
    implied: bool = False,
) -> Callable[[C], C]:
    """Declare the decorated class as a plugin; `summary` is the one line that forms and docs show.

    For a filter, `helped_by` lists the events that may turn its refusal into an acceptance; for a PostFilter, the
    events after which other pods could be evicted. The default is any event and the passage of time. For a filter whose
    result placements cannot change (STATIC, row scope), the default is any change of a node fact. `translations` maps a
    language such as zh-hans to the plugin's messages and their translations, with placeholders in braces: `{"{n} pods":
    ...}`.
    """
    static = reads is Reads.STATIC and scope is Scope.ROW
    helped = helped_by if helped_by is not None else NODE_FACTS if static else ANYTHING

    def declare(cls: C) -> C:
        cls.info = PluginInfo(
            name=name,
            summary=summary,
            factory=cls,
            params=params,
            reads=reads,
            scope=scope,
            points=tuple(point for point, (method, _) in POINTS.items() if callable(getattr(cls, method, None))),
            doc=inspect.cleandoc(inspect.getmodule(cls).__doc__ or ""),
            source=cls.__module__,
            helped_by=helped,
            translations=translations or {},
            implied=implied,
            places_gangs_whole=getattr(cls, "places_gangs_whole", False),
            compiled_term=getattr(cls, "compiled_term", None),
            compiled_filter=getattr(cls, "compiled_filter", None),
            compiled_reserve=getattr(cls, "compiled_reserve", None),
            evicts_lower_priority=getattr(cls, "evicts_lower_priority", False),
        )
        _check(cls.info)
        return cls

    return declare


def _check(info: PluginInfo) -> None:
    where = f"plugin {info.name!r} in {info.source}"
    if not _NAME.fullmatch(info.name):
        raise PluginError(f"{where}: the name must consist of lower-case words joined by '-'")
    if not info.points:
        raise PluginError(f"{where}: implements no extension point: expected one of {', '.join(POINTS)}")
    if "filter" in info.points and not callable(getattr(info.factory, "refusals", None)):
        raise PluginError(f"{where}: a filter must also have the method `refusals`, which returns the reasons")
    if ("reserve" in info.points) != ("unreserve" in info.points):
        raise PluginError(f"{where}: reserve and unreserve must be implemented together")
    methods = dict(POINTS.values()) | COMPANIONS
    for method, expected in methods.items():
        function = getattr(info.factory, method, None)
        if function is None:
            continue
        actual = tuple(inspect.signature(function).parameters)[1:]
        if actual != expected:
            raise PluginError(f"{where}: {method}({', '.join(actual)}) should be {method}({', '.join(expected)})")
    _check_compiled(info, where)
    for language, texts in info.translations.items():
        if not _LANGUAGE.fullmatch(language):
            raise PluginError(f"{where}: {language!r} is not a language code such as zh-hans")
        for text, translation in texts.items():
            lacking = set(_PLACEHOLDER.findall(text)) - set(_PLACEHOLDER.findall(translation))
            if lacking:
                names = ", ".join(sorted(lacking))
                raise PluginError(f"{where}: the translation of {text!r} to {language} lacks the placeholders {names}")
    try:
        default_params(info.params)
    except TypeError as error:
        raise PluginError(f"{where}: every parameter needs a default ({error})") from None


def _check_compiled(info: PluginInfo, where: str) -> None:
    """Check the declarations for the compiled loop: their types, and that the plugin serves their points."""
    declared: tuple[tuple[str, Any, Any, str], ...] = (
        ("compiled_term", info.compiled_term, CompiledTerm, "score"),
        ("compiled_filter", info.compiled_filter, CompiledTerm | BuiltinFilter, "filter"),
        ("compiled_reserve", info.compiled_reserve, LoopReserve | SharedReservation, "reserve"),
        ("evicts_lower_priority", info.evicts_lower_priority or None, bool, "post-filter"),
    )
    for name, value, kind, point in declared:
        if value is None:
            continue
        if not isinstance(value, kind):
            raise PluginError(f"{where}: {name} has type {type(value).__name__}: see framework/compiled_terms.py")
        if point not in info.points:
            raise PluginError(f"{where}: {name} needs the extension point {point}")
    formulas = [term for term in (info.compiled_term, info.compiled_filter) if isinstance(term, CompiledTerm)]
    if formulas and (info.scope is not Scope.ROW or info.reads is not Reads.LOAD):
        raise PluginError(f"{where}: formulas require scope ROW and reads LOAD")
    if info.compiled_term is not None and "normalize-score" in info.points:
        raise PluginError(f"{where}: a plugin with compiled_term cannot implement normalize-score")
    if any("loop_function" not in vars(formula) for term in formulas for formula in term.formulas):
        raise PluginError(f"{where}: every formula must have the decorator loop_function")


class Registry:
    """All known plugins by name, in name order."""

    def __init__(self, plugins: dict[str, PluginInfo]) -> None:
        self._plugins = dict(sorted(plugins.items()))

    def __getitem__(self, name: str) -> PluginInfo:
        return self._plugins[name]

    def __contains__(self, name: str) -> bool:
        return name in self._plugins

    def __iter__(self) -> Iterator[PluginInfo]:
        return iter(self._plugins.values())

    def __len__(self) -> int:
        return len(self._plugins)

    @cached_property
    def gang_plugins(self) -> frozenset[str]:
        """The names of the plugins that place all members of a gang or none."""
        return frozenset(info.name for info in self if info.places_gangs_whole)

    @cached_property
    def formulas(self) -> tuple[Formula, ...]:
        """The formulas of all plugins, without duplicates, in the order of plugin names."""
        terms = (term for info in self for term in (info.compiled_filter, info.compiled_term))
        return tuple(dict.fromkeys(f for term in terms if isinstance(term, CompiledTerm) for f in term.formulas))

    def describe(self) -> list[dict[str, Any]]:
        """Return the descriptions of all plugins for forms, REST and docs."""
        return [
            {
                "name": info.name,
                "summary": info.summary,
                "points": list(info.points),
                "reads": info.reads.value,
                "scope": info.scope.value,
                "helpedBy": sorted(info.helped_by) if {"filter", "pre-filter"} & set(info.points) else [],
                "params": params_schema(info.params),
                "defaults": default_params(info.params),
            }
            for info in self
        ]


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    """Load one plugin module; errors name the module."""
    try:
        return load()
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed plugins, sorted by name; they do not change while a process runs."""
    return tuple(sorted(entry_points(group="hetsched.plugins"), key=lambda entry: entry.name))


def load_registry() -> Registry:
    """Scan built-in plugins and entry points.

    Raises: PluginError, naming the file, for an invalid or duplicate plugin.
    """
    from hetsched.engine import plugins as builtin  # imported here because the plugins import this module

    found: dict[str, PluginInfo] = {}
    names = sorted(module.name for module in pkgutil.walk_packages(builtin.__path__, f"{builtin.__name__}."))
    modules = [_loaded(name, partial(importlib.import_module, name)) for name in names]
    modules += [_loaded(entry.value, entry.load) for entry in _installed()]
    for module in modules:
        for cls in vars(module).values():
            info = getattr(cls, "info", None)
            if not isinstance(info, PluginInfo) or info.factory is not cls:
                continue
            other = found.get(info.name)
            if other is not None and other.factory is not cls:
                raise PluginError(f"plugin {info.name!r} is declared in both {other.source} and {info.source}")
            found[info.name] = info
    return Registry(found)
