"""One thing that was looked at, and what is to be done about it."""

from __future__ import annotations

from typing import Literal

import attrs

Topic = Literal[
    "python", "libraries", "processor", "accelerator", "storage", "terminal", "plugins", "registry", "remotes"
]
State = Literal["ok", "warning", "problem"]


@attrs.frozen
class Observation:
    """One thing that was looked at.

    Attributes:
        topic: What it belongs to.
        subject: What was looked at: a library, a folder, a variable.
        state: ``problem``: something will fail; ``warning``: something may.
        found: What was found.
        remedy: What to do; empty if nothing.
        damaged: Whether files of a registry are damaged.
    """

    topic: Topic
    subject: str
    state: State
    found: str
    remedy: str = ""
    damaged: bool = False
