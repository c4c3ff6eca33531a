"""``compatkit publish RUN``: the parts of a trained run that were not published, without training again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from compatkit.cli.options import (
    about,
    about_options,
    data_options,
    given,
    json_option,
    registry_option,
    sign_option,
)
from compatkit.cli.outcome import found_in, show_outcomes, to_json
from compatkit.cli.output import columns, emit, news, next_step, progress
from compatkit.cli.roots import destination, publishing, registry
from compatkit.cli.signing import chosen_key, sign_published
from compatkit.cli.weights import offline
from compatkit.errors import CompatkitError, UsageError
from compatkit.experiments.recipes import STATE, Started
from compatkit.registry.names import Version

if TYPE_CHECKING:
    from compatkit.components.promises import Given
    from compatkit.contracts.manifest import About
    from compatkit.experiments.recipes import Recipe
    from compatkit.registry.signing.signer import SigningKey
    from compatkit.training.fit import Fit
    from compatkit.training.task import Task

Command = TypeVar("Command", bound=Callable[..., Any])


def release_options(function: Command) -> Command:
    """Add how parts are published: under which names and numbers, signed by whom, with what said of them."""
    for option in (
        about_options,
        click.option("--dry-run", is_flag=True, help="Show what policies say of each part; publish nothing."),
        click.option(
            "--major",
            is_flag=True,
            help="Each part takes its next MAJOR number: a break, which policies allow.",
        ),
        click.option(
            "--version", metavar="X.Y.Z", help="Number of all parts; else each takes the least step it needs."
        ),
        sign_option,
        click.option("--prefix", help="Publish under this prefix in place of the recipe's."),
    ):
        function = option(function)
    return function


def check_numbers(version: str | None, major: bool) -> None:
    """Refuse a number that is none, or two ways of choosing one.

    Raises:
        UsageError: Both are given.
        InvalidName: It is no version.
    """
    if version is not None:
        Version.parse(version)
        if major:
            raise UsageError("Give --version or --major, not both.")


@attrs.frozen
class Release:
    """A trained run on its way into a registry.

    Attributes:
        root: Of the registry.
        plan: Its recipe.
        folder: Where its state is kept, and nothing else; None where a file of the user's holds it.
        named: Whether the user named that folder, which then stays as it is.
        images: Finds the images that decide policies.
        about: What is said for people of the parts.
        key: Signs what is published, or None.
    """

    context: click.Context
    root: Path
    plan: Recipe
    folder: Path | None
    named: bool
    images: Given
    about: About
    version: str | None = None
    major: bool = False
    key: SigningKey | None = None

    def publish(self, fit: Fit, started: Started, machine: bool) -> None:
        """Publish the parts, and tell of it."""
        with self._kept(), progress("policies") as report:
            parts = publishing(self.root).publish(fit, about=self.about, progress=report, **self._settings())
        signed = sign_published(registry(self.context), parts.values(), self.key)
        if self.folder is not None:
            attrs.evolve(started, published=parts).write(self.folder)
            if not self.named:
                (self.folder / STATE).unlink(missing_ok=True)  # a run of no steps kept none
        if machine:
            last = {row["task"]: row["losses"] for row in fit.history}
            measured = {"evaluations": fit.evaluations} if fit.evaluations else {}
            told = {"registry": str(self.root), "parts": parts, **signed, "losses": last, **measured}
            emit({**told, "plan": fit.plan})
            return
        show_figures(fit)
        for reference in parts.values():
            click.echo(f"published {reference}{' and signed it' if signed else ''}")
        globs = f"{self.plan.prefix}/*.extractor", f"{self.plan.prefix}/*.head"
        data = ("--data-root", started.data_root) if started.data_root else ()
        words = "compatkit", *given(self.context).words, "matrix", *globs
        next_step(*words, "--recipe", started.recipe, *data, "--html", "matrix.html")

    def rehearse(self, fit: Fit, machine: bool) -> int:
        """Show what policies say of the parts; return the exit code."""
        with progress("policies") as report:
            outcomes = publishing(self.root).publish(fit, progress=report, **self._settings(), dry_run=True)
        if machine:
            emit({"registry": str(self.root), "outcomes": to_json(outcomes), "plan": fit.plan})
        else:
            show_outcomes(outcomes)
            click.echo("nothing was published")
            if self.folder is not None:
                next_step("compatkit", "publish", str(self.folder))
        return 0 if all(one.passed for one in outcomes.values()) else 1

    def _settings(self) -> dict[str, Any]:
        return {"prefix": self.plan.prefix, "version": self.version, "major": self.major, "data": self.images}

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Say after an error that nothing has to be trained again."""
        try:
            yield
        except (CompatkitError, KeyboardInterrupt):
            if self.folder is not None:
                news(
                    f"The trained run is kept: `compatkit publish {self.folder}` publishes it without training again, "
                    "under another name (--prefix) or number (--version, --major)."
                )
            else:
                news(
                    f"The trained run is kept in {self.plan.trainer.checkpoint}: the same command publishes it."
                )
            raise


def averaged(fit: Fit) -> Fit:
    """Return the fit that is published: of the moving averages, where the recipe asks for some."""
    if fit.averages is None:
        return fit
    news("What is published are the moving averages of the weights, as the recipe's ema asks.")
    return fit.averaged()


def show_figures(fit: Fit) -> None:
    """Print the last losses of each task, what was measured last, and where early stopping ended the run."""
    last = {row["task"]: row["losses"] for row in fit.history}
    names = list(dict.fromkeys(name for losses in last.values() for name in losses))
    table = [("", *names)]
    for task, losses in last.items():
        table.append((task, *(f"{losses[name]:.3f}" if name in losses else "" for name in names)))
    columns(table, right=range(1, len(names) + 1))
    if not fit.evaluations:
        return
    rows = {(row["task"], row["weights"]): row for row in fit.evaluations}
    table = [("", "on", "weights", "step", "loss", "accuracy")]
    for row in rows.values():
        words = (row["task"], row["on"], row["weights"], str(row["step"]))
        table.append((*words, f"{row['loss']:.3f}", f"{row['accuracy']:.3f}"))
    columns(table, right=range(3, 6))
    if "stopped" in fit.run:
        stopped = fit.run["stopped"]
        click.echo(f"ended after {stopped['steps']:,} steps, weights of step {stopped['weights_of_step']:,}")


@click.command(
    "publish",
    help="Publish the parts of a run that `compatkit train` trained and did not publish: the name was taken, a policy "
    "forbade it, or nothing was to be published. RUN is the folder that it printed. Nothing is trained.",
)
@click.argument("run", type=click.Path(path_type=Path))
@release_options
@data_options
@registry_option
@json_option
@click.pass_context
def publish_command(
    context: click.Context,
    run: Path,
    prefix: str | None,
    version: str | None,
    major: bool,
    dry_run: bool,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Take back the trained state and publish it, into the registry that the run was for unless another is named."""
    check_numbers(version, major)
    started = Started.read(run)
    _check_trained(run, started)
    if prefix is not None:
        started = attrs.evolve(started, prefix=prefix)
    if data_root is not None:
        started = attrs.evolve(started, data_root=data_root)
    if given(context).registry is None:
        given(context).registry = started.registry
    root, key = destination(context), chosen_key(context)

    def start(*words: Any, **settings: Any) -> Task:
        return registry(context).task(*words, **settings)

    plan = started.load(download, start)
    plan = attrs.evolve(plan, trainer=attrs.evolve(plan.trainer, checkpoint=run / STATE))
    frozen = registry(context).frozen(**plan.against) if plan.against else None
    with offline(unless=download):
        fit = plan.trainer.fit(
            plan.tasks, plan.regularizers, frozen=frozen, frozen_statistics=plan.frozen_statistics
        )
    images = (found_in(started.data_root, download),)
    said = about(context, plan.about)
    release = Release(context, root, plan, run, True, images, said, version, major, key)
    fit = averaged(fit)
    if dry_run:
        context.exit(release.rehearse(fit, machine))
    release.publish(fit, started, machine)


def _check_trained(run: Path, started: Started) -> None:
    """Refuse a run that is published or not at its end.

    Raises:
        UsageError: There is nothing to publish; the message says how to go on.
        FormatError: Its state is damaged.
    """
    from compatkit.training.checkpoints import status

    state = status(run / STATE)
    if state is None and started.published:
        raise UsageError(
            f"The run in {run} is published, as {', '.join(started.published.values())}, and its state is not kept.",
            subject=run,
        )
    if state is None or not state.ended:
        steps = "no step" if state is None else f"{state.step:,} steps"
        raise UsageError(
            f"The run in {run} is not trained yet: {steps} of it kept. Go on with it: {started.again()}",
            subject=run,
        )
