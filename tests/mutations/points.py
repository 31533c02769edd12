"""Mutations of a source file. Each is one small change inside a function, represented by a span of bytes and its
replacement.

Code that runs at import is not mutated, because every test of a module runs it. Annotations, patterns and log messages
are not mutated either, nor are f-strings, whose parts have no usable positions in Python 3.11.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

PROBE_MODULE = "mutation_probe"
_PROBE = f"__import__('{PROBE_MODULE}').reached({{number}})"

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGERS = {"log", "logger", "_log", "_logger"}


class Mutation(NamedTuple):
    """Replacement of bytes `start` to `end` of a file by `put`, inside an outermost function; `line` starts at 1."""

    file: str
    function: str
    line: int
    start: int
    end: int
    kind: str
    statement: bool
    put: str

    def apply(self, source: bytes) -> bytes:
        """Return the source with the mutation."""
        return source[: self.start] + self.put.encode() + source[self.end :]


def mutations(file: str, source: bytes) -> Iterator[Mutation]:
    """Yield all mutations of a file, in the order of its functions."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, function, kind, put in _Finder().found(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        statement = isinstance(node, ast.stmt)
        yield Mutation(file, function, node.lineno, start, end, kind, statement, put if statement else f"({put})")


def with_probes(source: bytes, numbered: Iterable[tuple[int, Mutation]]) -> bytes:
    """Return the source with a probe at the place of each mutation that reports the mutation's number when it is
    reached.
    """
    added: list[tuple[int, str]] = []
    for number, mutation in numbered:
        call = _PROBE.format(number=number)
        if mutation.statement:
            added.append((mutation.start, f"{call}; "))
        else:
            added += [(mutation.start, f"({call} or ("), (mutation.end, "))")]
    for position, text in sorted(added, key=lambda one: one[0], reverse=True):
        source = source[:position] + text.encode() + source[position:]
    return source


class _Finder(ast.NodeVisitor):
    """Visitor that collects the nodes to change in functions, with the kind of change and the new text."""

    def __init__(self) -> None:
        self._found: list[tuple[Any, str, str, str]] = []
        self._function = ""  # the outermost function, empty outside functions

    def found(self, tree: ast.Module) -> list[tuple[Any, str, str, str]]:
        self.visit(tree)
        return self._found

    def _add(self, node: ast.AST, kind: str, put: ast.AST | str) -> None:
        if self._function:
            self._found.append((node, self._function, kind, put if isinstance(put, str) else ast.unparse(put)))

    def _visit_all(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # -- what is visited: bodies of functions, without annotations, defaults, decorators, patterns and f-strings

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer = self._function
        self._function = outer or node.name
        self._visit_all(node.body)
        self._function = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_match_case(self, node: ast.match_case) -> None:
        self._visit_all([node.guard, *node.body])

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    # -- statements

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.value])

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and _logs(node.value):
            return
        if isinstance(node.value, ast.Call | ast.Await):
            self._add(node, "statement removed", "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add(node, "statement removed", "pass")
        self.generic_visit(node)

    def _removable(self, node: ast.stmt) -> None:
        self._add(node, "statement removed", "pass")
        self.generic_visit(node)

    visit_AugAssign = visit_Delete = visit_Raise = _removable

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node, "return None", "return None")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "continue to break", "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "break to continue", "continue")

    # -- expressions

    def _negate(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, ast.UnaryOp | ast.Compare | ast.BoolOp):
            self._add(node.test, "condition negated", ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = _negate

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "negation removed", node.operand)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        changed = copy.copy(node)
        changed.ops = [_COMPARED[type(node.ops[0])](), *node.ops[1:]]
        self._add(node, "comparison", changed)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._add(node, "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _COMPUTED:
            self._add(node, "operator", ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, "constant", repr(not node.value))
        elif isinstance(node.value, int | float):
            for step in (1, -1):
                self._add(node, "constant", repr(node.value + step))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            self._add(node.func, "function", _CALLED[node.func.id])
        self.generic_visit(node)


def _logs(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in _LOGGERS
