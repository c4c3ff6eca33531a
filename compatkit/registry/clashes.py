"""Advice for a version number that two components claim, in one registry or in two: the commands that free it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compatkit.registry.names import Reference
    from compatkit.registry.refs import References


def commands_to_free(reference: Reference, mine: References, theirs: References | None = None) -> str:
    """Return how to free a version number in one's own registry, for a message; nothing is lost by it.

    Args:
        reference: Name and number.
        mine: Names and versions of one's own registry.
        theirs: Names and versions of the other registry, if there is one; the suggested number is free there too.
    """
    name, version = reference.name, reference.version
    if version is None or version in mine.withdrawals(name).numbers():
        return "the number stays used here, because the version was withdrawn"
    registries = (mine,) if theirs is None else (mine, theirs)
    used = {number for registry in registries for number in registry.used_numbers(name)}
    free = max({version, *used}).bumped("major")
    return (
        f"`compatkit copy {name}@{version} --as {name}@{free}` (or --as another name), then "
        f"`compatkit drop {name}@{version} --reason TEXT`"
    )
