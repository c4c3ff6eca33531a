"""Hook specifications: what a plugin can do, when, and with which arguments.

There are two separate layers. **Registration hooks** are called once, when a run looks up a plugin by name. **Training
hooks** are methods of the object that a regularizer's factory returns; a fit resolves them once into plain tuples, so
pluggy is never called inside a step.

The arguments of training hooks are declared in ``arguments``.
"""

from __future__ import annotations

from compatkit.hooks.arguments import Batch as Batch
from compatkit.hooks.arguments import EvaluationLike as EvaluationLike
from compatkit.hooks.arguments import JointStepLike as JointStepLike
from compatkit.hooks.arguments import LoggerLike as LoggerLike
from compatkit.hooks.arguments import PretrainingLike as PretrainingLike
from compatkit.hooks.arguments import RunInfo as RunInfo
from compatkit.hooks.arguments import SetUpLike as SetUpLike
from compatkit.hooks.arguments import StepLike as StepLike
from compatkit.hooks.arguments import TaskLike as TaskLike
from compatkit.hooks.markers import EFFECTS as EFFECTS
from compatkit.hooks.markers import PROJECT as PROJECT
from compatkit.hooks.markers import Effect as Effect
from compatkit.hooks.markers import autocast as autocast
from compatkit.hooks.markers import effect as effect
from compatkit.hooks.markers import hookimpl as hookimpl
from compatkit.hooks.markers import hookspec as hookspec
from compatkit.hooks.registration import Register as Register
from compatkit.hooks.registration import Registration as Registration
from compatkit.hooks.training import Phase as Phase
from compatkit.hooks.training import Training as Training
from compatkit.hooks.versions import HOOK_API as HOOK_API
from compatkit.hooks.versions import HOOK_VERSION as HOOK_VERSION
