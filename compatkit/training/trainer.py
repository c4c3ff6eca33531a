"""The trainer: one loop for one or many tasks that may share auxiliary heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from compatkit.errors import UsageError
from compatkit.foundation.arguments import checks_arguments
from compatkit.plugins import RegularizerConfig
from compatkit.training.fit import Fit
from compatkit.training.manifest import Explanation
from compatkit.training.prepare import FitRequest, Frozen, Statistics, prepare
from compatkit.training.profiling import Profile, profile
from compatkit.training.run import run
from compatkit.training.settings import Settings
from compatkit.training.task import Task


@checks_arguments
@attrs.frozen(kw_only=True)
class Trainer(Settings):
    """Trains tasks by alternating their mini-batches: one step of each in turn.

    The defaults are those of Gygli et al. (Sec. 4): Adam, learning rate 0.01 divided by ten every quarter of
    the steps, L2 1e-7; the paper's batch size is 512.

    The first ten settings, ``steps`` to ``checkpoint``, are those that most runs state. The others belong to:

    - optimization: ``optimizer_options`` to ``ema_warmup``
    - evaluation: ``evaluate_every`` to ``stop_early``
    - checkpoints: ``checkpoint_every`` to ``new_augment``
    - the history and logs: ``log_every`` to ``progress``
    - execution: ``precision`` to ``synchronize_statistics``
    - storage of images: ``image_storage`` to ``cache``

    Attributes:
        steps: Steps of each task (the paper's 20,000 is read as a count per task); with 0 the fit has pretrained
            or initial weights.
        seed: Seed of all random numbers of the run.
        batch_size: Images per step, on all processes together.
        optimizer: ``"adam"`` or ``"sgd"`` as in the papers, or any other by timm's name, such as ``"adamw"`` or
            ``"lookahead_lion"``: ``timm.optim.list_optimizers()``.
        lr: Initial learning rate.
        weight_decay: For the papers' optimizers an L2 penalty, added to the gradient. Other optimizers decay as
            timm's do, except norms, biases, and parameters that a network's ``no_weight_decay()`` names.
        schedule: ``"step"``, ``"cosine"``, ``"constant"``, or a ``Schedule``.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        validation: Share of the training images of each class to hold out, drawn from (seed, task).
        checkpoint: File for the state of the run; a run with the same plan resumes from it, bit by bit.
        optimizer_options: Further arguments of the optimizer: ``{"betas": [0.9, 0.95]}``.
        layer_decay: Factor of the learning rate from each layer of a network to the one before it, by timm's
            ``group_matcher`` of the uncut network; shared heads have the full rate. None keeps one rate.
        momentum: Momentum, for optimizers that have one.
        warmup: Steps of linear rise of the learning rate.
        accumulate: Number of micro-batches per step, whose gradients are summed; ``batch_size`` counts all images of
            a step.
        clip_norm: Largest norm of all gradients of a step; None does not clip.
        ema: Decay of exponential moving averages of all trained weights, between 0 and 1: ``Fit.averaged()``.
        ema_warmup: Whether that decay rises from 0 in the first steps.
        evaluate_every: Steps between evaluations of every task's own network: ``Fit.evaluations``. None makes none.
        evaluate_on: ``"validation"`` (the held-out share), ``"test"``, or ``"train"`` (all training images, without
            augmentation).
        stop_early: Rule that ends the run before the last step, by the held-out images.
        checkpoint_every: Steps between checkpoints; several processes round them up to full rows of the history.
        checkpoint_seconds: Seconds after which a checkpoint is due at any step, unless writing takes a large part of
            the time; None counts steps alone. A checkpoint is also written at the end and, in a run on one process,
            when Ctrl-C or SIGTERM ends it.
        new_augment: Whether a run may resume from a checkpoint whose tasks differ in ``augment`` alone; the manifest of
            the run then records each change and its step (``augment_changes``).
        log_every: Steps between rows of the history.
        loggers: Loggers of the run by name, each with its folder or a table of settings:
            ``{"csv": "runs/digits", "wandb": {"project": "digits"}}``; or a list of names and of tables with a name.
            Without a folder, files go to that of the checkpoint.
        run_name: Name of the run for plugins and loggers; None takes that of the checkpoint's file. It changes no
            result, plan or folder.
        progress: Whether to show progress on standard error: a bar in a terminal or a notebook, elsewhere a line
            every ten seconds, after a minute every thirty, after ten minutes every sixty; evaluations at once.
        precision: ``"auto"`` (bf16 where the hardware gains by it and, on a CPU, the networks are large enough; the
            plan says why, and a run that resumes from a checkpoint keeps its format), ``"float32"`` or ``"bf16"``
            (``"bfloat16"``).
        channels_last: Whether images and weights are NHWC in memory; None chooses.
        execution: ``"auto"`` chooses the fastest way by a trial on a GPU, and is ``"eager"`` elsewhere; ``"compile"``,
            ``"graph"`` (CUDA graphs of complete steps) or ``"compile+graph"`` falls back if something prevents it.
            ``Fit.run`` states the choice and its reason; a run that resumes from a checkpoint keeps the choice.
        deterministic: Whether to use only algorithms that give the same bits in every run on the same device; no trial.
        passes: Passes of the extractor over extra views of a batch, such as rotations: ``"fused"`` in one pass, each
            view normalized by itself, or ``"separate"``; ``"auto"`` is ``"fused"`` on a GPU. Results are equal to
            rounding, except for random numbers that networks draw (dropout).
        synchronize_statistics: Whether several processes on GPUs share the statistics of batch normalization; else
            each normalizes its share of a batch by itself.
        image_storage: Storage of training images: ``"resident"`` on the device, ``"prefetched"`` in host memory
            with the next batches in transfer, ``"auto"`` by size. Batches are bitwise the same.
        memory_share: Share of the device's free memory that the images of one task may take under ``"auto"``.
        workers: Number of processes that decode and augment the images of a task, where these are files or are
            augmented one by one; None takes one per processor, eight at most. Batches do not depend on it.
        cache: Whether images of files are decoded once, before the first step, into the user's cache folder:
            ``"auto"`` where this changes no pixel (augmentation that only moves pixels, or none), the run takes more
            than an epoch, and they take at most half of the free space; ``"on"`` always. Resized crops are then taken
            from images that are scaled down to the size that evaluation crops from (a shorter side of 256 pixels for
            224 and a share of .875), which is part of the plan; ``"off"`` never.

    Raises:
        UsageError: A setting cannot be used, or some do not go together.
    """

    def fit(
        self,
        tasks: Task | Sequence[Task],
        regularizers: Sequence[str | RegularizerConfig] = (),
        *,
        frozen: Frozen = None,
        frozen_statistics: Statistics = "stored",
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Fit:
        """Train ``tasks`` together, or one task against frozen heads.

        Args:
            tasks: One task or several; one step of each in turn.
            regularizers: Names or ``compatkit.use(...)``; only these plugins take part.
            frozen: Auxiliary heads that are not trained (incremental training): an earlier fit, or
                ``registry.frozen(...)``.
            frozen_statistics: Batch normalization inside frozen heads: ``"stored"``, which does not depend on the
                images of a batch, or ``"batch"``, the paper's regime (ahead by .01 to .03 in study 3.3), which does not
                update their buffers.
            factories: Regularizers that are not installed, by name: for notebooks.

        Raises:
            UsageError: Names, settings or data do not fit together.
            DataError: A data set has one class only, or is smaller than a batch.
            PluginError: A regularizer is broken or set up wrongly.
            TrainingError: A loss or weight is not finite, or the checkpoint belongs to another plan.
            MissingDependency: A logger needs a library that is not installed.
            EnvironmentFailure: The memory is too small, or a checkpoint cannot be written.
        """
        request = FitRequest(self, tasks, regularizers, frozen, frozen_statistics, factories)
        with prepare(request) as prepared:
            return run(prepared)

    def explain(
        self,
        tasks: Task | Sequence[Task],
        regularizers: Sequence[str | RegularizerConfig] = (),
        *,
        frozen: Frozen = None,
        frozen_statistics: Statistics = "stored",
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Explanation:
        """Return the plan of ``fit`` with the same arguments, without taking a step: see ``Explanation``.

        Args:
            tasks: As for ``fit``.
            regularizers: As for ``fit``.
            frozen: As for ``fit``.
            frozen_statistics: As for ``fit``.
            factories: As for ``fit``.

        Raises:
            CompatkitError: As ``fit`` does.
        """
        request = FitRequest(self, tasks, regularizers, frozen, frozen_statistics, factories, dry=True)
        with prepare(request) as prepared:
            return Explanation.of(prepared.loop)

    def profile(
        self,
        tasks: Task | Sequence[Task],
        regularizers: Sequence[str | RegularizerConfig] = (),
        *,
        steps: int = 20,
        frozen: Frozen = None,
        frozen_statistics: Statistics = "stored",
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Profile:
        """Return how the time of the first ``steps`` steps of each task is divided; nothing is trained.

        Args:
            tasks: As for ``fit``.
            regularizers: As for ``fit``.
            steps: Number of steps of each task to time, at least 1.
            frozen: As for ``fit``.
            frozen_statistics: As for ``fit``.
            factories: As for ``fit``.

        Raises:
            CompatkitError: As ``fit`` does.
        """
        if steps < 1:
            raise UsageError(f"Trainer.profile needs steps >= 1; got {steps}.")
        request = FitRequest(self, tasks, regularizers, frozen, frozen_statistics, factories, dry=True)
        with prepare(request) as prepared:
            return profile(prepared.loop, steps)
