"""``compatkit policy``: what new versions must keep working with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import NamedDataOptions
from compatkit.cli.options import (
    Options,
    argument,
    batch_size_option,
    bn_policy_option,
    command,
    group,
    option,
)
from compatkit.cli.output import clean, columns, emit, next_step, paragraph, print_rich, progress, rows
from compatkit.cli.private_keys import author_label
from compatkit.cli.releases import SigningOptions
from compatkit.cli.roots import open_registry, open_store
from compatkit.cli.tables import TableOptions
from compatkit.errors import DataError, NotFound, UsageError
from compatkit.registry.policies import MODES, Policy
from compatkit.registry.policy_scopes import WILDCARDS, check_scope

if TYPE_CHECKING:
    from compatkit.components.outcomes import PolicyOutcome
    from compatkit.data.dataset import Split
    from compatkit.registry.policylog import Revision
    from compatkit.registry.store import Store


policy_command = group(
    "policy",
    """Require that new versions keep working with released parts. A policy measures a new version before it is
    published: if it fails, only the next MAJOR number is open to it.

    Examples:
        # bind the next versions
        compatkit policy set digits/mnist.extractor --mode backward --data mnist
        # measure what a policy asks
        compatkit policy test digits/mnist.extractor
    """,
)


class PolicySettings(Options):
    """Settings of a policy."""

    mode: str = option("Parts that must keep working together.", choices=MODES)
    tolerance: float = option("Accepted loss of accuracy, 0.03 for 3 points.", default=0.0)
    metric: str = option("Metric that decides.", default="recombination_accuracy")
    bn_policy: str = bn_policy_option
    cap: int | None = option("Measure on N images, class-balanced; default: on all.", min=1, metavar="N")
    seed: int = option("Seed of that draw and of the order.", min=0, default=0)
    batch_size: int = batch_size_option
    across_major: bool = option("Also bind new MAJOR versions.")


class PolicySetOptions(PolicySettings, NamedDataOptions, SigningOptions):
    """Arguments and options of ``policy set``."""

    scope: str = argument()
    name: str | None = option("Images to measure on, such as mnist/test, or a path.", "--data")
    recipe: Path | None = option("Measure on the test set of this recipe's task instead.")


@command("set", PolicySetOptions, group=policy_command)
def set_command(options: PolicySetOptions) -> int | None:
    """Set the policy of SCOPE: a name, a prefix such as digits/, or a glob.

    Examples:
        # new versions must work with the released heads, but for 3 points
        compatkit policy set digits/mnist.extractor --mode backward --data mnist --tolerance .03
    """
    registry, scope, images = open_registry(), check_scope(options.scope), None
    if options.mode != "none":
        images = _deciding(options)
    elif options.name is not None or options.recipe is not None:
        raise UsageError("--mode none measures nothing; leave --data and --recipe out.")
    policy = registry.policies.set(scope, data=images, **options.values_of(PolicySettings))
    policies = registry.store.policies
    bound, others = list[str](), list[str]()
    for component in registry.store.index.listing():
        if (revision := policies.of(component.name)) and revision.scope == scope:
            binds = component.error or policy.concerns(component.kind)
            (bound if binds else others).append(component.name)
    if options.json:
        number = revision.number if (revision := policies.current(scope)) else 0
        return emit(
            {"revision": number, "policy": policy.to_json(), "binds": bound, "asks_nothing_of": others}
        )
    paragraph(f"policy {policy}")
    if images is not None:
        click.echo(f"measured on {images.name}, {len(images):,} images, {images.digest}")
    paragraph(f"binds {', '.join(bound) or 'no name yet'}")
    if others and policy.mode != "none":
        paragraph(f"does not bind {', '.join(others)}: the mode is about other kinds of parts")
    if bound:
        next_step("policy", "test", bound[0])


class PolicyShowOptions(Options):
    """Arguments and options of ``policy show``."""

    name: str | None = argument()
    log: bool = option("Show all changes with their dates, oldest first.")


@command("show", PolicyShowOptions, group=policy_command)
def show_command(options: PolicyShowOptions) -> int | None:
    """Show the policy that binds NAME, or that of a scope; without NAME, all policies.

    Examples:
        # all policies
        compatkit policy show
        # one with its history
        compatkit policy show digits/mnist.extractor --log
    """
    store = open_store()
    if options.name is None:
        if options.log:
            raise UsageError("--log needs the NAME of one policy.")
        every = store.policies.all()
        if options.json:
            return emit([_to_json(policy) for policy in every])
        return _show_table(every)
    scope = check_scope(options.name)
    if options.log:
        return _show_log(store, scope, options.json)
    revision = store.policies.current(scope) if set(WILDCARDS) & set(scope) else store.policies.of(scope)
    if revision is None or revision.policy is None:
        raise NotFound(f"no policy binds {scope!r}: {_known(store)}.", subject=scope)
    if options.json:
        return emit(_to_json(revision))
    rows(_texts(revision, revision.policy))


class PolicyClearOptions(SigningOptions):
    """Arguments and options of ``policy clear``."""

    scope: str = argument()


@command("clear", PolicyClearOptions, group=policy_command)
def clear_command(options: PolicyClearOptions) -> int | None:
    """Remove SCOPE's own policy, so that a wider one applies.

    Examples:
        # let new versions change freely again
        compatkit policy clear digits/mnist.extractor
    """
    store, scope = open_store(), check_scope(options.scope)
    revision = store.policies.current(scope)
    if revision is None:
        raise NotFound(f"{scope!r} never had a policy: {_known(store)}.", subject=scope)
    store.set_policy(scope, None)
    before = revision.policy
    if options.json:
        return emit({"scope": scope, "before": before and before.to_json()})
    was = "" if before is None else f"; it was {before.mode}"
    click.echo(f"{scope} has no policy of its own{was}")


class PolicyTestOptions(NamedDataOptions, TableOptions):
    """Arguments and options of ``policy test``."""

    references: tuple[str, ...] = argument(required=True, metavar="REFERENCE...")
    name: str | None = option("Test as the next version of NAME.", "--as")
    against: tuple[str, ...] = option("Partners, instead of those that the policy finds.", metavar="PATTERN")
    names: tuple[str, ...] = option("Images by name or path; may be repeated.", "--data")
    recipe: Path | None = option("Use the images of this recipe's tasks.")


@command("test", PolicyTestOptions, group=policy_command)
def test_command(options: PolicyTestOptions) -> int | None:
    """Measure components as their policies require; show the matrix and the version numbers open to each.

    Nothing is published; the figures are recorded. Exit code 1 if one fails.

    Examples:
        # measure it as its policy requires
        compatkit policy test digits/mnist.extractor
        # would this be accepted as the next version?
        compatkit policy test trial/new.extractor --as digits/mnist.extractor
    """
    from compatkit.components.outcomes import PolicyOutcomes

    registry = open_registry()
    references = (str(pinned) for text in options.references for pinned in registry.store.select(text))
    images = options.at_hand(options.names, options.recipe)
    outcomes: dict[str, PolicyOutcome] = {}
    for reference in dict.fromkeys(references):
        with progress(f"policy of {reference}") as report:
            outcomes[reference] = registry.policies.test(
                reference, name=options.name, against=options.against or None, data=images, progress=report
            )
    options.write_tables(PolicyOutcomes(tuple(outcomes.values())))
    code = 0 if all(outcome.passed for outcome in outcomes.values()) else 1
    if options.json:
        return emit([{"reference": name, **outcome.to_json()} for name, outcome in outcomes.items()], code)
    for reference, outcome in outcomes.items():
        role = f"the next version of {options.name}" if options.name else "it is"
        click.echo(f"tested {reference} as {role}")
        click.echo(clean(str(outcome)))
        if outcome.matrix is not None:
            click.echo()
            print_rich(outcome.matrix)
    return code


def _deciding(options: PolicySetOptions) -> Split:
    """Return the images to measure on: the test split, unless the name ends with /train."""
    from compatkit.experiments.recipes import data_sets

    name, recipe = options.name, options.recipe
    if recipe is not None:
        sets = data_sets(recipe, **options.load_arguments)
        matches = [data for data in sets if name in (None, data.name, data.test.name)]
        if len({data.test.digest for data in matches}) != 1:
            known = ", ".join(data.test.name for data in sets)
            raise DataError(f"{recipe} has the test sets {known}; name one of them with --data.")
        return matches[0].test
    if name is None:
        raise UsageError("Expected images to measure on: --data mnist/test, or --recipe FILE.")
    data = options.finder(damaged=options.damaged)(name)
    return data.train if name.endswith("/train") else data.test


def _to_json(revision: Revision) -> dict[str, Any]:
    policy = revision.policy and revision.policy.to_json()
    value = {"scope": revision.scope, "revision": revision.number, "time": revision.time, "policy": policy}
    optional = {"admitted": revision.admitted, "by": revision.by, "commit": revision.commit}
    return value | {key: text for key, text in optional.items() if text}


def _texts(revision: Revision, policy: Policy) -> dict[str, str]:
    """Return a revision as labeled texts."""
    texts = {"scope": revision.scope, "mode": policy.mode}
    if policy.data is not None:
        drawn = f"{policy.cap:,} images, drawn with seed {policy.seed}" if policy.cap else "all images"
        texts |= {
            "data": f"{policy.data.name} ({policy.data.digest})",
            "images": f"{drawn}, in batches of {policy.batch_size}",
            "metric": f"{policy.metric} {policy.metric_version}",
            "statistics": policy.bn_policy,
            "tolerance": f"{policy.tolerance:g} below the bound",
            "binds": "every version" if policy.across_major else "within one MAJOR line",
        }
    return texts | {"revision": str(revision.number), "since": revision.time}


def _show_table(revisions: list[Revision]) -> None:
    """Print policies, the most specific first."""
    if not revisions:
        click.echo("no policies")
        return
    table: list[tuple[str, ...]] = [("scope", "mode", "data", "tolerance", "statistics", "revision", "since")]
    for revision in revisions:
        if (policy := revision.policy) is not None:
            measured = (
                (policy.data.name, f"{policy.tolerance:g}", policy.bn_policy) if policy.data else ("",) * 3
            )
            table.append((revision.scope, policy.mode, *measured, str(revision.number), revision.time))
    columns(table, right=(3, 5))


def _show_log(store: Store, scope: str, machine: bool) -> int | None:
    """Print all changes of a scope's policy, or of the one that binds a name."""
    history = store.policies.history(scope)
    if not history and (revision := store.policies.of(scope)) is not None:
        history = store.policies.history(revision.scope)
    if not history:
        raise NotFound(f"{scope!r} never had a policy: {_known(store)}.", subject=scope)
    if machine:
        return emit([_to_json(revision) for revision in history])
    for revision in history:
        text = str(revision.policy) if revision.policy is not None else f"{revision.scope}: cleared"
        text = f"{revision.admitted} was accepted unmeasured" if revision.admitted else text
        by = f" (by {author_label(revision.by)})" if revision.by else ""
        click.echo(clean(f"{revision.number}  {revision.time}  {text}{by}"))


def _known(store: Store) -> str:
    """List the existing policies, for messages."""
    known = [revision.scope for revision in store.policies.all()]
    return f"there are policies for {', '.join(known)}" if known else "there are no policies"
