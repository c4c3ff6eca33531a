"""What a list of components tells of each name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Listed:
    """A name with versions that are not withdrawn; the facts are those of the latest.

    Attributes:
        version: The latest.
        versions: All of them, rising.
        aliases: Version by alias.
        error: What is damaged; nothing else is known then. ``""`` for a sound one.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    kind: str = ""
    parameters: int = 0
    model: str = ""
    split: str = ""
    aliases: Mapping[str, str] = attrs.field(factory=dict)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; of a damaged one, names, versions and error only."""
        place = {"name": self.name, "version": self.version, "versions": list(self.versions)}
        if self.error:
            return {**place, "error": self.error}
        facts = {"kind": self.kind, "parameters": self.parameters, "model": self.model, "split": self.split}
        return {**place, **facts, "aliases": dict(self.aliases)}
