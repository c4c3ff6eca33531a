"""Plan of a run: its manifest, equal for equal runs, and an explanation for people."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import attrs
import torch

from compatkit.contracts.own_networks import planned_builder
from compatkit.training.batches.decoded import Decoded
from compatkit.training.batches.sources import BatchSource
from compatkit.training.loop import Loop
from compatkit.training.networks import start_digest
from compatkit.training.plugin_setup import SIDES, SetUp
from compatkit.training.settings import plan_key
from compatkit.training.task import Augment, Task
from compatkit.training.task_state import EXTRACTOR, AuxiliaryHead, ReleasedExtractor, TaskState


def describe(loop: Loop) -> dict[str, Any]:
    """Return the manifest of a run before its first step; it does not depend on the number of processes."""
    setup = loop.setup
    return {
        "schema": 1,
        "trainer": {plan_key(name): value for name, value in loop.settings.stated().items()}
        | {"scheduling": "alternate", "steps_are": "per task"},
        "tasks": [_task(state, loop.task_loops[name].source) for name, state in setup.tasks.items()],
        "plugins": [{**entry, **_chosen(entry["as"], setup)} for entry in loop.plugins.manifest()],
        "frozen": _frozen(setup),
        "environment": {
            "compatkit": version("compatkit"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": loop.world.device_name(setup.precision.device),
            "precision": setup.precision.dtype,
            "channels_last": setup.precision.channels_last,
            "execution": attrs.asdict(loop.execution),
            "passes": {name: task_loop.passes.mode for name, task_loop in loop.task_loops.items()},
        },
    }


def _chosen(instance: str, setup: SetUp) -> dict[str, Any]:
    return {"chosen": dict(setup.metadata[instance])} if instance in setup.metadata else {}


def _task(state: TaskState, source: BatchSource) -> dict[str, Any]:
    task = state.task
    started = {side: part.digest for side in SIDES if (part := getattr(task, side)) is not None}
    normalize = task.normalize and {name: list(mean_std) for name, mean_std in task.normalize.items()}
    return {
        "name": task.name,
        "backbone": task.model,
        "builder": planned_builder(task.builder, task.model),
        "split": task.cut,
        "kwargs": dict(state.extractor_blueprint.kwargs),
        "size": list(state.data.size),
        "augment": _augment(task.augment),
        "data": {
            "name": task.data.train.name,
            "digest": task.data.train.digest,
            **({} if task.supervised else {"labelled": False}),
            **({"damaged": task.data.train.damaged} if task.data.train.damaged else {}),
        },
        **_crops(source),
        **_mixed(task),
        **({"started_from": started} if started else {}),
        **({} if task.loader is None else {"loader": _loader(task.loader)}),
        **({} if normalize is None else {"normalisation": normalize}),
        **_cropped(state),
        **_architecture(state),
        "initial": state.initial,
        "start": start_digest(state.extractor, state.head),
        "library": state.extractor_blueprint.library,
    }


def _crops(source: BatchSource) -> dict[str, str]:
    """Return which images crops are taken from, and what resizes and jitters them, if not the files' and Pillow."""
    if not isinstance(source, Decoded) or not source.shrinks:
        return {}
    return {
        "crops_from": "shrunk",
        **({"crops_by": "torch"} if source.crops_by_torch else {}),
        **({"jitter_by": "matrix"} if source.jitters_by_matrix else {}),
    }


def _mixed(task: Task) -> dict[str, float]:
    """Return label smoothing, mixup and cutmix settings that are nonzero."""
    return {name: value for name in ("smoothing", "mixup", "cutmix") if (value := getattr(task, name))}


def _architecture(state: TaskState) -> dict[str, Any]:
    """Return the non-default architecture settings; empty for one network split into extractor and head."""
    task, head = state.task, state.head_blueprint
    width = state.extractor_blueprint.width
    builder = planned_builder(head.builder, head.model)
    rest = {"backbone": head.model, "builder": builder, "split": head.cut, "kwargs": dict(head.kwargs)}
    return {
        **({} if width is None else {"width": width}),
        **({} if task.rest is None else {"rest": rest}),
        **({} if task.own_head else {"own_head": False}),
        **({"frozen_extractor": state.statistics} if task.freeze_extractor else {}),
        **({"frozen_stages": task.freeze_stages} if task.freeze_stages else {}),
    }


def _cropped(state: TaskState) -> dict[str, Any]:
    """Return non-default resize and crop settings of pretrained weights from a folder."""
    preprocessing = {name: getattr(state.data, name) for name in ("interpolation", "crop_pct", "crop_mode")}
    default = {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"}
    return {"resized": preprocessing} if state.task.extractor is None and preprocessing != default else {}


def _frozen(setup: SetUp) -> dict[str, Any]:
    """Return the digests of the frozen parts that the run is trained against."""
    parts: dict[str, tuple[AuxiliaryHead | ReleasedExtractor, str]] = {
        name: (head, head.statistics) for name, head in setup.frozen.items()
    }
    if setup.released is not None:
        parts[EXTRACTOR] = setup.released, "stored"
    return {
        name: {"digest": part.digest, "state": start_digest(part.module), "statistics": statistics}
        for name, (part, statistics) in parts.items()
    }


def _augment(augment: Augment) -> Any:
    """Return the augmentation as JSON: of a callable its repr, or its class name if that has a memory address."""
    if isinstance(augment, Mapping):
        return dict(augment)
    if callable(augment):
        description = repr(augment)
        return type(augment).__qualname__ if " at 0x" in description else description
    return list(augment)


def _loader(loader: Any) -> Any:
    """Return the loader as JSON: name or settings of a plugin's loader, else its class name."""
    if isinstance(loader, str):
        return loader
    return dict(loader) if isinstance(loader, Mapping) else type(loader).__qualname__


@attrs.frozen
class Explanation:
    """Plan of a run before its first step; ``print`` shows it.

    Attributes:
        tasks: Network, data and batches of each task.
        owners: For each module with parameters: ``parameters``, the names of its tensors; ``values``, their number of
            elements; and ``moved_by``, the optimizer that updates them, or None.
        events: Table of the plugins that are called at each event of a run, in order.
        execution: ``mode`` and ``reason``.
        precision: Number format of the forward passes, ``dtype``, and ``reason``.
        chosen: Choices that plugins reported in their set-up, by plugin.
        settings: Settings of the trainer in the manifest, with device and precision.
        regularizers: Settings of each regularizer, including defaults, as in the manifest.
    """

    tasks: tuple[Mapping[str, Any], ...]
    owners: tuple[Mapping[str, Any], ...]
    events: str
    execution: Mapping[str, str]
    precision: Mapping[str, str]
    chosen: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]
    regularizers: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, loop: Loop) -> Explanation:
        """Return the explanation of a loop before its first step."""
        tasks = tuple(
            {
                "task": name,
                "network": state.task.model,
                "cut": state.task.cut,
                "data": state.task.data.train.name,
                "images": None if state.task.loader is not None else len(state.examples),
                "source": loop.task_loops[name].source.describe(),
                "size": [len(state.data.mean), *state.data.size],
                "passes": attrs.asdict(loop.task_loops[name].passes),
                "batch": loop.settings.batch_size,
                "steps_an_epoch": loop.task_loops[name].source.batches_per_epoch,
                "classes": len(state.labels),
                "augment": _augment(state.task.augment),
                **_mixed(state.task),
            }
            for name, state in loop.setup.tasks.items()
        )
        execution = attrs.asdict(loop.execution)
        precision = loop.setup.precision
        settings = {**loop.settings.stated(), "device": precision.device, "precision": precision.dtype}
        events, plugins = loop.plugins.explain(), tuple(loop.plugins.manifest())
        number_format = {"dtype": precision.dtype, "reason": precision.reason}
        owners, chosen = tuple(_owners(loop)), loop.setup.metadata
        return cls(tasks, owners, events, execution, number_format, chosen, settings, plugins)

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        owners = {
            owner["owner"]: (
                f"{len(owner['parameters']):,} tensors, {owner['values']:,} parameters, optimizer "
                f"{owner['moved_by'] or 'none'}"
            )
            for owner in self.owners
        }
        parts: dict[str, Mapping[str, Any]] = {
            **{f"Task {task['task']}": _printed(task) for task in self.tasks},
            "Hyperparameters": self.settings,
            "Regularizers": {plugin["as"]: plugin["settings"] for plugin in self.regularizers},
            "Owners of the parameters": owners,
            **{f"Chosen by {name}": choices for name, choices in self.chosen.items()},
            "Execution": {self.execution["mode"]: self.execution["reason"]},
            "Precision": {self.precision["dtype"]: self.precision["reason"]},
        }
        lines = {title: list(_lines(values)) for title, values in parts.items()}
        lines["Hooks, in the order in which they are called"] = self.events.splitlines()
        blocks = ([title, *(f"  {line}" for line in block or ["none"])] for title, block in lines.items())
        return "\n\n".join(map("\n".join, blocks))

    __repr__ = __str__


def _printed(task: Mapping[str, Any]) -> dict[str, Any]:
    return {"steps_per_epoch" if name == "steps_an_epoch" else name: value for name, value in task.items()}


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per value, with nested values below it."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{name}:"
            yield from (f"  {line}" for line in _lines(value))
        else:
            yield f"{name}: {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _owners(loop: Loop) -> Iterator[Mapping[str, Any]]:
    rules = loop.rates.rules
    kinds = {
        name: rule.optimizer if rule is loop.settings else f"{rule.optimizer}, lr {rule.lr:g}"
        for name, rule in rules.items()
    }
    optimizer_of = {
        id(parameter): f"{name} ({kinds[name]})"
        for name, optimizer in loop.optimizers.items()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for owner, module in {**loop.setup.owners, **loop.setup.frozen_modules()}.items():
        parameters = dict(module.named_parameters())
        optimizers = (optimizer_of.get(id(parameter)) for parameter in parameters.values())
        yield {
            "owner": owner,
            "parameters": list(parameters),
            "values": sum(parameter.numel() for parameter in parameters.values()),
            "moved_by": next(filter(None, optimizers), None),
        }
