"""The loop itself: one step of one task, with hooks resolved before it starts and no host synchronisation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import Tensor

from compatkit.errors import UsageError
from compatkit.plugins import RunPlugins
from compatkit.training.capture import Captured
from compatkit.training.distributed import ALONE, World
from compatkit.training.dry_run import rehearse
from compatkit.training.execution import EAGER, Execution
from compatkit.training.loss_history import Measured
from compatkit.training.optim import Averages, Averaging, Optimisation, Schedule, set_rate
from compatkit.training.randomness import reseed
from compatkit.training.reach import check_reach
from compatkit.training.replicas import Exchange, even_statistics
from compatkit.training.set_up import SetUp
from compatkit.training.settings import Resolved
from compatkit.training.state import TaskState
from compatkit.training.step import NO_LABEL, Step, pieces, together
from compatkit.training.task_loop import Lane
from compatkit.training.views import SEPARATE, passes

NETWORK = "network/"
"""Before a task's name: the optimiser of its extractor and head."""


@attrs.define(eq=False, slots=False)
class Loop:
    """Takes steps; owns the optimisers, one a network and one a shared module.

    Attributes:
        steps: Steps of each task.
        batch_size: Images a step.
        optimisers: ``network/<task>`` moves extractor and head together; shared modules have one each, by owner.
        lanes: By task, what its steps need, resolved before the first.
        moving: All parameters that some optimiser moves.
        execution: Whether steps are compiled or captured.
        clip_norm: Largest norm of all gradients that a step moves by; None leaves them as they are.
        averages: Moving averages of everything that is trained, or None.
        world: The processes that take these steps.
        exchange: Means of gradients over them; None for one.
    """

    setup: SetUp
    plugins: RunPlugins
    optimisation: Optimisation
    schedule: Schedule
    steps: int
    batch_size: int
    optimisers: dict[str, torch.optim.Optimizer]
    lanes: dict[str, Lane]
    moving: tuple[Tensor, ...]
    clip_norm: float | None = None
    averages: Averages | None = None
    world: World = ALONE
    exchange: Exchange | None = None
    execution: Execution = EAGER
    _rate: float = -1.0

    @classmethod
    def create(
        cls,
        setup: SetUp,
        plugins: RunPlugins,
        settings: Resolved,
        steps: int,
        batch_size: int,
        *,
        accumulate: int = 1,
        clip_norm: float | None = None,
        averaging: Averaging | None = None,
        world: World = ALONE,
    ) -> Loop:
        """Make the loop of a run whose owners are complete.

        Raises:
            DataError: There are fewer images than in a batch.
            UsageError: Nothing that a task's steps could move is left to move; one pass for all views was asked for,
                and an extractor would mix them; or a layer cannot be recorded.
        """
        moved = _moved(setup)
        optimisers = {name: settings.optimisation.make(each) for name, each in moved.items() if each}
        lanes: dict[str, Lane] = {}
        share = world.share(batch_size)
        for name, state in setup.tasks.items():
            movers = tuple(
                made
                for one, made in optimisers.items()
                if one == NETWORK + name or not one.startswith(NETWORK)
            )
            if not movers:
                raise UsageError(
                    f"Task {name!r} has nothing to train: all parameters of its network, and of every head that is "
                    "shared, are frozen (requires_grad is False). Leave some of them free.",
                    subject=name,
                )
            source = settings.placing.source(state, setup.seed, batch_size, setup.precision, share)
            recorder = setup.recorders.get(name)
            if recorder is not None:
                rehearse(recorder, (len(state.data.mean), *state.data.size), setup.precision)
            seen = SEPARATE
            if plugins.further_views:
                seen = passes(settings.passes, state, setup.precision.device, recorder)
            lanes[name] = Lane.of(state, setup, plugins, source, movers, accumulate, seen, world.key)
        return cls(
            setup,
            plugins,
            settings.optimisation,
            settings.schedule,
            steps,
            batch_size,
            optimisers,
            lanes,
            tuple(one for each in moved.values() for one in each),
            clip_norm,
            Averages.of(averaging, setup.owners, setup.tasks) if averaging is not None else None,
            world,
            Exchange(setup.owners, setup.tasks, world) if world.size > 1 else None,
        )

    def train_mode(self) -> None:
        """Put all modules into the mode they train in; frozen heads with stored statistics stay in eval."""
        for module in self.setup.owners.values():
            module.train()
        for head in self.setup.auxiliary.values():
            if head.frozen:
                head.module.train(head.statistics == "batch")

    def go_on_from(self, number: int) -> None:
        """Get every task's images ready for a step that another run would take.

        Raises:
            TrainingError: A loader cannot be repeated up to there.
        """
        for lane in self.lanes.values():
            lane.source.go_on_from(number)

    def even_statistics(self) -> None:
        """Average the running statistics of all processes; see ``replicas.even_statistics``."""
        even_statistics(self.world, self.setup.owners, self.averages)

    def close(self) -> None:
        """Give back what fetches images; no step follows."""
        for lane in self.lanes.values():
            lane.source.close()

    def set_execution(self, execution: Execution) -> None:
        """Execute steps otherwise from now on."""
        self.execution = execution
        for lane in self.lanes.values():
            lane.span, lane.captured = range(0), None

    @property
    def captures(self) -> bool:
        """Whether steps are replayed as CUDA graphs; those of several processes that go on from one's are not."""
        return self.execution.captures and self.exchange is None

    def step(self, task: TaskState, number: int, reports: bool = False) -> Measured:
        """Take one step of one task; ``reports`` as in ``Step``.

        Returns:
            Its losses by name, and as ``"accuracy"`` the predicted and the true classes, all still on the device.
        """
        lane = self.lanes[task.name]
        step, measured = self.work(lane, number, reports)
        if self.averages is not None:
            self.averages.follow(task.name, number)
        step._measured = measured
        for call in lane.after_step:
            call(step)
        if lane.after_epoch and lane.source.ends_epoch(number):
            for call in lane.after_epoch:
                call(step)
        return measured

    def work(self, lane: Lane, number: int, reports: bool = False) -> tuple[Step, Measured]:
        """Do all of a step but what follows it; return its last piece, and what it measured."""
        if number not in lane.span:
            lane.resolve(number, compiles=self.execution.compiles)
        steps = self.prepare(lane, number)
        for step in steps:
            step.reports = reports and self.execution.mode == "eager"
        self.set_rate(number, self.optimisers.values())
        if not self.captures:
            return steps[-1], self.descend(lane, steps)
        if lane.captured is None:
            lane.captured = Captured(self, lane, steps)
        return steps[-1], lane.captured.replay(steps)

    def prepare(self, lane: Lane, number: int) -> list[Step]:
        """Return the pieces of a step with their batches, as the plugins of this lane want them."""
        whole = self.begin(lane, number)
        if lane.pieces == 1:
            steps = [whole]
        else:
            batches = pieces(whole.batch, lane.pieces)
            steps = [attrs.evolve(whole, batch=one, piece=piece) for piece, one in enumerate(batches)]
        if lane.views:
            for step in steps:
                self.view(lane, step)
            if not lane.settled:
                lane.settle()
        return steps

    def begin(self, lane: Lane, number: int) -> Step:
        """Return a step with its whole batch, which no plugin has seen."""
        batch = lane.source.batch(number)
        if not lane.task.supervised:
            batch = attrs.evolve(batch, labels=torch.full_like(batch.labels, NO_LABEL))
        return Step(self.setup.seed, lane.task, number, batch, self.setup.precision)

    def view(self, lane: Lane, step: Step) -> None:
        """Let plugins put another batch in the place of a step's."""
        for call, stream in lane.views:
            if stream is not None:
                reseed(self.setup.precision.device, stream.at(_turn(lane, step)))
            step.batch = call(step, step.batch)

    def descend(self, lane: Lane, steps: Sequence[Step]) -> Measured:
        """Go forward, backward, and move this task's network and every shared module; what a CUDA graph can hold.

        Args:
            lane: Of the task.
            steps: The pieces of one step.
        """
        if len(steps) == 1:
            measured = self.gradients(lane, steps[0])
        else:
            measured = together([self.gradients(lane, step) for step in steps])
        if self.exchange is not None:
            self.exchange(lane.task.name)
        for call in lane.after_backward:
            call(steps[-1])
        if self.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(lane.moved, self.clip_norm)
            measured = {**measured, "gradient_norm": norm}
        for optimiser in lane.movers:
            optimiser.step()
        self.forget_gradients()
        return measured

    def gradients(self, lane: Lane, step: Step) -> Measured:
        """Add the gradients of a step, or of a piece of one, to what is there."""
        # A captured step cannot seed; what draws random numbers is not captured (execution.py).
        seeds: Sequence[int] = ()
        if not self.captures:
            turn = _turn(lane, step)
            seeds = [one.at(turn) for one in lane.seeds]
        total, terms, answers = lane.forward(step, seeds)
        if not total.requires_grad:
            lacks = "head of its own" if lane.task.supervised else "labels"
            why = (
                "its network is frozen, and no regularizer that is active moves a shared head. Leave some parameters "
                "free, or begin later."
                if lane.task.runs_head
                else f"it has no {lacks}, and no regularizer gave a loss that moves its extractor. Name one that does "
                "in every step."
            )
            raise UsageError(
                f"In step {step.number} task {lane.task.name!r} has a loss without any gradient: {why}",
                subject=lane.task.name,
            )
        # A module that joins later is found in the next of steps 1, 2, 4, 8, ...
        if not lane.followed or (self.plugins.members and step.number & (step.number - 1) == 0):
            parts = [part for one in self.setup.tasks.values() for part in (one.extractor, one.head)]
            trained = [*self.moving, *(one for part in parts for one in part.parameters())]
            check_reach(total, trained, self.plugins.members)
            lane.followed = True
        if lane.pieces > 1:
            total = total / lane.pieces
        total.backward()
        return terms if answers is None else {**terms, "accuracy": (answers, step.batch.labels)}

    def forget_gradients(self) -> None:
        """Drop all gradients: a loss may have reached another task's network."""
        for one in self.moving:
            one.grad = None

    def rate(self, number: int) -> float:
        """Return the learning rate of a step."""
        return self.optimisation.lr * self.schedule.at(number, self.steps)

    def set_rate(self, number: int, optimisers: Iterable[torch.optim.Optimizer]) -> None:
        """Give optimisers the learning rate of a step, where it is another than that of the step before."""
        rate = self.rate(number)
        if rate != self._rate:
            self._rate = rate
            for optimiser in optimisers:
                set_rate(optimiser, rate)


def _moved(setup: SetUp) -> dict[str, list[Tensor]]:
    """Return the parameters that each optimiser moves, by its name."""
    pairs = {f"{name}.{side}": NETWORK + name for name in setup.tasks for side in ("extractor", "head")}
    moved: dict[str, list[Tensor]] = {}
    for owner, module in setup.owners.items():
        kept = moved.setdefault(pairs.get(owner, owner), [])
        kept.extend(one for one in module.parameters() if one.requires_grad)
    return moved


def _turn(lane: Lane, step: Step) -> int:
    """Return the place of a piece among all pieces of its task: what its random numbers are drawn by."""
    return step.number * lane.pieces + step.piece
