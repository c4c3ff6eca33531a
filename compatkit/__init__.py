"""compatkit: train network parts that fit, keep them as versioned components, recombine them, report what fits.

The public names. Each is imported when it is first used, so that ``import compatkit`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compatkit import data, errors, hooks, limits, metrics, plugins
    from compatkit.components import domains
    from compatkit.components.bridges.ladder import Bridge
    from compatkit.components.checkpoints.reading import read_checkpoint
    from compatkit.components.exports.reading import load_exported
    from compatkit.components.outcomes import Outcome
    from compatkit.components.ranking import Ranking
    from compatkit.components.registry import Registry
    from compatkit.components.scoring import rank
    from compatkit.contracts.check import Finding, Report, check
    from compatkit.contracts.contract import Blueprint, Contract, Label
    from compatkit.contracts.labels import common as match_classes
    from compatkit.contracts.labels import label
    from compatkit.contracts.manifest import About
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.component import Component
    from compatkit.evaluation.predictions import Prediction, Predictions
    from compatkit.evaluation.probes import Probed, explained, probe
    from compatkit.evaluation.recombination import Recombination
    from compatkit.experiments import studies
    from compatkit.experiments.sweeps.sweep import Sweep
    from compatkit.hooks import HOOK_API, Batch, autocast, effect, hookimpl, hookspec
    from compatkit.measuring.activations import Activations, activations
    from compatkit.measuring.arrays import measure_arrays
    from compatkit.measuring.measure import measure
    from compatkit.measuring.measurement import Measurement
    from compatkit.measuring.similarity import similarity
    from compatkit.plugins import Use, use
    from compatkit.registry.policies import Policy
    from compatkit.registry.signing import public as signing
    from compatkit.registry.versions.diff import Difference
    from compatkit.reports import pictures
    from compatkit.reports.matrix import Matrix
    from compatkit.reports.verdicts import Verdicts, check_all
    from compatkit.training import testing
    from compatkit.training.evaluating import EarlyStopping
    from compatkit.training.fit import Fit
    from compatkit.training.optim import Schedule
    from compatkit.training.pretraining import Pretraining
    from compatkit.training.recording import LayerCall
    from compatkit.training.set_up import SetUp
    from compatkit.training.state import AuxiliaryHead, TaskState
    from compatkit.training.step import Step
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer

    __version__: str

_HOMES = {
    "HOOK_API": "compatkit.hooks",
    "About": "compatkit.contracts.manifest",
    "Activations": "compatkit.measuring.activations",
    "AuxiliaryHead": "compatkit.training.state",
    "Batch": "compatkit.hooks",
    "Blueprint": "compatkit.contracts.contract",
    "Bridge": "compatkit.components.bridges.ladder",
    "Component": "compatkit.evaluation.component",
    "Contract": "compatkit.contracts.contract",
    "DataSet": "compatkit.data.dataset",
    "Difference": "compatkit.registry.versions.diff",
    "EarlyStopping": "compatkit.training.evaluating",
    "Finding": "compatkit.contracts.check",
    "Fit": "compatkit.training.fit",
    "Label": "compatkit.contracts.contract",
    "LayerCall": "compatkit.training.recording",
    "Matrix": "compatkit.reports.matrix",
    "Measurement": "compatkit.measuring.measurement",
    "Outcome": "compatkit.components.outcomes",
    "Policy": "compatkit.registry.policies",
    "Prediction": "compatkit.evaluation.predictions",
    "Predictions": "compatkit.evaluation.predictions",
    "Pretraining": "compatkit.training.pretraining",
    "Probed": "compatkit.evaluation.probes",
    "Recombination": "compatkit.evaluation.recombination",
    "Ranking": "compatkit.components.ranking",
    "Registry": "compatkit.components.registry",
    "Report": "compatkit.contracts.check",
    "Schedule": "compatkit.training.optim",
    "SetUp": "compatkit.training.set_up",
    "Split": "compatkit.data.dataset",
    "Step": "compatkit.training.step",
    "Sweep": "compatkit.experiments.sweeps.sweep",
    "Task": "compatkit.training.task",
    "TaskState": "compatkit.training.state",
    "Trainer": "compatkit.training.trainer",
    "Use": "compatkit.plugins",
    "Verdicts": "compatkit.reports.verdicts",
    "activations": "compatkit.measuring.activations",
    "check": "compatkit.contracts.check",
    "check_all": "compatkit.reports.verdicts",
    "autocast": "compatkit.hooks",
    "effect": "compatkit.hooks",
    "hookimpl": "compatkit.hooks",
    "hookspec": "compatkit.hooks",
    "load_exported": "compatkit.components.exports.reading",
    "explained": "compatkit.evaluation.probes",
    "label": "compatkit.contracts.labels",
    "measure": "compatkit.measuring.measure",
    "measure_arrays": "compatkit.measuring.arrays",
    "probe": "compatkit.evaluation.probes",
    "rank": "compatkit.components.scoring",
    "read_checkpoint": "compatkit.components.checkpoints.reading",
    "similarity": "compatkit.measuring.similarity",
    "use": "compatkit.plugins",
}
_MODULES = {
    "adapters": "compatkit.adapters",
    "data": "compatkit.data",
    "domains": "compatkit.components.domains",
    "errors": "compatkit.errors",
    "evaluation": "compatkit.evaluation",
    "hooks": "compatkit.hooks",
    "limits": "compatkit.limits",
    "metrics": "compatkit.metrics",
    "networks": "compatkit.adapters.networks",
    "pictures": "compatkit.reports.pictures",
    "plugins": "compatkit.plugins",
    "signing": "compatkit.registry.signing.public",
    "studies": "compatkit.experiments.studies",
    "testing": "compatkit.training.testing",
    "training": "compatkit.training",
}

__all__ = [
    "HOOK_API",
    "About",
    "Activations",
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
    "Probed",
    "Ranking",
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
    "activations",
    "autocast",
    "check",
    "check_all",
    "data",
    "domains",
    "effect",
    "errors",
    "explained",
    "hookimpl",
    "hooks",
    "hookspec",
    "label",
    "limits",
    "load_exported",
    "match_classes",
    "measure",
    "measure_arrays",
    "metrics",
    "pictures",
    "plugins",
    "probe",
    "rank",
    "read_checkpoint",
    "signing",
    "similarity",
    "studies",
    "testing",
    "use",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        from importlib.metadata import version

        globals()["__version__"] = version("compatkit")
        return globals()["__version__"]
    if name == "match_classes":
        return import_module("compatkit.contracts.labels").common
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'compatkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
