"""Public names: the one list, read by type checkers, by ``compatkit.__getattr__`` and by ``dir(compatkit)``."""

from compatkit import data as data
from compatkit import errors as errors
from compatkit import hooks as hooks
from compatkit import plugins as plugins
from compatkit.adapters.cutting.planning import cuts as cuts
from compatkit.components import domains as domains
from compatkit.components.bridges.ladder import Bridge as Bridge
from compatkit.components.checkpoints.reading import read_checkpoint as read_checkpoint
from compatkit.components.exports.reading import load_exported as load_exported
from compatkit.components.outcomes import PolicyOutcome as PolicyOutcome
from compatkit.components.ranking import Ranking as Ranking
from compatkit.components.registry import Registry as Registry
from compatkit.components.splitting import split as split
from compatkit.contracts.check import Finding as Finding
from compatkit.contracts.check import Report as Report
from compatkit.contracts.check import check as check
from compatkit.contracts.contract import Blueprint as Blueprint
from compatkit.contracts.contract import Contract as Contract
from compatkit.contracts.contract import Label as Label
from compatkit.contracts.labels import common
from compatkit.contracts.labels import label as label
from compatkit.contracts.manifest import About as About
from compatkit.data.dataset import DataSet as DataSet
from compatkit.data.dataset import Split as Split
from compatkit.evaluation import metrics as metrics
from compatkit.evaluation.component import Component as Component
from compatkit.evaluation.predictions import Prediction as Prediction
from compatkit.evaluation.predictions import Predictions as Predictions
from compatkit.evaluation.probes import Probed as Probed
from compatkit.evaluation.probes import explained as explained
from compatkit.evaluation.probes import probe as probe
from compatkit.evaluation.recombination import Recombination as Recombination
from compatkit.experiments import studies as studies
from compatkit.experiments.sweeps.sweep import Sweep as Sweep
from compatkit.foundation import limits as limits
from compatkit.hooks import HOOK_API as HOOK_API
from compatkit.hooks import Batch as Batch
from compatkit.hooks import RunInfo as RunInfo
from compatkit.hooks import autocast as autocast
from compatkit.hooks import effect as effect
from compatkit.hooks import hookimpl as hookimpl
from compatkit.hooks import hookspec as hookspec
from compatkit.measuring.activations import Activations as Activations
from compatkit.measuring.activations import activations as activations
from compatkit.measuring.arrays import measure_arrays as measure_arrays
from compatkit.measuring.measure import measure as measure
from compatkit.measuring.measurement import Measurement as Measurement
from compatkit.measuring.similarity import similarity as similarity
from compatkit.plugins import RegularizerConfig as RegularizerConfig
from compatkit.plugins import use as use
from compatkit.registry.policies import Policy as Policy
from compatkit.registry.signing import public
from compatkit.registry.versions.diff import Difference as Difference
from compatkit.reports import pictures as pictures
from compatkit.reports.comparison import Comparison as Comparison
from compatkit.reports.matrix import Matrix as Matrix
from compatkit.reports.verdicts import Verdicts as Verdicts
from compatkit.reports.verdicts import check_all as check_all
from compatkit.training import testing as testing
from compatkit.training.averaged_network import AveragedNetwork as AveragedNetwork
from compatkit.training.ending import Evaluation as Evaluation
from compatkit.training.evaluating import EarlyStopping as EarlyStopping
from compatkit.training.fit import Fit as Fit
from compatkit.training.joint import JointStep as JointStep
from compatkit.training.layer_recording import LayerCall as LayerCall
from compatkit.training.optim import Schedule as Schedule
from compatkit.training.plugin_setup import SetUp as SetUp
from compatkit.training.pretraining import Pretraining as Pretraining
from compatkit.training.step import Step as Step
from compatkit.training.task import Task as Task
from compatkit.training.task_state import AuxiliaryHead as AuxiliaryHead
from compatkit.training.task_state import TaskState as TaskState
from compatkit.training.trainer import Trainer as Trainer

__version__: str
match_classes = common
signing = public
