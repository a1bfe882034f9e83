"""The messages of all errors, and the causes of `hpcml why`: the golden page ``messages.txt`` has their wording."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcml import errors
from hpcml.failures.rules import BY_NAME

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("messages.txt")
PARTS = ("place", "hint")  # keyword arguments with a text of their own
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "hpcml").rglob("*.py"))}


def error_classes() -> set[str]:
    """Return the names of HpcmlError and of all classes below it."""
    classes = [node for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {errors.HpcmlError.__name__}
    while more := {
        node.name for node in classes if node.name not in found and found & {name_of(base) for base in node.bases}
    }:
        found |= more
    return found


def name_of(node: ast.expr) -> str:
    """Return the last name of a dotted expression; empty for another expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


class Texts:
    """The texts that expressions of a function make; a name stands for what the function assigns to it."""

    def __init__(self, function: ast.AST) -> None:
        self.assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, []).append(node.value)

    def of(self, node: ast.expr, known: frozenset[str] = frozenset()) -> str:
        """Return a text with ``{}`` for a value, ``{words}`` for what a call makes of words, ``[a / b]`` for a choice."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(self.of(part, known) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self.of(node.value, known)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.of(node.left, known) + self.of(node.right, known)
        if isinstance(node, ast.IfExp):
            return self._choice([node.body, node.orelse], known)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self._choice(node.values, known)
        if isinstance(node, ast.Name) and node.id not in known:
            text = self._choice(self.assigned.get(node.id, []), known | {node.id})
            return text if " " in text else "{}"
        if isinstance(node, ast.Call):
            texts = [self.of(argument, known) for argument in [*node.args, *(word.value for word in node.keywords)]]
            return "".join(f"{{{text}}}" for text in texts if " " in text) or "{}"
        return "{}"

    def _choice(self, nodes: Sequence[ast.expr], known: frozenset[str]) -> str:
        texts = list(dict.fromkeys(self.of(node, known) for node in nodes))
        return texts[0] if len(texts) == 1 else f"[{' / '.join(texts)}]" if texts else "{}"


def calls_of(tree: ast.AST, function: ast.AST) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Yield each call below a node, with the innermost function around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield function, node
        yield from calls_of(node, node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function)


def messages_of(tree: ast.Module, classes: set[str]) -> Iterator[str]:
    """Yield each error of a module as a line: its class, its message, its place in brackets, its next step."""
    texts_by_function: dict[ast.AST, Texts] = {}
    for function, call in calls_of(tree, tree):
        if name_of(call.func) not in classes:
            continue
        texts = texts_by_function.setdefault(function, Texts(function))
        parts = {word.arg: texts.of(word.value) for word in call.keywords if word.arg in PARTS}
        message = texts.of(call.args[0]) if call.args else "{}"
        place = f" ({parts['place']})" if parts.get("place") else ""
        line = f"{name_of(call.func)}: {message}{place}. {parts.get('hint', '')}"
        if any(letter.isalpha() for letter in message):
            yield " ".join(line.split())


def page() -> str:
    """Return the golden page in alphabetical order, so that code may move: all errors, and the causes that rules name."""
    classes = error_classes()
    lines = {line for tree in MODULES.values() for line in messages_of(tree, classes)}
    causes = {f"rule {rule.name}: {rule.cause}. {rule.remedy} {rule.of_ranks}".rstrip() for rule in BY_NAME.values()}
    return "\n".join([*sorted(lines), *sorted(causes)]) + "\n"
