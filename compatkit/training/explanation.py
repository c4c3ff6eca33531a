"""The plan of a run, for people and as JSON values: tasks, owners of parameters, hooks in order, how steps execute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from compatkit.contracts.display import aligned
from compatkit.training.loop import Loop


@attrs.frozen
class Explanation:
    """What a run would do; ``print`` shows it as tables.

    Attributes:
        tasks: For each its network, data, and batches.
        owners: For each module that parameters live in: their names, their count, and the optimiser that moves them.
        events: Which plugins are called at which moment of a run, in their order, as a table.
        execution: ``mode`` and ``reason``.
        chosen: By plugin, what it chose by itself, as it said in its set-up.
    """

    tasks: tuple[Mapping[str, Any], ...]
    owners: tuple[Mapping[str, Any], ...]
    events: str
    execution: Mapping[str, str]
    chosen: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, loop: Loop) -> Explanation:
        """Return the explanation of a loop before its first step."""
        tasks = tuple(
            {
                "task": name,
                "network": state.task.backbone,
                "split": state.task.split,
                "data": state.task.data.train.name,
                "images": None if state.task.loader is not None else len(state.examples),
                "source": loop.lanes[name].source.describe(),
                "size": [len(state.data.mean), *state.data.size],
                "passes": attrs.asdict(loop.lanes[name].passes),
                "batch": loop.batch_size,
                "steps_an_epoch": loop.lanes[name].source.per_epoch,
                "classes": len(state.labels),
            }
            for name, state in loop.setup.tasks.items()
        )
        execution = attrs.asdict(loop.execution)
        return cls(tasks, tuple(_owners(loop)), loop.plugins.explain(), execution, loop.setup.told)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        tasks = [("task", "network", "data", "images", "batch", "an epoch", "classes")]
        for one in self.tasks:
            shape = " x ".join(map(str, one["size"]))
            cut = f"{one['network']} cut at {one['split']}"
            images, steps = (
                "?" if value is None else f"{value:,}" for value in (one["images"], one["steps_an_epoch"])
            )
            batch = f"{one['batch']} of {shape}"
            tasks.append(
                (one["task"], cut, one["data"], images, batch, f"{steps} steps", str(one["classes"]))
            )
        owners = [("owner", "parameters", "values", "moved by")]
        for one in self.owners:
            owners.append(
                (
                    one["owner"],
                    f"{len(one['parameters']):,}",
                    f"{one['values']:,}",
                    one["moved_by"] or "nothing",
                )
            )
        parts = (
            ("Tasks", aligned(tasks)),
            ("Images", [f"{one['task']}: {one['source']}" for one in self.tasks]),
            ("Owners of the parameters", aligned(owners)),
            ("Hooks, in the order in which they are called", self.events.splitlines()),
            *((f"Chosen by {name}", list(_lines(facts))) for name, facts in self.chosen.items()),
            ("Execution", [f"{self.execution['mode']}: {self.execution['reason']}"]),
        )
        return "\n\n".join("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in parts)

    __repr__ = __str__


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line a fact, with what lies in it below it."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield f"{name}:"
            yield from (f"  {line}" for line in _lines(value))
        else:
            yield f"{name}: {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _owners(loop: Loop) -> Sequence[Mapping[str, Any]]:
    movers = {
        id(one): f"{name} ({loop.optimisation.kind})"
        for name, optimiser in loop.optimisers.items()
        for group in optimiser.param_groups
        for one in group["params"]
    }
    return [
        {
            "owner": owner,
            "parameters": [name for name, _ in module.named_parameters()],
            "values": sum(one.numel() for one in module.parameters()),
            "moved_by": next((movers[id(one)] for one in module.parameters() if id(one) in movers), None),
        }
        for owner, module in {**loop.setup.owners, **loop.setup.unmoved()}.items()
    ]
