"""Probes: are labels of one domain told from the latent variables of a VAE trained on another?

Paper: Bonheme and Grzes 2023, Sec. 4.3, Tables 1 to 4: gradient boosting on the mean representation, 10,000 images for
    training and 5,000 for testing, five seeds.
Here: 2.8 means over labels, 2.9 Cars3D, 2.10 sprites, 2.11 CelebA, label by label. An arm is the target, then the
    source.
Controls: chance (the most frequent class), and an untrained encoder (``...-untrained``).

    compatkit study run 2.8 --seeds 3 --out OUT
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import compatkit as ck
from compatkit.errors import DataError
from compatkit.experiments.studies import Measure, Outcome, Reported, Run, Study
from compatkit.hooks import Register

from ._vaes import OTHER, PAPER, REFERENCE, SMALL, factored, means_of, scale, train, untrained

CELEBA = (
    "Attractive",
    "Blond_Hair",
    "Heavy_Makeup",
    "High_Cheekbones",
    "Male",
    "Smiling",
    "Wavy_Hair",
    "Wearing_Lipstick",
)
"""The labels of the paper's Table 4."""
LABELS: dict[str, tuple[str, ...]] = {
    "sprites": ("shape", "scale", "orientation", "x", "y"),
    "solids": ("solid",),
    "cars3d": ("elevation", "azimuth", "type"),
    "celeba": CELEBA,
}
PROBES = ("gradient", "histogram", "logistic")
"""Kinds of ``ck.probe``; the first is the paper's."""
SPRITES = ("sprites-sprites", "sprites-solids", "solids-solids", "solids-sprites")
FACES = ("celeba-celeba", "celeba-cars3d", "cars3d-cars3d", "cars3d-celeba")
FILES = frozenset({"cars3d", "celeba"})


def probed(run: Run, kinds: Sequence[str]) -> dict[str, dict[str, ck.Probed]]:
    """Return what probes reach, by kind and label.

    Args:
        run: Its arm is target and source.
        kinds: Keys of ``PROBES``.
    """
    target, source = run.arm.split("-")
    called = run.settings["sets"]
    images = factored(run, called[target])
    if source == "untrained":
        trained = untrained(run, called[target], seed=run.seed + OTHER)
    else:
        trained = train(run, called[source])
    sides = [
        indices[: run.settings[which]]
        for indices, which in zip(images.partition(), ("train", "test"), strict=True)
    ]
    features = [means_of(trained, images, indices) for indices in sides]
    probes: dict[str, dict[str, ck.Probed]] = {kind: {} for kind in kinds}
    for kind in kinds:
        for label in LABELS[target]:
            pairs = [(x, images.factors[label][indices]) for x, indices in zip(features, sides, strict=True)]
            probes[kind][label] = ck.probe(*pairs, kind=kind, seed=run.seed)
    return probes


def averaged(run: Run) -> Outcome:
    """Return accuracies averaged over labels, by probe."""
    try:
        probes = probed(run, run.settings["probes"])
    except DataError as error:
        return Outcome(values={}, notes=(f"Left out: {error}",))
    values = {kind: mean(probe.accuracy for probe in labels.values()) for kind, labels in probes.items()}
    values["chance"] = mean(probe.chance for probe in next(iter(probes.values())).values())
    return Outcome(values=values)


def by_label(run: Run) -> Outcome:
    """Return the accuracy of the first probe, and chance, label by label."""
    try:
        (probes,) = probed(run, run.settings["probes"][:1]).values()
    except DataError as error:
        return Outcome(values={}, notes=(f"Left out: {error}",))
    values = {_word(label): probe.accuracy for label, probe in probes.items()}
    return Outcome(
        values=values | {f"chance-{_word(label)}": probe.chance for label, probe in probes.items()}
    )


def _word(label: str) -> str:
    return label.lower().replace("_", "-")


def _study(
    title: str,
    where: str,
    arms: tuple[str, ...],
    run: Callable[[Run], Outcome],
    measures: tuple[Measure, ...],
    paper: tuple[Reported, ...],
) -> Study:
    drawn = not FILES & {name for arm in arms for name in arm.split("-")}
    sets = {"sprites": "sprites", "solids": "solids", "cars3d": "cars3d", "celeba": "celeba"}
    small: dict[str, Any] = {
        **SMALL,
        "sets": sets,
        "train": 2000,
        "test": 500,
        "probes": ["gradient", "logistic"],
    }
    large: dict[str, Any] = {
        **PAPER,
        **{"sets": {**sets, "sprites": "dsprites"}, "images": 100_000 if drawn else 0},
        **{"train": 10_000, "test": 5000, "probes": list(PROBES)},
    }
    return Study(
        title=title,
        question="Do latent variables of a VAE that was trained on other images tell labels apart as well as those of "
        "the images' own?",
        reference=f"{REFERENCE} Sec. 4.3, {where}",
        arms=arms,
        measures=measures,
        sizes={"cpu": small, "paper": large},
        scale={
            "cpu": scale(SMALL, "2,000 images to train probes and 500 to test them (10,000 and 5,000)"),
            "paper": "sprites are dSprites' file, 100,000 of its images; solids are drawn here (Symsol)."
            if drawn
            else "",
        },
        paper=paper,
        run=run,
    )


def _labels(target: str) -> tuple[Measure, ...]:
    names = [_word(label) for label in LABELS[target]]
    return (
        *(Measure(name=name, title=f"accuracy: {name}") for name in names),
        *(
            Measure(name=f"chance-{name}", title=f"chance: {name}", better="none", drawn=False)
            for name in names
        ),
    )


def _reported(arms: tuple[str, str], table: str, **pairs: tuple[float, float]) -> tuple[Reported, ...]:
    return tuple(
        Reported(arm, name.replace("_", "-"), pair[index], table)
        for name, pair in pairs.items()
        for index, arm in enumerate(arms)
    )


TABLE_1 = (0.40, 0.39, 1.0, 0.99, 0.83, 0.82, 0.59, 0.42)
STUDIES = {
    "2.8": _study(
        "probes across domains",
        "Table 1",
        (*SPRITES, *FACES, "sprites-untrained", "solids-untrained"),
        averaged,
        (
            *(Measure(name=kind, title=f"accuracy over labels, {kind}") for kind in PROBES),
            Measure(name="chance", title="accuracy of the most frequent class", better="none"),
        ),
        tuple(
            Reported(arm, "gradient", value, "Table 1")
            for arm, value in zip((*SPRITES, *FACES), TABLE_1, strict=True)
        ),
    ),
    "2.9": _study(
        "probes of cars",
        "Table 2",
        FACES[2:],
        by_label,
        _labels("cars3d"),
        _reported(FACES[2:], "Table 2", elevation=(0.69, 0.50), azimuth=(0.73, 0.60), type=(0.35, 0.16)),  # type: ignore[arg-type]
    ),
    "2.10": _study(
        "probes of sprites",
        "Table 3",
        (*SPRITES[:2], "sprites-untrained"),
        by_label,
        _labels("sprites"),
        _reported(
            SPRITES[:2],  # type: ignore[arg-type]
            "Table 3",
            **{"shape": (0.72, 0.52), "scale": (0.53, 0.48), "orientation": (0.11, 0.05)},
            **{"x": (0.31, 0.46), "y": (0.31, 0.45)},
        ),
    ),
    "2.11": _study(
        "probes of faces",
        "Table 4",
        FACES[:2],
        by_label,
        _labels("celeba"),
        _reported(
            FACES[:2],  # type: ignore[arg-type]
            "Table 4",
            **{"attractive": (0.68, 0.64), "blond_hair": (0.89, 0.87), "heavy_makeup": (0.74, 0.68)},
            **{"high_cheekbones": (0.62, 0.59), "male": (0.75, 0.67), "smiling": (0.63, 0.60)},
            **{"wavy_hair": (0.72, 0.70), "wearing_lipstick": (0.75, 0.67)},
        ),
    ),
}


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer studies 2.8 to 2.11."""
    for number, study in STUDIES.items():
        register(number, lambda study=study: study)
