"""Plugins: find and list them, use them in a run, and call their hooks in a step."""

from __future__ import annotations

from compatkit.plugins.calls import Bound, check_batch, check_losses
from compatkit.plugins.discovery import Listed, Status, find, listing, names
from compatkit.plugins.files import add_file
from compatkit.plugins.implementations import Implementation
from compatkit.plugins.isolation import Owner, PluginWarning
from compatkit.plugins.loading import KINDS, Offer
from compatkit.plugins.plan import EVENTS, Member, RunPlugins
from compatkit.plugins.selection import RegularizerConfig, regularizer_config, use
from compatkit.plugins.settings import Setting

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
