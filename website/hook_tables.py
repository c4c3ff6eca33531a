"""Tables for authors of plugins: the hooks with what they do and when, and the limits that settings may have."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from markdown_text import code, escaped, table

from compatkit.foundation import limits
from compatkit.hooks import EFFECTS, Registration, Training
from compatkit.plugins.implementations import arguments_of
from compatkit.plugins.plan import _STEP_EVENTS, EVENTS, ONCE

LAYERS = (Registration, Training)


def documented() -> Iterator[tuple[type, str, str, str]]:
    """Yield class, name, arguments and first sentence of every hook."""
    for layer in LAYERS:
        for name, arguments in arguments_of(layer).items():
            first = (inspect.getdoc(getattr(layer, name)) or "").partition("\n\n")[0]
            yield layer, name, ", ".join(arguments), first


def overview() -> str:
    """Return a table of all hooks."""
    rows = [
        (
            f"[{code(f'{name}({arguments})')}][compatkit.hooks.{layer.__name__}.{name}]",
            escaped(does),
            called(name),
        )
        for layer, name, arguments, does in documented()
    ]
    return table(("hook", "does", "called; effects that count"), rows)


def called(name: str) -> str:
    """Return when a hook is called, and the effects that count."""
    event = name.removeprefix("compatkit_")
    if event in _STEP_EVENTS:
        return f"in every step; {', '.join(map(code, EFFECTS))}"
    if event in ONCE:
        return "once a run"
    return (
        "during the run" if event in EVENTS else "for checkpoints" if "state" in event else "when looked up"
    )


def ready_limits() -> str:
    """Return a table of the limits that ``compatkit.limits`` has ready."""
    ready = {name: value for name, value in vars(limits).items() if isinstance(value, limits.Limit)}
    return table(("ready", "takes"), [(code(name), escaped(str(value))) for name, value in ready.items()])
