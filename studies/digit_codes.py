"""Digits from codes: does the reverse pass to chosen codes give each of them a meaning of its own?

Paper: "Reviving Autoencoder Pretraining", Sec. 4, B.2, Fig. 16: a generator of 74 numbers as in InfoGAN, trained by a
    GAN loss on MNIST. With RR^1 on c_1, c_2, c_3 alone, c_1 controls the digit, c_2 and c_3 its style; in a regular run
    "no clear correspondence" shows. Pictures without numbers.
Here: the same with fewer steps; how well the reverse pass recovers the codes, how much of the images' variance c_1
    explains, and how well c_1 tells the digit that a classifier sees.
Control: ``rr-noise``, the same loss on twelve of the 62 noise numbers: c_1 must stay as in the plain run.
    ``std-turns`` and ``rr-turns``: discriminator and generator take turns, in twice the steps.

    compatkit study run 0.5 --seeds 5 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import image_grid
from compatkit_plugins.regularizers.reverse_pass.full import reconstruct  # pyright: ignore[reportMissingImports]

from ._arms import REFERENCE, trainer
from ._smoke import few, shown

CATEGORIES, CODES = 10, 74
GROUPS: Mapping[str, list[list[float]]] = {
    "rr": [[0, 10, 4 / 3], [10, 12, 1.0]],
    "rr-noise": [[12, 22, 4 / 3], [22, 24, 1.0]],
}
TURNS = "-turns"
"""Suffix of arms whose two networks take turns."""
ROWS = 4
"""Noise vectors in a picture."""
_CLASSIFIERS: dict[tuple[int, int], Any] = {}
CPU: dict[str, Any] = {
    **{"steps": 1000, "batch_size": 64, "lr": 2e-3, "noise": 0.3, "rr": 3.0},
    **{"train": 10_000, "judge_steps": 200},
}
PAPER: dict[str, Any] = {**CPU, "steps": 50_000, "train": 0, "judge_steps": 3000}
SCALE = (
    "the paper gives neither steps nor weights; here {steps:,} steps of {batch_size} (twice as many in turns), weight "
    "{rr}, noise of {noise} before the discriminator"
)


def drawn(count: int, seed: int) -> Tensor:
    """Return codes, ``(count, 74)``: as many of each category in turn, uniform styles, normal noise."""
    draw = torch.Generator().manual_seed(seed)
    category = torch.nn.functional.one_hot(torch.arange(count) % CATEGORIES, CATEGORIES).float()
    styles = torch.rand(count, 2, generator=draw) * 2 - 1
    return torch.cat([category, styles, torch.randn(count, CODES - CATEGORIES - 2, generator=draw)], 1)


def assigned(predicted: Tensor, category: Tensor) -> float:
    """Return the share of images whose class is that of their category, by the best one-to-one assignment."""
    table = torch.zeros(CATEGORIES, CATEGORIES)
    table.index_put_((category, predicted), torch.ones(len(predicted)), accumulate=True)
    rows, columns = linear_sum_assignment(-table.numpy())
    return float(table[rows, columns].sum() / len(predicted))


def explained(images: Tensor, category: Tensor) -> float:
    """Return the share of the images' variance that lies between the means of categories."""
    total = (images - images.mean(0)).square().mean()
    means = torch.stack([images[category == number].mean(0) for number in range(CATEGORIES)])
    return float((means[category] - images.mean(0)).square().mean() / total)


def judge(run: Run, data: ck.DataSet) -> Any:
    """Return a classifier of digits, trained once for all runs."""
    key = run.settings["judge_steps"], len(data.train)
    if key not in _CLASSIFIERS:
        plan = ck.Trainer(steps=key[0], batch_size=64, lr=1e-3, precision="float32", progress=False, seed=0)
        flat = {"mean": 0.0, "std": 1.0}
        task = ck.Task("judge", data, "simple_cnn", "forward_features", size=16, normalize=flat)
        _CLASSIFIERS[key] = plan.fit([task]).network("judge").eval()
    return _CLASSIFIERS[key]


@torch.no_grad()
def run(run: Run) -> Outcome:
    """Train a generator of digits, and find what its codes mean."""
    settings = run.settings
    data = run.load("mnist").resized((16, 16)).subset(settings["train"] or None)
    arm, turns = run.arm.removesuffix(TURNS), run.arm.endswith(TURNS)
    adversarial = "adversarial_in_turns" if turns else "adversarial"
    used = [ck.use(adversarial, channels=[16, 32], noise=settings["noise"])]
    if arm in GROUPS:
        used.append(ck.use("code_recovery", weight=settings["rr"], groups=GROUPS[arm]))
    task = ck.Task("digits", data, "info_gan", "generator", size=16)
    with torch.enable_grad():
        # Momentum .5 of Adam, as Radford et al. (2016), for generator and discriminator.
        options = {"optimizer_options": {"betas": [0.5, 0.999]}}
        steps = settings["steps"] * (2 if turns else 1)  # as many updates of each network
        fit = trainer(run, steps, settings["lr"], settings["batch_size"], **options).fit([task], used)
        classifier = judge(run, data)
    (state,) = fit.tasks.values()
    generator: Any = state.extractor.get_submodule("generator").eval()
    codes = drawn(1000, run.seed)
    category = codes[:, :CATEGORIES].argmax(1)
    images, back = generator(codes), reconstruct(generator, codes)
    predicted = classifier(images).argmax(1)
    correlations = [float(np.corrcoef(back[:, at], codes[:, at])[0, 1]) for at in (10, 11)]
    values: dict[str, float | None] = {
        "category-accuracy": float((back[:, :CATEGORIES].argmax(1) == category).float().mean()),
        "style-correlation": sum(correlations) / 2,
        "explained": explained(images, category),
        "digit-accuracy": assigned(predicted, category),
        "digits": float(torch.bincount(predicted, minlength=CATEGORIES).gt(10).sum()),
        "confidence": float(classifier(images).softmax(1).amax(1).mean()),
    }
    pictures = {name: few(generator(inputs), len(inputs)) for name, inputs in varied(run.seed).items()}
    return Outcome(
        values={k: v if v == v else None for k, v in values.items()},
        figure_data=pictures if run.seed == 0 else {},
    )


def varied(seed: int) -> dict[str, Tensor]:
    """Return codes of which one varies: the category in rows of ten, a style from -2 to 2 in rows of ten."""
    noise = drawn(ROWS, seed).repeat_interleave(CATEGORIES, 0)
    codes = {name: noise.clone() for name in ("c1", "c2", "c3")}
    codes["c1"][:, :CATEGORIES] = torch.eye(CATEGORIES).repeat(ROWS, 1)
    for variable, name in ((10, "c2"), (11, "c3")):
        codes[name][:, variable] = torch.linspace(-2, 2, CATEGORIES).repeat(ROWS)
    return codes


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw images of the first seed in which one code varies from left to right, other noise in each row."""
    drawn: dict[str, bytes] = {}
    for arm in results.arms:
        pictures = next((run for run in results.figure_data(arm) if "c1" in run), None)
        if pictures is None:
            continue
        rows = {
            f"{name}, noise {row + 1}": shown(pictures[name])[row * CATEGORIES :][:CATEGORIES]
            for name, count in (("c1", ROWS), ("c2", 2), ("c3", 2))
            for row in range(count)
        }
        drawn[f"codes-{arm}"] = image_grid(rows, low=0, high=255)
    return drawn


STUDY = Study(
    title="disentangled codes of digits",
    question="Does the reverse pass to three chosen codes let them control the digit and its style, where a plain GAN "
    "gives them no meaning?",
    reference=f"{REFERENCE}, Sec. 4, B.2, Fig. 16",
    arms=("std", "rr", "rr-noise", f"std{TURNS}", f"rr{TURNS}"),
    measures=(
        Measure(name="category-accuracy", title="category recovered by the reverse pass (chance .1)"),
        Measure(name="style-correlation", title="correlation of the recovered style codes"),
        Measure(name="explained", title="variance of images between categories"),
        Measure(name="digit-accuracy", title="digit told by the category, best assignment"),
        Measure(name="digits", title="digits of which there are more than 1 %", unit="digits", drawn=False),
        Measure(name="confidence", title="mean confidence of the classifier", drawn=False),
    ),
    sizes={"cpu": CPU, "paper": PAPER},
    scale={
        "cpu": f"{SCALE.format(**CPU)}, 10,000 images of MNIST at 16x16 (60,000 at 28x28), a generator of three "
        "layers.",
        "paper": f"{SCALE.format(**PAPER)}.",
    },
    paper=(),  # figure 16 shows images without numbers
    run=run,
    draw=draw,
    data=("mnist",),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.5."""
    register("0.5", lambda: STUDY)
