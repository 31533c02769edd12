"""Find the texts of error messages and hints in the source.

The arguments of `InputError`, `RequestRefused` and `Problem` are traced through names of the same function or module,
and through functions that pass on one of their own parameters. For a conditional expression, all its texts are found.
The text of a `Message` is its template. A text that is composed without a `Message` (f-string, `+`, `%`) contains
`HOLE` for each value. Texts from other sources (another error's message, a text of the user) are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

HOLE = "\0"  # a value of a composed text
# The argument with the message, by the name of the function. Of methods, `self` does not count.
SAID = {"InputError": 1, "RequestRefused": 2, "Problem": 2}
NAMED = ("message", "detail", "hint")
_DEEPEST = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Worded(NamedTuple):
    path: Path
    line: int
    template: str


def worded(paths: Iterable[Path]) -> set[Worded]:
    """Return every message template of the errors that these modules raise."""
    found = set()
    for path in paths:
        text = path.read_text()
        if any(name in text for name in (*SAID, "malformed", "refuse", ".fail(")):
            found |= set(_of_module(path, ast.parse(text)))
    return {one for one in found if " " in one.template and any(map(str.isalpha, one.template))}


def _of_module(path: Path, tree: ast.Module) -> Iterator[Worded]:
    # Functions of these names in other modules pass their argument on as a message: for fields, instruction sets and
    # image documents.
    positions = {**SAID, "malformed": 0, "fail": 0, "refuse": 1}
    while handed := dict(_forwarding_functions(tree, positions)):
        positions |= handed
    for call, function in _calls(tree):
        for said in _message_arguments(call, positions):
            for template in _templates(said, function, tree):
                yield Worded(path, call.lineno, template)


def _forwarding_functions(tree: ast.Module, positions: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the functions of a module that raise an error with one of their own parameters, and the position of that
    parameter.
    """
    for call, function in _calls(tree):
        if function is None or not function.name.startswith("_") or function.name in positions:
            continue
        names = [arg.arg for arg in function.args.args if arg.arg != "self"]
        for said in _message_arguments(call, positions):
            if isinstance(said, ast.Name) and said.id in names:
                yield function.name, names.index(said.id)


def _calls(node: ast.AST, function: Function | None = None) -> Iterator[tuple[ast.Call, Function | None]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function
        yield from _calls(child, child if isinstance(child, Function) else function)


def _message_arguments(call: ast.Call, positions: dict[str, int]) -> Iterator[ast.expr]:
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if name in positions:
        yield from call.args[positions[name] : positions[name] + 1]
        yield from (keyword.value for keyword in call.keywords if keyword.arg in NAMED)


def _templates(said: ast.expr, function: Function | None, tree: ast.Module, depth: int = 0) -> list[str]:
    """Return the possible texts of an expression, empty if they cannot be determined."""
    if depth > _DEEPEST:
        return []

    def inner(part: ast.expr) -> list[str]:
        return _templates(part, function, tree, depth + 1)

    match said:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Call(func=ast.Name(id="Message")):
            return inner(said.args[0])
        case ast.Call(func=ast.Name(id="joined"), args=[_, ast.List() | ast.Tuple() as items]):
            return [text for item in items.elts for text in inner(item)]
        case ast.JoinedStr():
            return ["".join(inner(part)[0] if isinstance(part, ast.Constant) else HOLE for part in said.values)]
        case ast.BinOp():
            return [HOLE + (inner(said.left) or [""])[0] + " " + (inner(said.right) or [""])[0]]
        case ast.IfExp():
            return inner(said.body) + inner(said.orelse)
        case ast.BoolOp():
            return [text for value in said.values for text in inner(value)]
        case ast.Subscript():
            return inner(said.value)
        case ast.Name():
            own = [text for value in _given(said.id, function) for text in inner(value)]
            return own or [text for value in _given(said.id, tree) for text in inner(value)]
        case _:
            return []


def _given(name: str, scope: ast.AST | None) -> Iterator[ast.expr]:
    """Yield the expressions that are assigned to a name inside a function or module."""
    for node in ast.walk(scope) if scope is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.NamedExpr):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield node.value
