"""Plugin ownership and did-you-mean hints, as messages about plugins use them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from types import TracebackType

import attrs

from compatkit.errors import PluginError


@attrs.frozen
class Owner:
    """Where a plugin comes from: for messages, listings and manifests.

    Attributes:
        plugin: Key (``regularizers.dcc``) or instance name.
        distribution: Installed distribution that brought it; None where the caller handed it in.
    """

    plugin: str
    distribution: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.distribution is None:
            return f"Plugin {self.plugin!r}"
        return f"Plugin {self.plugin!r} of {self.distribution} {self.version or '(no version)'}"

    def error(self, message: str, hook: str | None = None) -> PluginError:
        """Return a PluginError whose message starts with the plugin and its distribution."""
        return PluginError(
            f"{self}: {message}", plugin=self.plugin, distribution=self.distribution, hook=hook
        )


def raised(error: BaseException) -> str:
    """Return kind and text of what a plugin's code raised, with the last line of the plugin that led to it.

    The plugin's code is the package or module of the first frame that is none of compatkit, torch and Python's own
    library, which stand before it where a hook is decorated; what it calls in other packages is passed over.
    """
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
    """Return ``" Did you mean 'x'?"``, or nothing where no known name is near."""
    short = {one.removeprefix(prefix): one for one in known}
    near = difflib.get_close_matches(name.removeprefix(prefix), short, n=1, cutoff=0.5)
    return f" Did you mean {short[near[0]]!r}?" if near else ""
