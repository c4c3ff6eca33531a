"""``compatkit policy``: what new versions must keep working with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import found_in, images_at_hand
from compatkit.cli.options import (
    Asked,
    NamedDataAsked,
    PathType,
    batch_size_option,
    bn_policy_option,
    command,
    given,
    group,
    named_data_options,
    options,
)
from compatkit.cli.output import (
    clean,
    columns,
    emit,
    next_step,
    paragraph,
    print_rich,
    progress,
    rows,
    show_outcome,
)
from compatkit.cli.roots import registry, store
from compatkit.errors import DataError, NotFound, UsageError
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.policies import MODES, WILDCARDS, check_scope

if TYPE_CHECKING:
    from compatkit.data.dataset import Split
    from compatkit.registry.policylog import Revision
    from compatkit.registry.store import Store


policy_command = group(
    "policy",
    help="What new versions must keep working with. A policy measures a new version with the released parts before "
    "it is published: if it passes, it may stay within its MAJOR line, if it fails, only the next MAJOR is open.",
)


def revision(context: click.Context, parameter: click.Parameter, value: str | None) -> int | Anything | None:
    """Parse the required revision: its number, None for no policy, ``ANY`` if the option is not given."""
    if value is None:
        return ANY
    if value != "none" and not value.isdecimal():
        raise UsageError(f"--expected is the number of a revision, or 'none'; got {value!r}.")
    return None if value == "none" else int(value)


expected_option = click.option(
    "--expected",
    metavar="N",
    callback=revision,
    help="Change it only if this is the present revision ('none' for no policy). Prevents undoing another change.",
)
setting_options = options(
    click.option(
        "--tolerance",
        type=float,
        default=0.0,
        show_default=True,
        help="Accepted loss of accuracy, 0.03 for 3 points.",
    ),
    click.option(
        "--metric", default="recombination_accuracy", show_default=True, help="Metric to decide by."
    ),
    bn_policy_option,
    click.option(
        "--cap",
        type=click.IntRange(1),
        metavar="N",
        help="Decide on N images, drawn class-balanced; default: on all.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Seed of that draw and of the order.",
    ),
    batch_size_option,
    click.option("--across-major", is_flag=True, help="Also bind new MAJOR versions."),
    expected_option,
)
SETTINGS = (
    "mode",
    "tolerance",
    "metric",
    "bn_policy",
    "cap",
    "seed",
    "batch_size",
    "across_major",
    "expected",
)


class PolicySetAsked(NamedDataAsked):
    """Arguments and options of ``policy set``."""

    scope: str
    mode: str
    name: str | None
    recipe: str | None
    tolerance: float
    metric: str
    bn_policy: str
    cap: int | None
    seed: int
    batch_size: int
    across_major: bool
    expected: int | Anything | None


@command(
    "set",
    PolicySetAsked,
    help="Set the policy of SCOPE: a name, a prefix such as digits/, or a glob.",
    group=policy_command,
)
@click.argument("scope")
@click.option(
    "--mode", type=click.Choice(MODES), required=True, help="Which parts must keep working together."
)
@click.option(
    "--data", "name", metavar="NAME", help="Images to decide on, such as mnist/test; or the path of a pack."
)
@click.option(
    "--recipe", type=PathType(), metavar="FILE", help="Use the test set of this recipe's task instead."
)
@setting_options
@named_data_options
def set_command(context: click.Context, asked: PolicySetAsked) -> None:
    """Set a policy; the images are loaded once, for their digest."""
    held, scope, images = registry(context), check_scope(asked.scope), None
    if asked.mode != "none":
        images = _deciding(asked)
    elif asked.name is not None or asked.recipe is not None:
        raise UsageError("--mode none measures nothing; leave --data and --recipe out.")
    made = held.policies.set(scope, data=images, **asked.only(*SETTINGS))
    policies = held.store.policies
    here = [
        one for one in held.store.index.listing() if (found := policies.of(one.name)) and found.scope == scope
    ]
    bound = [one.name for one in here if one.error or made.concerns(one.kind)]
    others = [one.name for one in here if one.name not in bound]
    if asked.machine:
        number = found.number if (found := policies.current(scope)) else 0
        emit({"revision": number, "policy": made.to_json(), "binds": bound, "asks_nothing_of": others})
        return
    paragraph(f"policy {made}")
    if images is not None:
        click.echo(f"decided on {images.name}, {len(images):,} images, {images.digest}")
    paragraph(f"binds {', '.join(bound) or 'no name yet'}")
    if others and made.mode != "none":
        paragraph(
            f"asks nothing of {', '.join(others)}: policies measure extractors and heads, as their mode says"
        )
    if bound:
        next_step("compatkit", *given(context).words, "policy", "test", bound[0])


class PolicyShowAsked(Asked):
    """Arguments and options of ``policy show``."""

    name: str | None
    log: bool


@command(
    "show",
    PolicyShowAsked,
    help="Show the policy that binds NAME (or of a scope); without NAME, all policies.",
    group=policy_command,
)
@click.argument("name", required=False)
@click.option("--log", is_flag=True, help="Show all changes with their dates, oldest first.")
def show_command(context: click.Context, asked: PolicyShowAsked) -> None:
    """Show policies; loads no network."""
    held = store(context)
    if asked.name is None:
        if asked.log:
            raise UsageError("--log shows the changes of one policy; give its NAME.")
        every = held.policies.all()
        emit([_to_json(one) for one in every]) if asked.machine else _show_table(every)
        return
    scope = check_scope(asked.name)
    if asked.log:
        _show_log(held, scope, asked.machine)
        return
    found = held.policies.current(scope) if set(WILDCARDS) & set(scope) else held.policies.of(scope)
    if found is None or found.policy is None:
        raise NotFound(f"no policy binds {scope!r}: {_known(held)}.", subject=scope)
    if asked.machine:
        emit(_to_json(found))
    else:
        rows({label: str(value) for label, value in _facts(found).items()})


class PolicyClearAsked(Asked):
    """Arguments and options of ``policy clear``."""

    scope: str
    expected: int | Anything | None


@command(
    "clear",
    PolicyClearAsked,
    help="Remove SCOPE's own policy, so that a wider one applies.",
    group=policy_command,
)
@click.argument("scope")
@expected_option
def clear_command(context: click.Context, asked: PolicyClearAsked) -> None:
    """Clear a policy; its history is kept."""
    held, scope = store(context), check_scope(asked.scope)
    found = held.policies.current(scope)
    if found is None:
        raise NotFound(f"{scope!r} never had a policy: {_known(held)}.", subject=scope)
    held.set_policy(scope, None, expected=asked.expected)
    before = found.policy
    if asked.machine:
        emit({"scope": scope, "before": None if before is None else before.to_json()})
    else:
        was = "" if before is None else f"; it was {before.mode}"
        click.echo(f"{scope} has no policy of its own{was}")


class PolicyTestAsked(NamedDataAsked):
    """Arguments and options of ``policy test``."""

    references: tuple[str, ...]
    name: str | None
    against: tuple[str, ...]
    names: tuple[str, ...]
    recipe: str | None


@command(
    "test",
    PolicyTestAsked,
    help="Measure REFERENCEs as their policies require, and show the matrix and the version number open to each. "
    "Nothing is published; the figures are recorded. Exit code 1 if one fails.",
    group=policy_command,
)
@click.argument("references", metavar="REFERENCE...", nargs=-1, required=True)
@click.option("--as", "name", metavar="NAME", help="Test it as the next version of NAME.")
@click.option(
    "--against", multiple=True, metavar="PATTERN", help="Partners, instead of those that the policy finds."
)
@click.option("--data", "names", multiple=True, metavar="NAME", help="Available images, by name or path.")
@click.option("--recipe", type=PathType(), metavar="FILE", help="Images of this recipe's tasks.")
@named_data_options
def test_command(context: click.Context, asked: PolicyTestAsked) -> None:
    """Test released versions, or versions published under another name."""
    held = registry(context)
    wanted = list(dict.fromkeys(str(one) for text in asked.references for one in held.store.select(text)))
    images = images_at_hand(asked.names, asked.data_root, asked.download, asked.damaged, asked.recipe)
    outcomes = {}
    for reference in wanted:
        with progress(f"policy of {reference}") as report:
            outcomes[reference] = held.policies.test(
                reference, name=asked.name, against=asked.against or None, data=images, progress=report
            )
    if asked.machine:
        emit([{"reference": one, **outcome.to_json()} for one, outcome in outcomes.items()])
    else:
        for reference, outcome in outcomes.items():
            role = f"the next version of {asked.name}" if asked.name else "it is"
            click.echo(f"tested {reference} as {role}")
            show_outcome(outcome)
            if outcome.matrix is not None:
                click.echo()
                print_rich(outcome.matrix)
    context.exit(0 if all(one.passed for one in outcomes.values()) else 1)


def _deciding(asked: PolicySetAsked) -> Split:
    """Return the images to decide on: the test split, unless the name says train."""
    name, recipe = asked.name, asked.recipe
    if recipe is not None:
        from compatkit.experiments.recipes import data_sets

        sets = data_sets(recipe, root=asked.data_root, download=asked.download)
        fits = [one for one in sets if name in (None, one.name, one.test.name)]
        if len({one.test.digest for one in fits}) != 1:
            raise DataError(
                f"{recipe} has the test sets {', '.join(one.test.name for one in sets)}; name one of them with --data."
            )
        return fits[0].test
    if name is None:
        raise UsageError("The images to decide on are missing: give --data mnist/test, or --recipe FILE.")
    data = found_in(asked.data_root, asked.download, asked.damaged)(name)
    return data.train if name.endswith("/train") else data.test


def _to_json(one: Revision) -> dict[str, Any]:
    policy = None if one.policy is None else one.policy.to_json()
    told = {"scope": one.scope, "revision": one.number, "time": one.time, "policy": policy}
    return told | ({"admitted": one.admitted} if one.admitted else {})


def _facts(one: Revision) -> dict[str, Any]:
    """Return a revision as labeled texts."""
    policy = one.policy
    if policy is None:
        return {"scope": one.scope, "mode": "cleared", "revision": one.number, "since": one.time}
    told: dict[str, Any] = {"scope": one.scope, "mode": policy.mode}
    if policy.data is not None:
        drawn = f"{policy.cap:,} images, drawn with seed {policy.seed}" if policy.cap else "all images"
        told |= {
            "data": f"{policy.data.name} ({policy.data.digest})",
            "images": f"{drawn}, in batches of {policy.batch_size}",
            "metric": f"{policy.metric} {policy.metric_version}",
            "statistics": policy.normalisation,
            "tolerance": f"{policy.tolerance:g} below the bound",
            "binds": "every version" if policy.across_major else "within one MAJOR line",
        }
    return told | {"revision": one.number, "since": one.time}


def _show_table(found: list[Revision]) -> None:
    """Print policies, the most specific first."""
    if not found:
        click.echo("no policies: nothing binds new versions but what their change demands")
        return
    table: list[tuple[str, ...]] = [("scope", "mode", "data", "tolerance", "statistics", "revision", "since")]
    for one in found:
        if (policy := one.policy) is not None:
            data = policy.data.name if policy.data is not None else ""
            tolerance, statistics = (f"{policy.tolerance:g}", policy.normalisation) if data else ("", "")
            table.append((one.scope, policy.mode, data, tolerance, statistics, str(one.number), one.time))
    columns(table, right=(3, 5))


def _show_log(held: Store, scope: str, machine: bool) -> None:
    """Print all changes of a scope's policy, or of the one that binds a name.

    Raises:
        NotFound: There never was a policy.
    """
    history = held.policies.history(scope)
    if not history and (found := held.policies.of(scope)) is not None:
        history = held.policies.history(found.scope)
    if not history:
        raise NotFound(f"{scope!r} never had a policy: {_known(held)}.", subject=scope)
    if machine:
        emit([_to_json(one) for one in history])
        return
    for one in history:
        said = str(one.policy) if one.policy is not None else f"{one.scope}: cleared"
        told = f"{one.admitted} came in unmeasured" if one.admitted else said
        click.echo(clean(f"{one.number}  {one.time}  {told}"))


def _known(held: Store) -> str:
    """List the existing policies, for messages."""
    known = [one.scope for one in held.policies.all()]
    return f"there are policies for {', '.join(known)}" if known else "there are no policies"
