"""Signatures of attrs classes for the pages of the API, read from the sources without running them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from griffe import (
    Attribute,
    Class,
    Expr,
    ExprCall,
    ExprKeyword,
    Extension,
    Function,
    Module,
    Parameter,
    ParameterKind,
    Parameters,
)

DECORATORS = ("attrs.frozen", "attrs.define")


def arguments(call: object) -> dict[str, str | Expr]:
    """Return the named arguments of a call."""
    if not isinstance(call, ExprCall):
        return {}
    return {argument.name: argument.value for argument in call.arguments if isinstance(argument, ExprKeyword)}


def decorator(class_: Class) -> Expr | None:
    """Return the decorator that makes a class one of attrs, or None."""
    values = (given.value for given in class_.decorators if isinstance(given.value, Expr))
    return next((value for value in values if value.canonical_path in DECORATORS), None)


def parameters(class_: Class) -> Iterator[Parameter]:
    """Yield the parameters that the fields of one class give; private ones are left out."""
    all_by_name = arguments(decorator(class_)).get("kw_only") == "True"
    for member in class_.members.values():
        if not isinstance(member, Attribute) or member.annotation is None or member.name.startswith("_"):
            continue
        if "property" in member.labels or str(member.annotation).startswith("ClassVar"):
            continue
        if "class-attribute" in member.labels and "instance-attribute" not in member.labels:
            continue
        is_field = isinstance(member.value, ExprCall) and member.value.canonical_path == "attrs.field"
        settings = arguments(member.value) if is_field else {}
        if settings.get("init") == "False":
            continue
        default: Any = settings.get("default") if is_field else member.value
        if isinstance(factory := settings.get("factory"), Expr):
            default = ExprCall(function=factory, arguments=[])
        by_name = all_by_name or settings.get("kw_only") == "True"
        kind = ParameterKind.keyword_only if by_name else ParameterKind.positional_or_keyword
        yield Parameter(member.name, annotation=member.annotation, kind=kind, default=default)


def signature(class_: Class) -> Parameters:
    """Return the parameters of a class and of its base classes, those given by name alone last."""
    found: dict[str, Parameter] = {}
    for owner in (*reversed(class_.mro()), class_):
        if decorator(owner) is not None:
            for parameter in parameters(owner):
                found.pop(parameter.name, None)
                found[parameter.name] = parameter
    ordered = sorted(found.values(), key=lambda parameter: parameter.kind is ParameterKind.keyword_only)
    first = Parameter("self", annotation=None, kind=ParameterKind.positional_or_keyword, default=None)
    return Parameters(first, *ordered)


class AttrsSignatures(Extension):
    """Gives each attrs class the ``__init__`` that attrs writes for it."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Treat all classes of a package."""
        self._treat(pkg)

    def _treat(self, owner: Module | Class) -> None:
        for member in list(owner.members.values()):
            if member.is_alias or not isinstance(member, Module | Class):
                continue
            if (
                isinstance(member, Class)
                and "__init__" not in member.members
                and decorator(member) is not None
            ):
                function = Function("__init__", parent=member, parameters=signature(member), returns="None")
                member.set_member("__init__", function)
            self._treat(member)
