"""``compatkit publish RUN``: publish a finished run of ``compatkit train`` that was not published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.command_line import command_line
from compatkit.cli.images import DataOptions, offline
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import clean, emit, news, next_step, progress
from compatkit.cli.releases import AboutOptions, SigningOptions, sign_published
from compatkit.cli.roots import destination, open_or_create_registry, open_registry
from compatkit.errors import CompatkitError, UsageError

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData
    from compatkit.contracts.manifest import About
    from compatkit.experiments.recipes import Recipe, StartedRun
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.training.fit import Fit
    from compatkit.training.prepare import Frozen


class ReleaseOptions(SigningOptions, AboutOptions):
    """Names, versions, signature and description of published parts."""

    prefix: str | None = option("Prefix of the parts' names, instead of the recipe's.")
    version: str | None = option("Version of all parts; default: the next that each allows.", metavar="X.Y.Z")
    major: bool = option("Use the next MAJOR number of each part: a break, which policies allow.")
    dry_run: bool = option("Test the policies of all parts; publish nothing.")

    def check_numbers(self) -> None:
        """Raise for an invalid version, or for both options.

        Raises:
            UsageError: Both are given.
            InvalidName: The version is malformed.
        """
        if self.version is not None:
            from compatkit.registry.names import Version

            Version.parse(self.version)
            if self.major:
                raise UsageError("--version and --major exclude each other.")


@attrs.frozen
class Publication:
    """The publication of a trained run.

    Attributes:
        options: Options of the command: ``version``, ``major``, ``dry_run``, ``json``.
        root: Folder of the registry.
        plan: Recipe of the run.
        started: Start of the run: recipe, settings, command.
        folder: Folder of the run's state; None if it is in a file that the user named.
        keeps_folder: Whether the user named that folder, so that its state is not deleted.
        images: Finds the images of policies.
        about: Description of the parts.
        key: Signing key, or None.
    """

    options: ReleaseOptions
    root: Path
    plan: Recipe
    started: StartedRun
    folder: Path | None
    keeps_folder: bool
    images: PolicyData
    about: About
    key: SigningKey | None

    def publish(self, fit: Fit) -> int:
        """Publish the parts of a run, or with ``--dry-run`` show the outcomes of policies; return the exit code."""
        if fit.averages is not None:
            news("Publishing the moving averages of the weights (ema in the recipe).")
            fit = fit.averaged()
        settings: dict[str, Any] = {"prefix": self.plan.prefix, "data": self.images}
        settings |= self.options.only("version", "major")
        if self.options.dry_run:
            return self._rehearse(fit, settings)
        with self._print_saved_run(), progress("policies") as report:
            registry = open_or_create_registry(self.root)
            parts = registry.publish(fit, about=self.about, progress=report, **settings)
        signed = sign_published(open_registry(), parts.values(), self.key)
        if self.folder is not None:
            attrs.evolve(self.started, published=parts).write(self.folder)
            if not self.keeps_folder:
                from compatkit.experiments.recipes import STATE

                (self.folder / STATE).unlink(missing_ok=True)  # missing after a run of no steps
        if self.options.json:
            last = {row["task"]: row["losses"] for row in fit.history}
            measured = {"evaluations": fit.evaluations} if fit.evaluations else {}
            result = {"registry": self.root, "parts": parts, **signed, "losses": last, **measured}
            return emit({**result, "plan": fit.plan})
        click.echo(clean(str(fit)))
        if stopped := fit.run.get("stopped"):
            click.echo(
                f"ended after {stopped['steps']:,} steps, weights of step {stopped['weights_of_step']:,}"
                + (f": {clean(stopped['reason'])}" if "reason" in stopped else "")
            )
        for reference in parts.values():
            click.echo(f"published {reference}{' and signed it' if signed else ''}")
        globs = f"{self.plan.prefix}/*.extractor", f"{self.plan.prefix}/*.head"
        data = ("--data-root", self.started.data_root) if self.started.data_root else ()
        next_step("matrix", *globs, "--recipe", self.started.recipe, *data, "--html", "matrix.html")
        own = [name for key, name in parts.items() if f"{key.removesuffix('.extractor')}.head" in parts]
        if own:
            next_step("predict", own[0], "PHOTOS", before="or")
        return 0

    def _rehearse(self, fit: Fit, settings: dict[str, Any]) -> int:
        """Show the outcomes of policies for the parts; return 1 if one fails."""
        with progress("policies") as report:
            registry = open_or_create_registry(self.root)
            outcomes = registry.publish(fit, progress=report, **settings, dry_run=True)
        code = 0 if all(outcome.passed for outcome in outcomes.values()) else 1
        if self.options.json:
            reports = {key: outcome.to_json() for key, outcome in outcomes.items()}
            return emit({"registry": self.root, "outcomes": reports, "plan": fit.plan}, code)
        for outcome in outcomes.values():
            click.echo(clean(str(outcome)))
        click.echo("nothing was published")
        if self.folder is not None:
            next_step("publish", self.folder, registry=False)
        return code

    @contextmanager
    def _print_saved_run(self) -> Iterator[None]:
        """After an error, print how to publish without training again."""
        try:
            yield
        except (CompatkitError, KeyboardInterrupt):
            if self.folder is not None:
                news(f"The run is saved. To publish it: compatkit publish {self.folder}")
            else:
                news(f"The run is saved in {self.plan.trainer.checkpoint}: the same command publishes it.")
            raise


def load(started: StartedRun, download: bool) -> tuple[Recipe, Frozen]:
    """Return the recipe of a run and the frozen parts that it is trained against.

    Args:
        started: How the run was started.
        download: Whether data sets may be downloaded.
    """
    plan = started.load(download, lambda *words, **settings: open_registry().task(*words, **settings))
    return plan, open_registry().frozen(**plan.frozen_references) if plan.frozen_references else None


class PublishOptions(ReleaseOptions, DataOptions):
    """Arguments and options of ``publish``."""

    run: Path = argument()


@command("publish", PublishOptions)
def publish_command(options: PublishOptions) -> int | None:
    """Publish a finished run of `compatkit train` that was not published; nothing is trained.

    RUN is the folder that `compatkit train` printed.

    Examples:
        # what `compatkit train` could not publish
        compatkit publish parts-runs/mnist_usps-1a2b3c4d
        # under other names, tested only
        compatkit publish parts-runs/mnist_usps-1a2b3c4d --prefix other --dry-run
    """
    from compatkit.experiments.recipes import STATE, StartedRun

    options.check_numbers()
    run, started = options.run, StartedRun.read(options.run)
    _check_trained(run, started)
    changed = {"prefix": options.prefix, "data_root": options.load_arguments["root"]}
    started = attrs.evolve(started, **{name: value for name, value in changed.items() if value is not None})
    if command_line().registry is None:
        command_line().registry = started.registry
    root, key = destination(), options.key()
    plan, frozen = load(started, options.download)
    plan = attrs.evolve(plan, trainer=attrs.evolve(plan.trainer, checkpoint=run / STATE))
    with offline(unless=options.download):
        fit = plan.trainer.fit(
            plan.tasks, plan.regularizers, frozen=frozen, frozen_statistics=plan.frozen.statistics
        )
    options.data_root = Path(started.data_root) if started.data_root else None
    about = options.about(plan.about)
    return Publication(options, root, plan, started, run, True, (options.finder(),), about, key).publish(fit)


def _check_trained(run: Path, started: StartedRun) -> None:
    """Raise for a run that is already published or not finished.

    Raises:
        UsageError: There is nothing to publish; the message says how to continue.
        FormatError: The state is damaged.
    """
    from compatkit.experiments.recipes import STATE
    from compatkit.training.checkpoints import status

    state = status(run / STATE)
    if state is None and started.published:
        parts = ", ".join(started.published.values())
        raise UsageError(f"The run in {run} is published already, as {parts}.", subject=run)
    if state is None or not state.ended:
        steps = "no step is" if state is None else f"{state.step:,} steps are"
        raise UsageError(
            f"The run in {run} is not finished: {steps} saved. To continue: {started.command_line()}",
            subject=run,
        )
