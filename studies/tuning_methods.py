"""Methods of fine-tuning: what does each gain over plain fine-tuning on few images?

Papers: those of the regularizers, see ``docs/how_to/fine_tuning.md``; strengths are those of their public code.
    None of their figures is repeated here.
Here: the arms differ in the method alone; steps, rate and images are the same, without weight decay. ``fixed`` and
    ``two-layer`` train nothing but their heads, one layer or two; batch normalization takes the target's statistics.
Control: ``random`` is the same method from Gaussian filters of the pretrained norms: what a method keeps there is
    nothing that was learned, so that a gain over ``plain`` there is not one of transfer.

    compatkit study run tuning --seeds 3 --data DIR --out OUT
"""

from __future__ import annotations

from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Run, Study
from compatkit.hooks import Register

from ._fine_tuning import (
    PAPER,
    RESIDUAL,
    TASK,
    deviation,
    few,
    moved,
    pretrain,
    random_weights,
    source,
    tested,
    tune,
)
from ._pairs import temporary_registry

SMALL: dict[str, Any] = {**RESIDUAL, "target": "usps", "few": 100, "steps": 100}
LARGE: dict[str, Any] = {**PAPER, "target": "stl10", "few": 1000, "steps": 5000, "weight_decay": 0.0}
LAYERS = ("layer1", "layer2", "layer3")
TWO = {"model": "two_layer_head", "cut": "conv1", "kwargs": {"channels": 64}}


def methods(steps: int) -> dict[str, list[ck.RegularizerConfig]]:
    """Return the regularizers of each arm."""
    return {
        "plain": [],
        "fixed": [],
        "two-layer": [],
        "l2_sp": [ck.use("l2_sp", alpha=0.01, beta=0.01)],
        "bss": [ck.use("bss", weight=0.001)],
        # The public code adds .01 times the sum over a batch of 48 images.
        "delta": [ck.use("delta", weight=0.48, layers=list(LAYERS), fit_steps=50, batch_size=50)],
        "co_tuning": [ck.use("co_tuning", weight=2.3, steps=10, batch_size=50)],
        "stochnorm": [ck.use("stochnorm", p=0.5)],
        "gradual": [ck.use("gradual_unfreezing", every=max(1, steps // 8))],
        "head-first": [ck.use("gradual_unfreezing", every=max(1, steps // 4), stages=1)],
    }


def run(run: Run) -> Outcome:
    """Fine-tune by the method of the arm, from pretrained weights and from the control's."""
    settings = run.settings
    own = source(settings, run.load(settings["source"]), run.seed)
    target = few(settings, run.load(settings["target"]), run.seed).converted(settings["channels"])
    weights = pretrain(run, settings, own)
    starts = {"": weights, "random": random_weights(run, settings, own, weights, run.seed)}
    uses = [*methods(settings["steps"])[run.arm], *run.added]
    fixed = run.arm in ("fixed", "two-layer")
    values: dict[str, float | None] = {}
    for name, start in starts.items():
        with temporary_registry() as registry:
            more: dict[str, Any] = {}
            if run.arm == "two-layer":
                registry.publish(tune(run, settings, target, start, steps=0), prefix="start")
                start, more = None, {"extractor": registry[f"start/{TASK}.extractor"], "rest": TWO}
            fit = tune(run, settings, target, start, uses, fixed=fixed, **more)
            values[name or "accuracy"] = tested(fit)
            if not name:
                begun = tune(run, settings, target, start, steps=0, **more)
                values["deviation"] = deviation(moved(fit.tasks[TASK], begun, len(target.train)))
    return Outcome(values=values)


STUDY = Study(
    title="methods of fine-tuning",
    question="What does each method of fine-tuning gain on few images, and from what was learned before?",
    reference="Li et al. 2018 and 2019, Chen et al. 2019, You et al. 2020, Kou et al. 2020, Howard and Ruder 2018, "
    "Kumar et al. 2022",
    arms=tuple(methods(1)),
    measures=(
        Measure(name="accuracy", title="accuracy on the target"),
        Measure(name="random", title="accuracy from random weights of the pretrained norms"),
        Measure(name="deviation", title="weight deviation", better="none"),
    ),
    sizes={"cpu": SMALL, "paper": LARGE},
    scale={
        "cpu": "ResNet-8 from 4,000 images of MNIST, 100 images of USPS at 16x16, 100 steps of 32.",
        "paper": "ResNet-56 from CIFAR-100, 1,000 images of STL-10.",
    },
    paper=(),
    run=run,
    extends="plain",
    data=("mnist", "usps"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer the study ``tuning``."""
    register("tuning", lambda: STUDY)
