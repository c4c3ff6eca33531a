"""Old names of methods of a registry."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import attrs


@attrs.frozen
class Former:
    """New name of a renamed method.

    Attributes:
        path: Attribute of a registry.
        takes: Parameters with other names or another order: old order, new names.
        settings: Additional arguments.
    """

    path: str
    takes: Mapping[str, str] = {}
    settings: Mapping[str, Any] = {}

    def of(self, registry: object) -> Any:
        """Return a wrapper for the old name."""
        method = attrgetter(self.path)(registry)
        if not self.takes:
            return method

        @functools.wraps(method)
        def answer(*places: Any, **named: Any) -> Any:
            by_name = dict(zip(self.takes, places, strict=False)) | named
            return method(
                **{self.takes.get(name, name): one for name, one in by_name.items()}, **self.settings
            )

        return answer


FORMER = {
    "aliases": Former("store.aliases"),
    "auxiliary_heads": Former("frozen", {"pattern": "heads"}),
    "bridges_between": Former("bridges.between"),
    "bridges_of": Former("bridges.of"),
    "build": Former("load"),
    "clear_policy": Former("policies.clear"),
    "load_recombination": Former("load"),
    "manifest": Former("store.manifest"),
    "policy": Former("policies.of"),
    "policy_history": Former("policies.history"),
    "publish_adapted": Former("publish", {"name": "name", "adapted": "what"}),
    "publish_adapter": Former("publish", {"name": "name", "adapter": "what"}),
    "publish_bridge": Former("publish", {"name": "name", "bridge": "what"}),
    "publish_recombination": Former("publish", {"name": "name", "recombination": "what"}),
    "register": Former("publish", {"name": "name", "manifest": "what", "state": "state"}),
    "rehearse": Former("publish", {"fit": "what"}, {"dry_run": True}),
    "released": Former("frozen", {"head": "head", "extractor": "extractor"}),
    "select": Former("store.select"),
    "set_policy": Former("policies.set"),
    "sign": Former("care.sign"),
    "signatures": Former("care.signatures"),
    "test_policy": Former("policies.test"),
    "verify_signatures": Former("care.verify_signatures"),
}
"""Renamed methods; the old names work with a DeprecationWarning."""
