"""compatkit: train network parts that fit, keep them as versioned components, recombine them, report what fits.

The public names. Each is imported when it is first used, so that ``import compatkit`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compatkit import data, domains, errors, hooks, metrics, pictures, plugins, signing, studies, testing
    from compatkit.bridges.results import Bridge
    from compatkit.checkpoints.reading import read_checkpoint
    from compatkit.compatibility import Finding, Report, check
    from compatkit.contract import Blueprint, Contract, Label
    from compatkit.data.classes import common as match_classes
    from compatkit.data.classes import label
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.predictions import Prediction, Predictions
    from compatkit.evaluation.recombination import Recombination
    from compatkit.exports.reading import load_exported
    from compatkit.hooks import HOOK_API, effect, hookimpl, hookspec
    from compatkit.measuring import Measurement, measure
    from compatkit.outcomes import Outcome
    from compatkit.plugins import Use, use
    from compatkit.registry.changes.differences import Difference
    from compatkit.registry.manifest import About
    from compatkit.registry.policies import Policy
    from compatkit.reports.matrix import Matrix
    from compatkit.reports.verdicts import Verdicts
    from compatkit.sweeps.sweep import Sweep
    from compatkit.training.fit import Fit
    from compatkit.training.pretraining import Pretraining
    from compatkit.training.recording import LayerCall
    from compatkit.training.schedules import Schedule
    from compatkit.training.set_up import SetUp
    from compatkit.training.state import AuxiliaryHead, TaskState
    from compatkit.training.step import Batch, Step
    from compatkit.training.stopping import EarlyStopping
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer
    from compatkit.verdicts import check_all
    from compatkit.workspace import Registry
    from compatkit.workspace.component import Component

    __version__: str

_HOMES = {
    "HOOK_API": "compatkit.hooks",
    "About": "compatkit.registry.manifest",
    "AuxiliaryHead": "compatkit.training.state",
    "Batch": "compatkit.training.step",
    "Blueprint": "compatkit.contract",
    "Bridge": "compatkit.bridges.results",
    "Component": "compatkit.workspace.component",
    "Contract": "compatkit.contract",
    "DataSet": "compatkit.data.dataset",
    "Difference": "compatkit.registry.changes.differences",
    "EarlyStopping": "compatkit.training.stopping",
    "Finding": "compatkit.compatibility",
    "Fit": "compatkit.training.fit",
    "Label": "compatkit.contract",
    "LayerCall": "compatkit.training.recording",
    "Matrix": "compatkit.reports.matrix",
    "Measurement": "compatkit.measuring",
    "Outcome": "compatkit.outcomes",
    "Policy": "compatkit.registry.policies",
    "Prediction": "compatkit.evaluation.predictions",
    "Predictions": "compatkit.evaluation.predictions",
    "Pretraining": "compatkit.training.pretraining",
    "Recombination": "compatkit.evaluation.recombination",
    "Registry": "compatkit.workspace",
    "Report": "compatkit.compatibility",
    "Schedule": "compatkit.training.schedules",
    "SetUp": "compatkit.training.set_up",
    "Split": "compatkit.data.dataset",
    "Step": "compatkit.training.step",
    "Sweep": "compatkit.sweeps.sweep",
    "Task": "compatkit.training.task",
    "TaskState": "compatkit.training.state",
    "Trainer": "compatkit.training.trainer",
    "Use": "compatkit.plugins",
    "Verdicts": "compatkit.reports.verdicts",
    "check": "compatkit.compatibility",
    "check_all": "compatkit.verdicts",
    "effect": "compatkit.hooks",
    "hookimpl": "compatkit.hooks",
    "hookspec": "compatkit.hooks",
    "load_exported": "compatkit.exports.reading",
    "label": "compatkit.data.classes",
    "measure": "compatkit.measuring",
    "read_checkpoint": "compatkit.checkpoints.reading",
    "use": "compatkit.plugins",
}
_MODULES = (
    "adapters",
    "data",
    "domains",
    "errors",
    "evaluation",
    "hooks",
    "metrics",
    "networks",
    "pictures",
    "plugins",
    "signing",
    "studies",
    "testing",
    "training",
)

__all__ = [
    "HOOK_API",
    "About",
    "AuxiliaryHead",
    "Batch",
    "Blueprint",
    "Bridge",
    "Component",
    "Contract",
    "DataSet",
    "Difference",
    "EarlyStopping",
    "Finding",
    "Fit",
    "Label",
    "LayerCall",
    "Matrix",
    "Measurement",
    "Outcome",
    "Policy",
    "Prediction",
    "Predictions",
    "Pretraining",
    "Recombination",
    "Registry",
    "Report",
    "Schedule",
    "SetUp",
    "Split",
    "Step",
    "Sweep",
    "Task",
    "TaskState",
    "Trainer",
    "Use",
    "Verdicts",
    "__version__",
    "check",
    "check_all",
    "data",
    "domains",
    "effect",
    "errors",
    "hookimpl",
    "hooks",
    "hookspec",
    "label",
    "load_exported",
    "match_classes",
    "measure",
    "metrics",
    "pictures",
    "plugins",
    "read_checkpoint",
    "signing",
    "studies",
    "testing",
    "use",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("compatkit")
    if name == "match_classes":
        return import_module("compatkit.data.classes").common
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"compatkit.{name}")
    raise AttributeError(f"module 'compatkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
