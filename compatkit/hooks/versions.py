"""Versions of the hooks: since when each exists, and which will go.

Rules: a new hook, a new argument of a hook or a new attribute of what it is given raises the minor version, and plugins
for an earlier minor version run unchanged. A hook or attribute is removed or changed in meaning only with the major
version, after at least one minor version in which it is deprecated: it works, and a warning names its replacement.
"""

from __future__ import annotations

import attrs

HOOK_API = 1
"""Major version; a plugin module states it as ``compatkit_api = 1``."""
HOOK_VERSION = f"{HOOK_API}.1"
"""Version of the hooks; a plugin that needs hooks of version 1.1 states ``compatkit_api = ">=1.1,<2"``."""

SINCE = {
    "regularizers": "1.0",
    "metrics": "1.0",
    "builders": "1.0",
    "data_sets": "1.0",
    "loaders": "1.0",
    "loggers": "1.0",
    "remotes": "1.0",
    "exporters": "1.0",
    "studies": "1.0",
    "rungs": "1.0",
    "launchers": "1.0",
    "task": "1.0",
    "set_up": "1.0",
    "pretrain": "1.0",
    "sampler": "1.1",
    "views": "1.0",
    "joint_losses": "1.1",
    "further_views": "1.0",
    "sample_losses": "1.1",
    "losses": "1.0",
    "combine_gradients": "1.1",
    "after_backward": "1.0",
    "after_step": "1.0",
    "after_epoch": "1.0",
    "after_evaluation": "1.1",
    "finish": "1.0",
    "teardown": "1.1",
    "state": "1.0",
    "load_state": "1.0",
}
"""Version in which each hook came, by name without ``compatkit_``."""


@attrs.frozen
class Deprecation:
    """A hook that will be removed.

    Attributes:
        since: Version of the hooks that deprecates it.
        replacement: What to use in its place, as a phrase: ``compatkit_after_step``.
        removal: Major version without it.
    """

    since: str
    replacement: str
    removal: str


DEPRECATED: dict[str, Deprecation] = {}
"""Deprecated hooks, by name without ``compatkit_``."""
