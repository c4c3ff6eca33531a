"""Whose a plugin is, and which name was meant: what every message about a plugin starts and ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import attrs

from compatkit.errors import PluginError


@attrs.frozen
class Owner:
    """Whose plugin it is: for messages, listings and manifests.

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
        """Return a PluginError that starts with whose plugin it is."""
        return PluginError(
            f"{self}: {message}", plugin=self.plugin, distribution=self.distribution, hook=hook
        )


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ``" Did you mean 'x'?"``, or nothing where no known name is near."""
    short = {one.removeprefix(prefix): one for one in known}
    near = difflib.get_close_matches(name.removeprefix(prefix), short, n=1, cutoff=0.5)
    return f" Did you mean {short[near[0]]!r}?" if near else ""
