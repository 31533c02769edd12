"""Discovery and description of collectors.

The registry scans every module of `hetsched.adapters.collectors`, then the entry points of group `hetsched.collectors`.
A class decorated with `@collector` is registered under its name. The parameters of a collector are one frozen Struct,
from which the form, the REST schema and the validation are derived. Each parameter has a default.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.collected import Collected, NodeAlias
from hetsched.contracts.params import Params, check_params, default_params, params_schema

from .requests import CollectorClient

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class CollectorError(Exception):
    """A collector is declared incorrectly; the message names the collector and its module."""


class FactCollector(Protocol):
    """One source of facts about nodes."""

    params: Any

    def urls(self) -> tuple[str, ...]:
        """Return the addresses that the collector calls."""

    def check(self) -> None:
        """Reject parameters that are contradictory or incomplete. Raises: InputError."""

    def collect(self, ask: CollectorClient, nodes: Sequence[NodeAlias], now: float) -> Collected:
        """Query the source once and return its facts about these nodes. Raises: SourceError."""


class CollectorInfo(msgspec.Struct, frozen=True):
    """Description of a collector; `load` is true if it measures the usage of nodes."""

    name: str
    summary: str
    factory: type[Any]
    params: type[Params]
    load: bool
    doc: str
    source: str

    def build(self, values: dict[str, Any]) -> FactCollector:
        """Return the collector with these parameters. Raises: InputError `CollectorParamInvalid`."""
        try:
            params = check_params(self.params, values, plugin=self.name)
        except InputError as error:
            raise InputError("CollectorParamInvalid", error.message, place="params", hint=error.hint) from None
        made: FactCollector = self.factory()
        made.params = params
        made.check()
        return made

    def describe(self) -> dict[str, Any]:
        """Return the description for forms, REST and docs."""
        return {
            "name": self.name,
            "summary": self.summary,
            "load": self.load,
            "params": params_schema(self.params),
            "defaults": default_params(self.params),
        }


C = TypeVar("C", bound=type[Any])


def collector(name: str, *, summary: str, params: type[Params], load: bool = False) -> Callable[[C], C]:
    """Declare a class as a collector; `summary` is the one-line description in forms and docs."""

    def declare(cls: C) -> C:
        doc = inspect.cleandoc(inspect.getmodule(cls).__doc__ or "")
        cls.info = CollectorInfo(name, summary, cls, params, load, doc, cls.__module__)
        where = f"collector {name!r} in {cls.__module__}"
        if not _NAME.fullmatch(name):
            raise CollectorError(f"{where}: the name must be lower-case words joined by '-'")
        for method in ("urls", "check", "collect"):
            if not callable(getattr(cls, method, None)):
                raise CollectorError(f"{where}: method {method} is missing")
        try:
            default_params(params)
        except TypeError as error:
            raise CollectorError(f"{where}: every parameter needs a default ({error})") from None
        return cls

    return declare


@lru_cache(maxsize=1)
def load_collectors() -> dict[str, CollectorInfo]:
    """Scan built-ins and entry points; return all collectors by name. Raises: CollectorError for a duplicate name."""
    package = __name__.rpartition(".")[0]
    path = importlib.import_module(package).__path__
    modules = [importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path)]
    modules += [entry.load() for entry in sorted(entry_points(group="hetsched.collectors"), key=lambda e: e.name)]
    found: dict[str, CollectorInfo] = {}
    for module in modules:
        for cls in vars(module).values():
            info = getattr(cls, "info", None)
            if not isinstance(info, CollectorInfo) or info.factory is not cls:
                continue
            other = found.get(info.name)
            if other is not None and other.factory is not cls:
                raise CollectorError(f"collector {info.name!r} is declared in both {other.source} and {info.source}")
            found[info.name] = info
    return dict(sorted(found.items()))


def build(kind: str, values: dict[str, Any]) -> FactCollector:
    """Return a collector of this kind with these parameters. Raises: InputError."""
    info = load_collectors().get(kind)
    if info is None:
        known = joined(", ", load_collectors())
        raise InputError(
            "CollectorUnknown",
            Message("unknown collector {text}", text=repr(kind[:60])),
            place="kind",
            hint=Message("Use {names}", names=known),
        )
    return info.build(values)
