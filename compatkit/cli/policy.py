"""``compatkit policy``: what new versions have to keep working with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import StatisticsType, data_options, given, json_option, registry_option
from compatkit.cli.outcome import found_in, images_at_hand, show_outcome
from compatkit.cli.output import emit, next_step, paragraph, print_matrix, progress, rows
from compatkit.cli.policies import as_json, facts, show_log, show_table, what_there_is
from compatkit.cli.roots import registry, store
from compatkit.contracts.batchnorm import DEFAULT
from compatkit.errors import DataError, NotFound, UsageError
from compatkit.registry.policies import MODES, WILDCARDS, check_scope

if TYPE_CHECKING:
    from compatkit.data.dataset import Split


@click.group(
    "policy",
    help="What new versions have to keep working with. A policy measures a new version with the released parts before "
    "it is published: what passes stays within its MAJOR line, what fails is offered as the next MAJOR only.",
)
def policy_command() -> None:
    """Set, show, test and clear policies."""


def expected_option(function: Any) -> Any:
    """Add ``--expected``."""
    return click.option(
        "--expected",
        metavar="N",
        help="Change it only if this revision holds now ('none' if no policy); else somebody else's change is undone.",
    )(function)


@policy_command.command("set", help="Set the policy of SCOPE: a name, a prefix such as digits/, or a glob.")
@click.argument("scope")
@click.option("--mode", type=click.Choice(MODES), required=True, help="Who has to keep working with whom.")
@click.option(
    "--data", "name", metavar="NAME", help="Images that decide, such as mnist/test; or the path of a pack."
)
@click.option(
    "--recipe", type=click.Path(), metavar="FILE", help="Take the test set of this recipe's task instead."
)
@click.option(
    "--tolerance",
    type=float,
    default=0.0,
    show_default=True,
    help="Accuracy that may be lost, 0.03 for 3 points.",
)
@click.option("--metric", default="recombination_accuracy", show_default=True, help="What is measured.")
@click.option(
    "--bn-policy",
    "--normalisation",
    "bn_policy",
    type=StatisticsType(),
    default=DEFAULT,
    show_default=True,
    help="Statistics of batch normalisation: of each batch, as stored, estimated anew, or mixed.",
)
@click.option(
    "--cap",
    type=click.IntRange(1),
    metavar="N",
    help="Decide on N images, drawn class-balanced; else on all.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of that draw and of the order."
)
@click.option(
    "--batch-size", type=click.IntRange(2), default=256, show_default=True, help="Images in a batch."
)
@click.option("--across-major", is_flag=True, help="Bind new MAJOR versions too.")
@expected_option
@data_options
@registry_option
@json_option
@click.pass_context
def set_command(
    context: click.Context,
    scope: str,
    name: str | None,
    recipe: str | None,
    expected: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
    **settings: Any,
) -> None:
    """Set a policy; the images are loaded once, for their digest."""
    held = registry(context)
    scope = check_scope(scope)
    images = None
    if settings["mode"] != "none":
        images = _deciding(name, recipe, data_root, download)
    elif name is not None or recipe is not None:
        raise UsageError("The mode none measures nothing; leave --data and --recipe out.")
    wanted: dict[str, Any] = {} if expected is None else {"expected": _expected(expected)}
    made = held.policies.set(scope, data=images, **settings, **wanted)
    here = [
        one
        for one in held.store.index.listing()
        if (found := held.store.policies.of(one.name)) and found.scope == scope
    ]
    bound = [one.name for one in here if one.error or made.concerns(one.kind)]
    others = [one.name for one in here if one.name not in bound]
    number = found.number if (found := held.store.policies.current(scope)) else 0
    if machine:
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


@policy_command.command(
    "show", help="Show the policy that binds NAME (or of a scope); all policies without NAME."
)
@click.argument("name", required=False)
@click.option("--log", is_flag=True, help="Show every change, oldest first: what and when; who is not known.")
@registry_option
@json_option
@click.pass_context
def show_command(context: click.Context, name: str | None, log: bool, machine: bool) -> None:
    """Show policies; loads no network."""
    held = store(context)
    if name is None:
        if log:
            raise UsageError("--log shows the changes of one policy; name it.")
        found = held.policies.all()
        emit([as_json(one) for one in found]) if machine else show_table(found)
        return
    scope = check_scope(name)
    if log:
        show_log(held, scope, machine)
        return
    found = held.policies.current(scope) if set(WILDCARDS) & set(scope) else held.policies.of(scope)
    if found is None or found.policy is None:
        raise NotFound(f"no policy binds {scope!r}: {what_there_is(held)}.", subject=scope)
    if machine:
        emit(as_json(found))
        return
    rows({label: str(value) for label, value in facts(found).items()})


@policy_command.command(
    "clear", help="Let SCOPE have no policy of its own, so that a wider one counts again."
)
@click.argument("scope")
@expected_option
@registry_option
@json_option
@click.pass_context
def clear_command(context: click.Context, scope: str, expected: str | None, machine: bool) -> None:
    """Clear a policy; its history stays."""
    held, scope = store(context), check_scope(scope)
    before = held.policies.current(scope)
    if before is None:
        raise NotFound(f"{scope!r} never had a policy: {what_there_is(held)}.", subject=scope)
    held.set_policy(scope, None, **({} if expected is None else {"expected": _expected(expected)}))
    if machine:
        emit({"scope": scope, "before": None if before.policy is None else before.policy.to_json()})
        return
    click.echo(
        f"{scope} has no policy of its own"
        + ("" if before.policy is None else f"; it was {before.policy.mode}")
    )


@policy_command.command(
    "test",
    help="Measure REFERENCEs as their policies ask, and show the matrix and the number that each may get. Nothing is "
    "published; the figures are kept. Exit code 1 where one fails.",
)
@click.argument("references", metavar="REFERENCE...", nargs=-1, required=True)
@click.option("--as", "name", metavar="NAME", help="Test it as the next version of NAME.")
@click.option(
    "--against", multiple=True, metavar="PATTERN", help="Partners in place of those that the policy finds."
)
@click.option("--data", "names", multiple=True, metavar="NAME", help="Images at hand, by name or path.")
@click.option("--recipe", type=click.Path(), metavar="FILE", help="Images of this recipe's tasks.")
@data_options
@registry_option
@json_option
@click.pass_context
def test_command(
    context: click.Context,
    references: tuple[str, ...],
    name: str | None,
    against: tuple[str, ...],
    names: tuple[str, ...],
    recipe: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Test released versions, or what was published under another name."""
    held = registry(context)
    wanted = list(dict.fromkeys(str(one) for text in references for one in held.store.select(text)))
    images = images_at_hand(names, recipe, data_root, download)
    outcomes = []
    for reference in wanted:
        with progress(f"policy of {reference}") as report:
            outcomes.append(
                held.policies.test(
                    reference, name=name, against=against or None, data=images, progress=report
                )
            )
    if machine:
        emit([{"reference": one, **outcome.to_json()} for one, outcome in zip(wanted, outcomes, strict=True)])
    for reference, outcome in zip(wanted, outcomes, strict=True):
        if not machine:
            click.echo(
                f"tested {reference} as {'the next version of' if name else ''} {name or 'it is'}".replace(
                    "  ", " "
                )
            )
            show_outcome(outcome)
            if outcome.matrix is not None:
                click.echo()
                print_matrix(outcome.matrix)
    context.exit(0 if all(one.passed for one in outcomes) else 1)


def _deciding(name: str | None, recipe: str | None, root: str | None, download: bool) -> Split:
    """Return the images that are to decide: the test split, unless the name says train."""
    if recipe is not None:
        from compatkit.experiments.recipes import read

        sets = [task.data for task in read(recipe, root=root, download=download).tasks]
        fits = [one for one in sets if name in (None, one.name, one.test.name)]
        if len({one.test.digest for one in fits}) != 1:
            raise DataError(
                f"{recipe} has the test sets {', '.join(one.test.name for one in sets)}; name one of them with --data."
            )
        return fits[0].test
    if name is None:
        raise UsageError("Say on which images the policy is decided: --data mnist/test, or --recipe FILE.")
    data = found_in(root, download)(name)
    return data.train if name.endswith("/train") else data.test


def _expected(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise UsageError(f"--expected is the number of a revision, or 'none'; got {text!r}.")
    return int(text)
