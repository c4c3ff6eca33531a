"""Policies in words, in a table, as JSON, and as the history of their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.output import clean, columns, emit
from compatkit.errors import NotFound

if TYPE_CHECKING:
    from compatkit.registry.policylog import Revision
    from compatkit.registry.store import Store


def as_json(one: Revision) -> dict[str, Any]:
    """Return a revision as JSON values."""
    policy = None if one.policy is None else one.policy.to_json()
    told = {"scope": one.scope, "revision": one.number, "time": one.time, "policy": policy}
    return told | ({"admitted": one.admitted} if one.admitted else {})


def facts(one: Revision) -> dict[str, Any]:
    """Return label and value of all that a revision says."""
    policy = one.policy
    if policy is None:
        return {"scope": one.scope, "mode": "cleared", "revision": one.number, "since": one.time}
    told: dict[str, Any] = {"scope": one.scope, "mode": policy.mode}
    if policy.data is not None:
        count = (
            "all images" if policy.cap is None else f"{policy.cap:,} images, drawn with seed {policy.seed}"
        )
        told |= {
            "data": f"{policy.data.name} ({policy.data.digest})",
            "images": f"{count}, in batches of {policy.batch_size}",
            "metric": f"{policy.metric} {policy.metric_version}",
            "statistics": policy.normalisation,
            "tolerance": f"{policy.tolerance:g} below the bound",
            "binds": "every version" if policy.across_major else "within one MAJOR line",
        }
    return told | {"revision": one.number, "since": one.time}


def show_table(found: list[Revision]) -> None:
    """Print policies, the most specific first."""
    if not found:
        click.echo("no policies: nothing binds new versions but what their change demands")
        return
    table: list[tuple[str, ...]] = [("scope", "mode", "data", "tolerance", "statistics", "revision", "since")]
    for one in found:
        policy = one.policy
        if policy is not None:
            data = policy.data.name if policy.data is not None else ""
            tolerance, statistics = (f"{policy.tolerance:g}", policy.normalisation) if data else ("", "")
            table.append((one.scope, policy.mode, data, tolerance, statistics, str(one.number), one.time))
    columns(table, right=(3, 5))


def show_log(held: Store, scope: str, machine: bool) -> None:
    """Print every change of a scope's policy, or of the one that binds a name.

    Raises:
        NotFound: There never was one.
    """
    history = held.policies.history(scope)
    if not history and (found := held.policies.of(scope)) is not None:
        history = held.policies.history(found.scope)
    if not history:
        raise NotFound(f"{scope!r} never had a policy: {what_there_is(held)}.", subject=scope)
    if machine:
        emit([as_json(one) for one in history])
        return
    for one in history:
        said = str(one.policy) if one.policy is not None else f"{one.scope}: cleared"
        click.echo(
            clean(
                f"{one.number}  {one.time}  {f'{one.admitted} came in unmeasured' if one.admitted else said}"
            )
        )


def what_there_is(held: Store) -> str:
    """Return which policies there are, for messages."""
    known = [one.scope for one in held.policies.all()]
    return f"there are policies for {', '.join(known)}" if known else "there are no policies"
