"""The changes made to a module, one at a time: each is a small mistake that somebody could have written."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
RETURNED: dict[str, ast.expr] = {
    "float": ast.Constant(0.0),
    "int": ast.Constant(0),
    "str": ast.Constant(""),
    "bool": ast.Constant(value=False),
}
"""What a function of that return annotation returns instead; one that may return None returns None."""


@dataclass(slots=True)
class Signature:
    """What calls of functions or dataclasses of one name take."""

    positions: list[str]
    """Annotations of the positional parameters, in order."""
    types: dict[str, str]
    """Annotations by keyword."""
    optional: set[str]
    """Keywords that may be left out."""


Signatures = dict[str, Signature]
"""By bare name; of several with one name the last counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed place."""

    module: str
    """Path from the root of the checkout."""
    line: int
    column: int
    end: str
    """Line and column where the changed place ends."""
    operator: str
    number: int
    """Which of the changes of this operator at this place."""
    before: str
    after: str

    @property
    def key(self) -> str:
        """What stays the same as long as the module does."""
        return f"{self.module}:{self.line}:{self.column}-{self.end}:{self.operator}:{self.number}"


def mutants_of(root: Path, module: str, signatures: Signatures) -> list[Mutant]:
    """Return every mutant of a module, in reading order."""
    tree = ast.parse((root / module).read_text(encoding="utf-8"))
    found: list[Mutant] = []
    for node, context in _places(tree):
        counts: dict[str, int] = {}
        for operator, after in _changes(node, context, signatures):
            number = counts[operator] = counts.get(operator, -1) + 1
            found.append(
                Mutant(
                    module=module,
                    line=node.lineno,
                    column=node.col_offset,
                    end=_end(node),
                    operator=operator,
                    number=number,
                    before=ast.unparse(node),
                    after=ast.unparse(after),
                )
            )
    return found


def mutated(root: Path, mutant: Mutant, signatures: Signatures) -> ast.Module:
    """Return the module's tree with that one change."""
    tree = ast.parse((root / mutant.module).read_text(encoding="utf-8"))
    for node, context in _places(tree):
        if (node.lineno, node.col_offset, _end(node)) != (mutant.line, mutant.column, mutant.end):
            continue
        same = [after for operator, after in _changes(node, context, signatures) if operator == mutant.operator]
        if ast.unparse(node) == mutant.before and mutant.number < len(same):
            _Replace(node, ast.copy_location(copy.deepcopy(same[mutant.number]), node)).visit(tree)
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{mutant.key} is no mutant of the module as it is now")


def _end(node: ast.expr | ast.stmt) -> str:
    return f"{node.end_lineno}:{node.end_col_offset}"


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return ``count`` of a module's mutants; a larger sample of the same seed begins with the smaller one."""
    shuffled = sorted(mutants, key=lambda m: m.key)
    random.Random(f"{seed} {shuffled[0].module if shuffled else ''}").shuffle(shuffled)
    return shuffled[:count]


def signatures_of(root: Path, package: str) -> Signatures:
    """Return the signatures of the package's own functions and dataclasses."""
    found: Signatures = {}
    for path in sorted((root / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                found[node.name] = _function(node)
            elif isinstance(node, ast.ClassDef):
                fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
                types = {s.target.id: ast.unparse(s.annotation) for s in fields if isinstance(s.target, ast.Name)}
                optional = {s.target.id for s in fields if isinstance(s.target, ast.Name) and s.value is not None}
                found[node.name] = Signature(list(types.values()), types, optional)
    return found


def _function(node: ast.FunctionDef) -> Signature:
    positional = [a for a in node.args.args if a.arg not in ("self", "cls")]
    types = {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in (*positional, *node.args.kwonlyargs)}
    optional = {a.arg for a in positional[len(positional) - len(node.args.defaults) :]} if node.args.defaults else set()
    optional |= {a.arg for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None}
    return Signature([types[a.arg] for a in positional], types, optional)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


@dataclass(frozen=True, slots=True)
class _Context:
    returns: str
    """Return annotation of the function around."""
    condition: bool
    """Whether the expression is a condition by itself."""


def _places(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, _Context]]:
    """Yield statements and expressions that compute: no annotation, docstring, text or import."""
    pending: list[tuple[ast.AST, _Context]] = [(tree, _Context("", condition=False))]
    while pending:
        node, context = pending.pop()
        if isinstance(node, (ast.expr, ast.stmt)):
            yield node, context
        pending += reversed(list(_children(node, context)))


def _children(node: ast.AST, context: _Context) -> Iterator[tuple[ast.AST, _Context]]:
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)) or _is_type_alias(node):
        return
    if isinstance(node, ast.FunctionDef):
        context = _Context(ast.unparse(node.returns) if node.returns else "", condition=False)
    skipped = {"annotation", "returns", "decorator_list", "bases", "keywords"} if _defines(node) else {"annotation"}
    for field, value in ast.iter_fields(node):
        if field in skipped:
            continue
        tested = field == "test" or field == "ifs"
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield child, _Context(context.returns, condition=tested)


def _defines(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_type_alias(node: ast.AST) -> bool:
    """Whether it is ``Alias = tuple[float, float]``, ``__all__ = ...`` or ``if TYPE_CHECKING``."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    types = isinstance(node.value, (ast.Subscript, ast.BinOp)) and node.targets[0].id.istitle()
    return types or node.targets[0].id == "__all__"


def _changes(node: ast.expr | ast.stmt, context: _Context, signatures: Signatures) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                yield "comparison", _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not any(isinstance(side, (ast.JoinedStr, ast.List)) or _is_str(side) for side in (node.left, node.right)):
            yield "arithmetic", _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "boolean", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            yield "boolean", rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "boolean" if isinstance(node.op, ast.Not) else "arithmetic", node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node, signatures)
    elif isinstance(node, ast.IfExp):
        yield "condition", _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in ARITHMETIC and not isinstance(node.value, (ast.List, ast.ListComp)):
            yield "arithmetic", _with(node, op=ARITHMETIC[type(node.op)]())
        yield "statement", ast.Pass()
    elif isinstance(node, (ast.Continue, ast.Break)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "statement", ast.Pass()
    elif isinstance(node, ast.Return):
        yield from _returns(node, context)
    if context.condition and isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        yield "condition", ast.UnaryOp(ast.Not(), node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of one node with other fields; children are shared."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_str(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1 if value < 10 else 2 * value)
    elif isinstance(value, float):
        yield "constant", ast.Constant(1.5 * value if value else 1.0)


def _calls(node: ast.Call, signatures: Signatures) -> Iterator[tuple[str, ast.AST]]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in FUNCTIONS:
        other = FUNCTIONS[name]
        function = ast.Name(other, ast.Load()) if isinstance(node.func, ast.Name) else _with(node.func, attr=other)
        yield "function", _with(node, func=function)
    signature = signatures.get(name)
    if signature is None:
        return
    named = [k for k in node.keywords if k.arg is not None]
    for keyword in named:
        if keyword.arg in signature.optional:
            yield "keyword", _with(node, keywords=[k for k in node.keywords if k is not keyword])
    for one, two in pairwise(named):  # mixed up, where the type would not tell
        if signature.types.get(one.arg or "", 1) == signature.types.get(two.arg or "", 2):
            if ast.unparse(one.value) == ast.unparse(two.value):
                continue
            swapped = {one: ast.keyword(one.arg, two.value), two: ast.keyword(two.arg, one.value)}
            yield "keyword", _with(node, keywords=[swapped.get(k, k) for k in node.keywords])
    for i in range(min(len(node.args), len(signature.positions)) - 1):
        if signature.positions[i] == signature.positions[i + 1]:
            rest = [*node.args[:i], node.args[i + 1], node.args[i], *node.args[i + 2 :]]
            yield "argument", _with(node, args=rest)


def _returns(node: ast.Return, context: _Context) -> Iterator[tuple[str, ast.AST]]:
    if node.value is None:
        return
    if context.returns.endswith("| None"):
        other: ast.expr = ast.Constant(None)
    elif context.returns == "bool":
        other = ast.UnaryOp(ast.Not(), node.value)
    elif context.returns.startswith("tuple[") and context.returns.endswith("...]"):
        other = ast.Tuple([], ast.Load())
    elif context.returns in RETURNED:
        other = RETURNED[context.returns]
    else:
        return
    if ast.unparse(node.value) != ast.unparse(other):
        yield "return", ast.Return(other)
