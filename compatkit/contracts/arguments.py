"""Calls with arguments that there are not: answered with the nearest that there are, in the place of a TypeError."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from compatkit.errors import UsageError, near

Made = TypeVar("Made", bound=Callable[..., Any])
_ELSEWHERE = {
    "epochs": "steps",
    "num_epochs": "steps",
    "max_epochs": "steps",
    "max_steps": "steps",
    "learning_rate": "lr",
    "initial_lr": "lr",
}
"""What other libraries call an argument, and what it is called here."""
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def named(made: Made) -> Made:
    """Let a function, or a class with all its public methods, answer arguments that it does not take.

    Raises:
        UsageError: By what was made: an argument is unknown, missing, or given by its place where it needs its name;
            ``subject`` is its name.
    """
    given: Any = made
    if not inspect.isclass(given):
        return _answering(given, given.__name__, "argument")
    _answer_all(given)
    return made


def _answer_all(made: type) -> None:
    for name, member in inspect.getmembers(made):
        whose = f"{made.__name__}.{name}"
        if name == "__init__":
            setattr(made, name, _answering(member, made.__name__, "setting", bound=1))
        elif name.startswith("_"):
            continue
        elif inspect.isfunction(member):
            setattr(made, name, _answering(member, whose, "argument", bound=1))
        elif inspect.ismethod(member):
            setattr(made, name, classmethod(_answering(member.__func__, whose, "argument", bound=1)))


def _answering(function: Any, whose: str, what: str, bound: int = 0) -> Any:
    """Wrap a function whose first ``bound`` parameters (self) are no arguments."""
    signature = inspect.signature(function)
    takes = dict(list(signature.parameters.items())[bound:])

    @functools.wraps(function)
    def called(*given: Any, **settings: Any) -> Any:
        try:
            return function(*given, **settings)
        except TypeError:
            try:
                signature.bind(*given, **settings)
            except TypeError:
                raise _refusal(whose, what, takes, len(given) - bound, settings) from None
            raise  # of the function itself

    return called


def _refusal(
    whose: str,
    what: str,
    takes: Mapping[str, inspect.Parameter],
    places: int,
    settings: Mapping[str, Any],
) -> UsageError:
    """Return what is said of a call that does not fit."""
    known = [name for name, one in takes.items() if one.kind in _BY_NAME]
    placed = [name for name, one in takes.items() if one.kind in _BY_PLACE]
    if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        for name in (one for one in settings if one not in known):
            other = _ELSEWHERE.get(name)
            close = [other] if other in known else near(name, known)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known) or 'none'}."
            return UsageError(f"{whose} has no {what} {name!r}; {hint}", subject=name)
    for name, one in takes.items():
        by_place = name in placed[:places]
        if by_place and name in settings:
            return UsageError(f"{whose} got {name!r} twice: by its place and by its name.", subject=name)
        if one.default is one.empty and one.kind not in _REST and not by_place and name not in settings:
            way = f" (by its name, {name}=...)" if places > len(placed) else ""
            return UsageError(f"{whose} lacks {name!r}{way}; it takes {', '.join(takes)}.", subject=name)
    alone = ", ".join(placed) or "nothing"
    rest = [name for name in known if name not in placed]
    name = rest[0] if rest else ""
    hint = f" Name the others, such as {name}=...; there are {', '.join(rest)}." if rest else ""
    return UsageError(f"{whose} takes {alone} without a name; {places} came.{hint}", subject=name)
