"""Run a plugin's code: name the plugin in errors, suggest similar names, and restore global state.

A plugin can change torch's random state, default dtype or thread count at import; such changes are undone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import attrs

from compatkit.errors import PluginError, UsageError, near


@attrs.frozen
class Owner:
    """Origin of a plugin, for messages, listings and manifests.

    Attributes:
        plugin: Key (``regularizers.dcc``) or instance name.
        distribution: Its distribution; None if the caller passed it in.
    """

    plugin: str
    distribution: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.distribution is None:
            return f"Plugin {self.plugin!r}"
        return f"Plugin {self.plugin!r} of {self.distribution} {self.version or '(no version)'}"

    def error(self, message: str, hook: str | None = None) -> PluginError:
        """Return a PluginError whose message starts with the plugin and its distribution.

        Args:
            message: The fault and its remedy.
            hook: Name of the hook, if any.
        """
        return PluginError(
            f"{self}: {message}", plugin=self.plugin, distribution=self.distribution, hook=hook
        )


def described(error: BaseException) -> str:
    """Return type and message of an error, with the last line of the plugin's own code in its traceback.

    For a UsageError, only the message. The plugin's package is that of the first frame outside of compatkit, torch and
    the standard library; later frames of other packages are skipped.
    """
    if isinstance(error, UsageError):
        return str(error)
    package = file = ""
    line = 0
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        owner = str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if not package and owner not in ("compatkit", "torch", *sys.stdlib_module_names):
            package = owner
        if package and owner == package:
            file, line = frame.tb_frame.f_code.co_filename, frame.tb_lineno
        frame = frame.tb_next
    return f"{type(error).__name__}: {error}" + (f" ({file}:{line})" if file else "")


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ``" Did you mean 'x'?"``, or an empty text if no known name is similar.

    Args:
        name: The unknown name.
        known: Names that exist.
        prefix: Ignored in both.
    """
    short = {known_name.removeprefix(prefix): known_name for known_name in known}
    close = near(name.removeprefix(prefix), short, 1, 0.5)
    return f" Did you mean {short[close[0]]!r}?" if close else ""


class PluginWarning(UserWarning):
    """A plugin changed global state, which was restored; or a logger failed, and the run goes on without it."""


@contextmanager
def restored_state(*, drawing: bool = False) -> Iterator[list[str]]:
    """Restore random states and torch's defaults that the body changes.

    numpy and torch are checked only if they are imported.

    Args:
        drawing: Whether the body may draw from torch's random state, which is then not restored.

    Yields:
        A list, filled with the names of the changed states after the body.
    """
    changed: list[str] = []
    had_torch = "torch" in sys.modules
    before = [(what, write, read, read()) for what, read, write in _state(drawing)]
    try:
        yield changed
    finally:
        for what, write, read, value in before:
            if not _same(value, read()):
                write(value)
                changed.append(what)
        torch = sys.modules.get("torch")
        if torch is not None and not had_torch and torch.get_default_dtype() != torch.float32:
            torch.set_default_dtype(torch.float32)
            changed.append("torch's default dtype")


_STATES = (
    ("Python's random state", "random", "getstate", "setstate"),
    ("numpy's random state", "numpy.random", "get_state", "set_state"),
    ("torch's random state", "torch", "get_rng_state", "set_rng_state"),
    ("torch's random state on the accelerator", "torch.cuda", "get_rng_state_all", "set_rng_state_all"),
    ("torch's default dtype", "torch", "get_default_dtype", "set_default_dtype"),
    ("torch's gradient mode", "torch", "is_grad_enabled", "set_grad_enabled"),
    ("torch's thread count", "torch", "get_num_threads", "set_num_threads"),
    ("torch's determinism", "torch", "are_deterministic_algorithms_enabled", "use_deterministic_algorithms"),
    ("torch's precision", "torch", "get_float32_matmul_precision", "set_float32_matmul_precision"),
)
"""Global states: description, module, getter, setter."""


def _state(drawing: bool) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """Yield name, reader and writer of each piece of global state of modules that are imported."""
    for what, name, read, write in _STATES:
        module = sys.modules.get(name)
        if module is None or (drawing and what.startswith("torch's random state")):
            continue
        if name == "torch.cuda" and not (module.is_available() and module.is_initialized()):
            continue
        yield what, getattr(module, read), getattr(module, write)


def _same(before: Any, after: Any) -> bool:
    """Compare two states: tensors, arrays, plain values, and sequences of these."""
    if isinstance(before, tuple | list):
        return len(before) == len(after) and all(map(_same, before, after))
    equal = before == after
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)
