"""Follows a program without running it: are its names public, and do its calls fit the signatures?"""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any, NamedTuple

import attrs

import compatkit as ck


class Instance(NamedTuple):
    """Some object of a class, as far as an example's types can be followed."""

    kind: type


class Example(ast.NodeVisitor):
    """Follows an example without running it: names, attributes, and whether calls fit the signatures."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.calls: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name == "compatkit":
                self.known[alias.asname or alias.name] = ck

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if str(node.module).split(".")[0] not in ("compatkit", "compatkit_plugins"):
            return
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            self.known[alias.asname or alias.name] = getattr(module, alias.name)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.follow(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.known[target.id] = value

    def generic_visit(self, node: ast.AST) -> None:
        """Follow an expression wherever it stands; look into every other statement."""
        if isinstance(node, ast.expr):
            self.follow(node)
        else:
            super().generic_visit(node)

    def follow(self, node: ast.expr) -> Any:
        """Return what an expression gives, ``None`` where it is not known; look into everything below it."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return member(self.follow(node.value), node.attr)
        if isinstance(node, ast.Call):
            for argument in [*node.args, *(keyword_argument.value for keyword_argument in node.keywords)]:
                self.follow(argument)
            return self.called(self.follow(node.func), node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.follow(child)
        return None

    def called(self, function: Any, node: ast.Call) -> Any:
        if function is None or isinstance(function, Instance):
            return None
        positions = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
        names = [keyword.arg for keyword in node.keywords if keyword.arg]
        whole = len(positions) == len(node.args) and len(names) == len(node.keywords)
        signature = inspect.signature(function)
        (signature.bind if whole else signature.bind_partial)(*positions, **dict.fromkeys(names))
        self.calls.add(getattr(function, "__name__", ""))
        if isinstance(function, type):
            return Instance(function)
        return annotated(getattr(function, "__annotations__", {}).get("return"))


def member(owner: Any, name: str) -> Any:
    if owner is None:
        return None
    if owner is ck:
        assert name in ck.__all__, f"compatkit.{name} is no public name"
    if not isinstance(owner, Instance):
        return getattr(owner, name)
    fields = attrs.fields_dict(owner.kind) if attrs.has(owner.kind) else {}
    if name in fields:
        return annotated(fields[name].type)
    result = getattr(owner.kind, name)
    if isinstance(result, property):
        return annotated(getattr(result.fget, "__annotations__", {}).get("return"))
    return result.__get__(object()) if inspect.isfunction(result) else result


def annotated(annotation: Any) -> Instance | None:
    """Return an instance of the public class that an annotation names, ``None`` for anything else."""
    result = (
        getattr(ck, annotation, None) if isinstance(annotation, str) and annotation in ck.__all__ else None
    )
    return Instance(result) if isinstance(result, type) else None
