"""A scratch folder of plugins, added to the built-in ones for one test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from hetsched.engine import plugins
from hetsched.engine.framework.registry import Registry, load_registry


@pytest.fixture
def with_plugin(tmp_path: Path) -> Iterator[Callable[..., Registry]]:
    """Return a function that writes a plugin file and returns the registry with it."""
    plugins.__path__.append(str(tmp_path))
    written: list[str] = []

    def write(source: str, name: str = "scratch") -> Registry:
        (tmp_path / f"{name}.py").write_text(dedent(source))
        written.append(f"{plugins.__name__}.{name}")
        return load_registry()

    yield write
    plugins.__path__.remove(str(tmp_path))
    for module in written:
        sys.modules.pop(module, None)
        vars(plugins).pop(module.rsplit(".", 1)[1], None)
