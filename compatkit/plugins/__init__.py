"""Plugins: find and list them, use them in a run, and call their hooks in a step.

Everything is imported on first use, so that listing plugins stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compatkit.plugins.calls import Bound, check_batch, check_losses
    from compatkit.plugins.discovery import find, names
    from compatkit.plugins.files import add_file
    from compatkit.plugins.implementations import Implementation
    from compatkit.plugins.isolation import Owner, PluginWarning
    from compatkit.plugins.listed import Listed, Status, listing
    from compatkit.plugins.loading import KINDS, Offer
    from compatkit.plugins.plan import EVENTS, Member, RunPlugins
    from compatkit.plugins.selection import RegularizerConfig, regularizer_config, use
    from compatkit.plugins.settings import Setting

_MODULES = {
    "calls": ("Bound", "check_batch", "check_losses"),
    "discovery": ("find", "names"),
    "files": ("add_file",),
    "implementations": ("Implementation",),
    "isolation": ("Owner", "PluginWarning"),
    "listed": ("Listed", "Status", "listing"),
    "loading": ("KINDS", "Offer"),
    "plan": ("EVENTS", "Member", "RunPlugins"),
    "selection": ("RegularizerConfig", "regularizer_config", "use"),
    "settings": ("Setting",),
}
_SOURCES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "EVENTS",
    "KINDS",
    "Bound",
    "Implementation",
    "Listed",
    "Member",
    "Offer",
    "Owner",
    "PluginWarning",
    "RegularizerConfig",
    "RunPlugins",
    "Setting",
    "Status",
    "add_file",
    "check_batch",
    "check_losses",
    "find",
    "listing",
    "names",
    "regularizer_config",
    "use",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _SOURCES:
        return getattr(import_module(f"compatkit.plugins.{_SOURCES[name]}"), name)
    raise AttributeError(f"module 'compatkit.plugins' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
