"""Replace the code of loaded functions by the code in a changed source, in this process only; no file is written."""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType


def replace_code(root: Path, file: str, changed: bytes) -> None:
    """Replace the code of a module's functions, and of its classes' methods, by their code in the changed source.

    References to the functions remain valid, including those held by decorators and other modules.
    Raises: ValueError if the code of a function cannot be replaced because it uses other variables of its class.
    """
    path = str(root / file)
    before = list(_outermost(compile((root / file).read_bytes(), path, "exec", dont_inherit=True)))
    after = list(_outermost(compile(changed, path, "exec", dont_inherit=True)))
    new = {_key(old): code for old, code in zip(before, after, strict=True) if old != code}
    importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    gc.unfreeze()  # a server freezes the objects of imported modules, and then `get_objects` does not return them
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == path and _key(one.__code__) in new:
            one.__code__ = new[_key(one.__code__)]


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _outermost(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module or class in order, without functions nested in other functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield constant
            else:
                yield from _outermost(constant)
