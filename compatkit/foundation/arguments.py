"""Raise ``UsageError`` with a suggestion, instead of ``TypeError``, for calls with wrong arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from compatkit.errors import UsageError, near

T = TypeVar("T", bound=Callable[..., Any])
_FOREIGN_NAMES = {
    "epochs": "steps",
    "num_epochs": "steps",
    "max_epochs": "steps",
    "max_steps": "steps",
    "learning_rate": "lr",
    "initial_lr": "lr",
    "backbone": "model",
    "model_name": "model",
    "split": "cut",
    "point": "cut",
    "pretrained": "weights='pretrained'",
}
"""Names of arguments in other libraries, and their names here."""
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def checks_arguments(target: T) -> T:
    """Make a function, or a class with its public methods, raise ``UsageError`` for arguments that do not match.

    Raises:
        UsageError: When the result is called: an argument is unknown, missing, or positional where a keyword is
            required; ``subject`` is its name.
    """
    if not inspect.isclass(target):
        return _checking(target, target.__name__, "argument")
    _check_methods(target)
    return cast("T", target)


def texts_of(value: Any, argument: str, what: str) -> list[str]:
    """Return an argument that is a string, or several strings, as a list.

    Args:
        value: The argument.
        argument: Its name.
        what: Meaning of one string, with an example, for the message.

    Raises:
        UsageError: It is neither; ``subject`` is the value.
    """
    if isinstance(value, str):
        return [value]
    several = isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)
    texts: list[Any] = list(value) if several else [value]
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(
                f"{argument}= expects {what}, or a list of these; got {text!r:.80}.", subject=text
            )
    return texts


def _check_methods(kind: type) -> None:
    for name, member in inspect.getmembers(kind):
        qualified_name = f"{kind.__name__}.{name}"
        if name == "__init__":
            setattr(kind, name, _checking(member, kind.__name__, "setting", bound=1))
        elif name.startswith("_"):
            continue
        elif inspect.isfunction(member):
            setattr(kind, name, _checking(member, qualified_name, "argument", bound=1))
        elif inspect.ismethod(member):
            setattr(kind, name, classmethod(_checking(member.__func__, qualified_name, "argument", bound=1)))


def _checking(function: Any, owner: str, what: str, bound: int = 0) -> Any:
    """Wrap a function; the first ``bound`` parameters (self) do not count as arguments."""
    signature = inspect.signature(function)
    takes = dict(list(signature.parameters.items())[bound:])

    @functools.wraps(function)
    def called(*arguments: Any, **settings: Any) -> Any:
        try:
            return function(*arguments, **settings)
        except TypeError:
            try:
                signature.bind(*arguments, **settings)
            except TypeError:
                raise _refusal(owner, what, takes, len(arguments) - bound, settings) from None
            raise  # raised inside the function

    return called


def _refusal(
    owner: str, what: str, takes: Mapping[str, inspect.Parameter], count: int, settings: Mapping[str, Any]
) -> UsageError:
    """Return the error for a call that does not match the signature."""
    known = [name for name, parameter in takes.items() if parameter.kind in _BY_NAME]
    positional = [name for name, parameter in takes.items() if parameter.kind in _BY_POSITION]
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in takes.values()):
        for name in (setting for setting in settings if setting not in known):
            other = _FOREIGN_NAMES.get(name, "")
            close = [other] if other.partition("=")[0] in known else near(name, known)
            meant = close[0] if close and "=" in close[0] else repr(close[0]) if close else ""
            hint = f"did you mean {meant}?" if close else f"it takes {', '.join(known) or 'none'}."
            return UsageError(f"{owner} has no {what} {name!r}; {hint}", subject=name)
    for name, parameter in takes.items():
        by_position = name in positional[:count]
        if by_position and name in settings:
            return UsageError(f"{owner} got {name!r} twice: by position and by name.", subject=name)
        if (
            parameter.default is parameter.empty
            and parameter.kind not in _REST
            and not by_position
            and name not in settings
        ):
            by_name = f" (as {name}=...)" if count > len(positional) else ""
            return UsageError(f"{owner} lacks {name!r}{by_name}; it takes {', '.join(takes)}.", subject=name)
    alone = ", ".join(positional) or "nothing"
    rest = [name for name in known if name not in positional]
    name = rest[0] if rest else ""
    hint = f" Name the others, such as {name}=...; there are {', '.join(rest)}." if rest else ""
    return UsageError(f"{owner} takes {alone} by position; got {count} arguments.{hint}", subject=name)
