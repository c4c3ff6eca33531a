"""Unsupervised domain adaptation: adapt an extractor to unlabeled images with the loss of a frozen auxiliary head.

Source: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
Sec. 5.1: the extractor is fine-tuned for 1,000 steps on the loss of the frozen rotation head, then combined with the
source's own head under batch statistics.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from compatkit.contracts.evidence import Cell
from compatkit.contracts.manifest import Manifest
from compatkit.data.split import Split
from compatkit.errors import IncompatibleError, UsageError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.matrix import measure
from compatkit.foundation.display import Shown, aligned
from compatkit.plugins import RegularizerConfig, regularizer_config
from compatkit.plugins.installed import current
from compatkit.registry.names import Reference
from compatkit.training.fit import Fit
from compatkit.training.prepare import Statistics
from compatkit.training.task import Task
from compatkit.training.task_state import AuxiliaryHead
from compatkit.training.trainer import Trainer

if TYPE_CHECKING:
    from torch import nn

    from compatkit.contracts.report import Report

TASK = "target"
"""Name of the run's only task. Random numbers depend on it, so published names do not change them."""
TRAINER_SETTINGS = ("weight", "start", "stop", "before", "after")
"""Settings in a run's manifest that the trainer adds to those of a regularizer; adaptation uses weight 1 throughout."""
ARMS = (("source", "running"), ("source", "batch"), ("adapted", "batch"))
"""Measured combinations of extractor and batch-norm policy."""


def paper(**settings: Any) -> Trainer:
    """Return a trainer with the paper's settings: 1,000 steps of SGD at 1e-5, no decay, batches of 64."""
    defaults: dict[str, Any] = {
        "steps": 1000,
        "optimizer": "sgd",
        "lr": 1e-5,
        "weight_decay": 0.0,
        "schedule": "constant",
    }
    return Trainer(**(defaults | settings))


@attrs.frozen(eq=False, repr=False)
class Adapted(Shown):
    """An adapted extractor with its accuracy.

    Attributes:
        fit: Run, which trained only the extractor; see ``Registry.publish``.
        source: Extractor before adaptation.
        head: Unchanged head of the source.
        cells: Results on labeled test images by arm: source extractor with stored statistics, source with batch
            statistics, adapted with batch statistics, each with the head; empty without test images.
    """

    fit: Fit
    source: Component
    head: Component
    cells: Mapping[tuple[str, str], Cell] = attrs.field(factory=dict)

    @property
    def extractor(self) -> nn.Module:
        """The adapted extractor, in eval mode."""
        return self.fit.tasks[TASK].extractor

    @property
    def accuracy(self) -> dict[str, float | None]:
        """Accuracy by arm, such as ``"adapted, batch"``; None if it could not be measured."""
        return {
            f"{extractor}, {policy}": None if cell.restricted is None else cell.restricted.accuracy
            for (extractor, policy), cell in self.cells.items()
        }

    def __str__(self) -> str:
        lines = ["not measured: no test images"]
        if self.accuracy:
            rows = [
                (arm, "not measured" if share is None else f"{share:.3f}")
                for arm, share in self.accuracy.items()
            ]
            lines = aligned([("arm", "accuracy"), *rows])
        return "\n".join([f"{self.source.reference} adapted, for {self.head.reference}", *lines])


def adapt(
    task: Task,
    auxiliary: AuxiliaryHead,
    method: RegularizerConfig,
    trainer: Trainer,
    statistics: Statistics,
    test: Split | None,
    factories: Mapping[str, Callable[..., Any]] | None,
) -> Adapted:
    """Train the extractor of a task without labels against a frozen head, and measure it.

    Args:
        task: Task that starts from the source's extractor and head, with ``supervised=False``.
        auxiliary: Frozen auxiliary head.
        method: Regularizer of the auxiliary head.
        trainer: Training settings.
        statistics: Batch-norm statistics inside the auxiliary head; see ``Trainer.fit``.
        test: Labeled images; read only after training.
        factories: Regularizers that are not installed, by name.
    """
    source, head = cast("tuple[Component, Component]", (task.extractor, task.head))
    before = {} if test is None else _measured(ARMS[:2], source, head, test)
    frozen = {auxiliary.name: auxiliary}
    fit = trainer.fit([task], [method], frozen=frozen, frozen_statistics=statistics, factories=factories)
    adapted = attrs.evolve(
        source,
        reference="adapted",
        resolved=Reference("adapted"),
        function="",
        module=fit.tasks[TASK].extractor,
    )
    after = {} if test is None else _measured(ARMS[2:], adapted, head, test)
    return Adapted(fit, source, head, before | after)


def _measured(
    arms: Sequence[tuple[str, str]], extractor: Component, head: Component, test: Split
) -> dict[tuple[str, str], Cell]:
    tests = {extractor.reference: test}
    return {arm: measure([extractor], [head], tests, Conditions(arm[1]))[0] for arm in arms}


def check_source(report: Report) -> None:
    """Raise for a head that cannot be wired to the extractor; warn if no contract relates them.

    Raises:
        IncompatibleError: They cannot be wired directly; carries the report.
    """
    if report.wiring != "direct":
        raise IncompatibleError(str(report), subject=report)
    if report.promise not in ("shared-head", "one-network"):
        warnings.warn(
            f"{report.head} and {report.extractor} were not trained against a shared auxiliary head (promise: "
            f"{report.promise}). Adaptation preserves only features that the auxiliary head uses; this head may use "
            "others.",
            stacklevel=3,
        )


def check_anchor(extractor: Component, auxiliary: AuxiliaryHead, owner: str) -> None:
    """Raise for an auxiliary head that was not trained on this extractor's features: its loss would be meaningless.

    Args:
        extractor: Extractor to adapt.
        auxiliary: Frozen auxiliary head.
        owner: Reference of the auxiliary head, for the message.

    Raises:
        UsageError: The extractor's contract does not name the head.
    """
    anchors = extractor.manifest.contract.protocol.anchors
    known = [anchor for anchor in anchors if anchor.kind == "auxiliary_head"]
    if any(anchor.digest == auxiliary.digest for anchor in known):
        return
    listed = (
        ", ".join(f"{anchor.task or 'one without a name'} {anchor.digest[:24]}..." for anchor in known)
        or "none"
    )
    raise UsageError(
        f"{extractor.reference} was not trained against the auxiliary head {owner} ({auxiliary.digest[:24]}...): its "
        f"contract names {listed}. Use the auxiliary head of the extractor's own run.",
        subject=owner,
    )


def method_of(manifest: Manifest, owner: str, requested: str | RegularizerConfig | None) -> RegularizerConfig:
    """Return the regularizer that trained an auxiliary head, with its settings.

    Args:
        manifest: Manifest of the head.
        owner: Reference of the head.
        requested: Regularizer named by the caller; None for that of the manifest.

    Raises:
        UsageError: The manifest does not name the regularizer.
        PluginError: The regularizer is not usable.
    """
    if requested is not None:
        return regularizer_config(requested)
    instance, plugins = manifest.training.get("plugin"), manifest.training.get("plugins") or ()
    for plugin in plugins:
        if plugin.get("as") == instance:
            settings = {
                key: value for key, value in plugin["settings"].items() if key not in TRAINER_SETTINGS
            }
            return RegularizerConfig(current(plugin["name"]).removeprefix("regularizers."), settings=settings)
    listed = ", ".join(str(plugin.get("as")) for plugin in plugins) or "none"
    raise UsageError(
        f"The manifest of {owner} does not name the regularizer that trained it (its run had: {listed}). Pass method, "
        "such as 'rotation_prediction' (--method on the command line).",
        subject=owner,
    )
