# SPDX-License-Identifier: Apache-2.0
"""Make the mutants of a module: one changed expression or statement of a function in each."""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, EllipsisType
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATIONS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
#: Calls of these names are not changed: only people read what they get.
_LOGS: Final = ("LOG", "_LOG", "logging", "warnings")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Code = dict[tuple[str, int], CodeType]


@dataclass(frozen=True)
class Mutant:
    """A changed module.

    ``name`` is file, function, kind of change and the text before it, with a number where a
    function has several of these. So it changes only with the expression itself. ``node`` and
    ``instead`` are the syntax before and after.
    """

    name: str
    path: Path
    line: int
    tree: ast.Module
    node: ast.AST
    instead: ast.AST

    @property
    def text(self) -> str:
        """Return the change in one line."""
        return f"{_line(self.node)}  →  {_line(self.instead)}"

    def code(self) -> Code:
        """Return the code of the changed module by qualified name and first line."""
        _Replacement(self.node, self.instead).visit(self.tree)
        try:
            tree = ast.fix_missing_locations(self.tree)
            return code_objects(compile(tree, str(self.path), "exec"))
        finally:
            _Replacement(self.instead, self.node).visit(self.tree)


def code_objects(code: CodeType) -> Code:
    """Return the code objects in another one, by qualified name and first line."""
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname, constant.co_firstlineno] = constant
            found |= code_objects(constant)
    return found


def mutants(path: Path, root: Path) -> Iterator[Mutant]:
    """Yield the mutants of the functions of a file; ``root`` is the directory of the project."""
    tree = ast.parse(path.read_text(), str(path))
    for qualified, function in _functions(tree, ""):
        numbers: Counter[str] = Counter()
        for node in _nodes(function):
            for change, instead in _changes(node):
                ast.copy_location(instead, node)
                name = f"{path.relative_to(root)}::{qualified}::{change}::{_line(node)}"
                numbers[name] += 1
                if numbers[name] > 1:
                    name += f"::{numbers[name]}"
                line = getattr(node, "lineno", function.lineno)
                yield Mutant(name, path, line, tree, node, instead)


def _functions(parent: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield the outermost functions with their qualified names."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body that may be changed."""
    children: list[ast.AST] = []
    if isinstance(node, Function):
        children = list(node.body)
    elif isinstance(node, ast.AnnAssign):
        children = [] if node.value is None else [node.value]
    elif isinstance(node, ast.Raise | ast.Assert) or _is_text(node):
        # What an error says is for people. An assertion tells the type checker what holds.
        children = []
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        if not _is_text(child):
            yield child
            yield from _nodes(child)


def _is_text(node: ast.AST) -> bool:
    """Return whether a node is a docstring, a stub, a message or the call that logs one."""
    if isinstance(node, ast.Expr):
        return _is_text(node.value)
    if isinstance(node, ast.Call):
        called = node.func
        while isinstance(called, ast.Attribute):
            called = called.value
        return isinstance(called, ast.Name) and called.id in _LOGS
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | EllipsisType)
    )


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield each change of a node: its kind, and the node instead."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            changed = copy.copy(node)
            changed.ops = list(node.ops)
            changed.ops[index] = _COMPARISONS[type(operator)]()
            yield "comparison", changed
    elif isinstance(node, ast.BoolOp):
        yield (
            "and-or",
            ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values),
        )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        yield "operator", ast.BinOp(node.left, _OPERATIONS[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "boolean", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "number", ast.Constant(node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp) and isinstance(
        node.test, ast.Name | ast.Attribute | ast.Call
    ):
        changed_if = copy.copy(node)
        changed_if.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition", changed_if
    elif isinstance(
        node, ast.Expr | ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete
    ):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom)):
            yield "statement", ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not _is_false(node.value):
        yield "return", ast.Return(ast.Constant(None))


def _is_false(node: ast.AST) -> bool:
    """Return whether None instead would mean the same in a condition."""
    return isinstance(node, ast.Constant) and node.value in (None, False)


def _line(node: ast.AST) -> str:
    """Return the beginning of a node in one line; of a condition, only what it tests."""
    if isinstance(node, ast.If):
        node = node.test
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 90 else f"{text[:87]}..."


class _Replacement(ast.NodeTransformer):
    """Replace one node of a tree."""

    def __init__(self, node: ast.AST, instead: ast.AST) -> None:
        self._node = node
        self._instead = instead

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._node:
            return self._instead
        return self.generic_visit(node)
