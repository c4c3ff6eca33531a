"""A run before its first step: settings checked, networks built, plugins set up, the loop made, the plan written down.

Training, explaining, profiling and sweeps all begin here, so that what one of them says holds for the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.data.split import Split
from compatkit.errors import UsageError
from compatkit.plugins import RunPlugins, Use
from compatkit.registry.canonical import digest, dumps
from compatkit.training import checkpoints
from compatkit.training.averaging import Averaging
from compatkit.training.context import AuxiliaryHead, SetUp, TaskState
from compatkit.training.describing import describe
from compatkit.training.determinism import determined
from compatkit.training.execution import settle
from compatkit.training.fit import Fit, anchor
from compatkit.training.holdout import check_classes, hold_out
from compatkit.training.loop import Loop
from compatkit.training.networks import parameters_digest, prepare_task, redraw
from compatkit.training.optimisation import check_owners
from compatkit.training.precision import Precision
from compatkit.training.randomness import preserved, reseed, seed_of
from compatkit.training.scalars import check_tensorboard
from compatkit.training.settings import resolved
from compatkit.training.task import Task

if TYPE_CHECKING:
    from compatkit.training.trainer import Trainer

Statistics = Literal["stored", "batch"]
Frozen = Fit | Mapping[str, AuxiliaryHead] | None


@attrs.frozen(eq=False)
class Begun:
    """A run whose loop has taken no step.

    Attributes:
        manifest: Everything that decides the result, as JSON values; the same for the same run.
        held: Images that no step sees, by task.
    """

    trainer: Trainer
    loop: Loop
    manifest: Mapping[str, Any]
    held: Mapping[str, Split]

    @property
    def plan(self) -> str:
        """Digest of the manifest: the checkpoint of another is refused."""
        return digest(dumps(self.manifest))

    def finished(
        self,
        facts: Mapping[str, Any],
        history: list[dict[str, Any]],
        evaluations: list[dict[str, Any]] | None = None,
    ) -> Fit:
        """Return what the run leaves behind, its last step taken: plugins finish, and parts are told their anchors.

        Args:
            facts: The manifest, with what came out besides.
            history: Rows of losses.
            evaluations: Rows of what was measured meanwhile.
        """
        setup = self.loop.setup
        for module in (*setup.owners.values(), *(head.module for head in setup.auxiliary.values())):
            module.eval()
        for bound in self.loop.plugins.finish:
            reseed(setup.precision.device, seed_of(setup.seed, "finish", bound.instance))
            bound.call(setup)
        anchor(setup.tasks, setup.auxiliary)
        averages = self.loop.averages.kept if self.loop.averages is not None else None
        return Fit(setup.tasks, setup.auxiliary, facts, history, self.plan, evaluations or [], averages)


@contextmanager
def begun(
    trainer: Trainer,
    tasks: Sequence[Task],
    regularizers: Sequence[str | Use] = (),
    *,
    frozen: Frozen = None,
    frozen_statistics: Statistics = "stored",
    factories: Mapping[str, Callable[..., Any]] | None = None,
) -> Iterator[Begun]:
    """Build everything of a run and take no step; what cannot be trained is refused here.

    Inside, torch's generators and settings are the run's; on leaving, they are as before.

    Raises:
        CompatkitError: See ``Trainer.fit``.
    """
    _check(trainer, tasks)
    precision = Precision.choose(trainer.device, trainer.precision, trainer.channels_last)
    plugins = RunPlugins.create(regularizers, factories=factories)
    shown, held = hold_out(tasks, trainer.validation, trainer.seed)
    with preserved(), determined(precision.device, on=trainer.deterministic):
        setup = _set_up(trainer.seed, shown, plugins, precision, frozen, frozen_statistics)
        with closing(_loop(trainer, setup, plugins)) as loop:
            manifest = describe(trainer, loop, frozen_statistics)
            yield Begun(trainer, loop, manifest, held)


def _check(trainer: Trainer, tasks: Sequence[Task]) -> None:
    """Refuse what can be known to fail before anything is built."""
    folder = Path(trainer.checkpoint).absolute().parent if trainer.checkpoint is not None else None
    if folder is not None and not folder.is_dir():
        raise UsageError(f"The folder {folder} of the checkpoint does not exist; make it first.")
    if not tasks:
        raise UsageError("Trainer.fit expects at least one task, got none.")
    names = [task.name for task in tasks]
    if len(set(names)) != len(names):
        raise UsageError(f"Task names must differ, got {names}.")
    for task in tasks:
        check_classes(task)
    if trainer.scalars is not None:
        check_tensorboard(trainer.scalars)


def _set_up(
    seed: int,
    tasks: Sequence[Task],
    plugins: RunPlugins,
    precision: Precision,
    frozen: Frozen,
    statistics: Statistics,
) -> SetUp:
    states = {task.name: prepare_task(task, seed, precision) for task in tasks}
    heads = frozen.auxiliary if isinstance(frozen, Fit) else frozen or {}
    held = {name: _frozen(head, statistics, precision) for name, head in heads.items()}

    def reset(state: TaskState, stream: tuple[str | int, ...], other: int | None) -> None:
        redraw(state, seed_of(seed if other is None else other, "initial", *stream))

    owners = {
        f"{name}.{side}": getattr(s, side) for name, s in states.items() for side in ("extractor", "head")
    }
    setup = SetUp(seed, precision, states, held, reset, owners=owners)
    for bound in plugins.set_up:
        reseed(precision.device, seed_of(seed, "set_up", bound.instance))
        bound.call(setup)
    for name in held:
        if name not in setup.auxiliary:
            raise UsageError(
                f"The frozen auxiliary head {name!r} is used by none of the regularizers of this run; name the "
                "regularizer that was trained with it, or leave the head out."
            )
    check_owners({**setup.owners, **{f"frozen.{name}": head.module for name, head in held.items()}})
    return setup


def _loop(trainer: Trainer, setup: SetUp, plugins: RunPlugins) -> Loop:
    """Return the loop, which executes steps as the checkpoint says, or as settled now."""
    loop = Loop.create(
        setup,
        plugins,
        resolved(trainer),
        trainer.steps,
        trainer.batch_size,
        accumulate=trainer.accumulate,
        clip_norm=trainer.clip_norm,
        averaging=Averaging(trainer.ema, trainer.ema_warmup) if trainer.ema is not None else None,
    )
    loop.train_mode()
    path = Path(trainer.checkpoint) if trainer.checkpoint is not None else None
    kept = checkpoints.execution(path) if path is not None and path.exists() else None
    if trainer.execution == "auto" and kept is not None:
        loop.set_execution(kept)
    else:
        loop.set_execution(settle(loop, trainer.execution, deterministic=trainer.deterministic))
    return loop


def _frozen(head: AuxiliaryHead, statistics: Statistics, precision: Precision) -> AuxiliaryHead:
    if statistics not in ("stored", "batch"):
        raise UsageError(f"frozen_statistics expects 'stored' or 'batch', got {statistics!r}.")
    module = copy.deepcopy(head.module).to(precision.device).requires_grad_(False)
    return attrs.evolve(
        head,
        module=module,
        frozen=True,
        statistics=statistics,
        digest=head.digest or parameters_digest(module),
    )
