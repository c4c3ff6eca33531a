"""Variational autoencoders of studies 2.2 to 2.12: settings, data with factors, training, layers, comparison."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import compatkit as ck
from compatkit.errors import UnknownName
from compatkit.experiments.studies import Run
from compatkit.reports.pictures import image_grid
from compatkit_plugins.data_sets.cars3d import cars3d  # pyright: ignore[reportMissingImports]
from compatkit_plugins.data_sets.celeba import celeba  # pyright: ignore[reportMissingImports]
from compatkit_plugins.data_sets.dsprites import dsprites  # pyright: ignore[reportMissingImports]
from compatkit_plugins.data_sets.smallnorb import smallnorb  # pyright: ignore[reportMissingImports]
from compatkit_plugins.data_sets.solids import solids  # pyright: ignore[reportMissingImports]
from compatkit_plugins.data_sets.sprites import sprites  # pyright: ignore[reportMissingImports]
from compatkit_plugins.factored import Factored  # pyright: ignore[reportMissingImports]

REFERENCE = "Bonheme and Grzes 2023, How Good Are Variational Autoencoders at Transfer Learning?"
TASK = "net"
SMALL: dict[str, Any] = {
    **{"arch": "conv", "image": 32, "latent": 10, "images": 5000, "samples": 1000},
    **{"steps": 800, "batch_size": 32, "lr": 0.001, "networks": ""},
}
"""Settings on two cores: ``samples`` are compared; ``networks`` is a folder that keeps trained networks, so that
several studies with the same settings train each once."""
PAPER: dict[str, Any] = {
    **{"arch": "conv", "image": 64, "latent": 10, "images": 0, "samples": 5000},
    **{"steps": 300_000, "batch_size": 64, "lr": 0.0001, "networks": ""},
}
SCALE = (
    "{image}x{image} pixels (64x64), {images:,} images drawn here in place of the paper's data sets, {steps:,} steps "
    "of {batch_size} images at a rate of {lr} (300,000 of 64 at .0001), {samples:,} samples to compare (5,000)"
)
OTHER = 1000
"""Added to the seed of a run for a second network of the same kind."""
LATENT = ("mean", "log_variance", "sampled")
ENCODER = {
    "conv": tuple(f"encoder.{layer}" for layer in ("conv1", "conv2", "conv3", "conv4", "flatten", "dense")),
    "dense": ("encoder.dense1", "encoder.dense2"),
}
DECODER = {
    "conv": tuple(
        f"decoder.{layer}" for layer in ("dense1", "dense2", "deconv1", "deconv2", "deconv3", "deconv4")
    ),
    "dense": ("decoder.dense1", "decoder.dense2", "decoder.dense3", "decoder.last"),
}
"""The layers of the paper: e1 to e6 and d1 to d6."""
Arrays = dict[str, NDArray[Any]]


SETS: dict[str, Callable[[str | None, int, int | None], Factored]] = {
    "cars3d": lambda root, size, count: cars3d(root, size=size),
    "celeba": lambda root, size, count: celeba(root, size=size, count=count),
    "dsprites": lambda root, size, count: dsprites(root, count=count),
    "smallnorb": lambda root, size, count: smallnorb(root, size=size),
    "solids": lambda root, size, count: solids(size=size, count=count or 5000),
    "solids-moved": lambda root, size, count: solids(
        size=size, count=count or 5000, positions=8, scales=4, name="solids-moved"
    ),
    "sprites": lambda root, size, count: sprites(size=size),
}
"""Images with factors by root, size and number of images (None for all); dSprites' are always 64x64."""


@lru_cache(maxsize=8)
def _factored(name: str, root: str | None, size: int, count: int) -> Factored:
    if name not in SETS:
        raise UnknownName(
            f"There are no images with factors called {name!r:.60}; known are {', '.join(SETS)}.",
            subject=name,
        )
    images = SETS[name](root, size, count or None)
    return images.take(count) if count else images


def factored(run: Run, name: str) -> Factored:
    """Return images with factors at the size of the run, read once; the run records their digests."""
    images = _factored(name, run.root, run.settings["image"], run.settings["images"])
    run.note(_labeled(images))
    return images


def data_of(run: Run, name: str) -> ck.DataSet:
    """Return the same as a data set, labeled by the first factor; the seed 0 draws the test images of all runs."""
    return _labeled(factored(run, name))


def _labeled(images: Factored) -> ck.DataSet:
    return images.labeled(next(iter(images.factors)))


def samples_of(run: Run, name: str) -> ck.Split:
    """Return the images on which layers are compared: of the test images first, then of those for training."""
    data, count = data_of(run, name), run.settings["samples"]
    test = data.test.take(range(min(count, len(data.test))))
    left = count - len(test)
    if left <= 0:
        return test
    more = data.train.take(range(min(left, len(data.train))))
    both = np.concatenate([split.read(range(len(split))) for split in (test, more)])
    return ck.Split(
        both, np.concatenate([test.labels, more.labels]), data.classes, f"{name}/compared", sample=True
    )


def train(
    run: Run,
    name: str,
    objective: ck.RegularizerConfig | None = None,
    *uses: ck.RegularizerConfig,
    seed: int | None = None,
    factories: Mapping[str, Any] | None = None,
    **changes: Any,
) -> ck.Fit:
    """Train a network on a data set, or take it from the folder of trained ones.

    Args:
        run: Run of the study.
        name: Name of the data set.
        objective: Objective of a VAE; None for a plain one.
        uses: Further plugins.
        seed: In place of the run's.
        factories: Plugins of the study.
        changes: ``weights``, ``steps``, and ``classifier``: a network with classes in place of latent variables.
    """
    settings = {**run.settings, **changes}
    data, weights, classifier = data_of(run, name), changes.get("weights"), changes.get("classifier", False)
    kwargs = {} if classifier else {"latent": settings["latent"]}
    kind = f"vae_{settings['arch']}{'_classifier' if classifier else ''}"
    more: dict[str, Any] = {"weights": weights}
    if classifier:
        more["normalize"] = {"mean": 0.0, "std": 1.0}
    task = ck.Task(
        TASK,
        data,
        kind,
        "encoder" if classifier else "decoder",
        size=settings["image"],
        kwargs=kwargs,
        **more,
    )
    chosen = [*uses] if classifier else [objective or ck.use("beta_vae", beta=1.0), *uses]
    trainer = ck.Trainer(
        steps=settings["steps"],
        seed=run.seed if seed is None else seed,
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        schedule="constant",
        weight_decay=0.0,
        precision="float32",
        progress=False,
        log_every=max(1, settings["steps"] // 20),
        **_kept(settings, data, chosen, weights, run.seed if seed is None else seed, kind, bool(factories)),
    )
    return trainer.fit([task], chosen, factories=factories)


def _kept(
    settings: Mapping[str, Any],
    data: ck.DataSet,
    uses: Sequence[ck.RegularizerConfig],
    weights: Mapping[str, torch.Tensor] | None,
    seed: int,
    kind: str,
    watched: bool,
) -> dict[str, Any]:
    """Return where a finished run is kept: its checkpoint, which the same run reads in place of training."""
    if not settings["networks"] or weights is not None or watched:
        return {}
    names = ("image", "latent", "steps", "batch_size", "lr")
    about = [kind, seed, data.train.digest, [repr(use) for use in uses], *(settings[name] for name in names)]
    folder = Path(settings["networks"])
    folder.mkdir(parents=True, exist_ok=True)
    called = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return {
        "checkpoint": folder / f"{called}.checkpoint",
        "checkpoint_every": settings["steps"],
        "checkpoint_seconds": None,
    }


def objective(run: Run, arm: str) -> ck.RegularizerConfig:
    """Return the objective that an arm names, such as ``beta-8``, ``beta-tc-2``, ``dip-5`` or ``annealed-25``.

    The weights are those of the paper; the lambda of its beta-TC-VAE is beta - 1. Capacity rises over a third of the
    steps, as in the paper.
    """
    kind, _, number = arm.rpartition("-")
    if kind == "beta-tc":
        return ck.use("beta_tc_vae", beta=float(number))
    if kind == "dip":
        return ck.use("dip_vae", off_diagonal=float(number))
    if kind == "annealed":
        return ck.use("annealed_vae", capacity=float(number), steps=max(1, run.settings["steps"] // 3))
    return ck.use("beta_vae", beta=float(number))


def weights_after(fit: ck.Fit) -> dict[str, torch.Tensor]:
    """Return the weights of the whole network."""
    return fit.weights(TASK)


def untrained(run: Run, name: str, *, seed: int | None = None) -> ck.Fit:
    """Return the network before its first step."""
    return train(run, name, seed=seed, steps=0, networks="")


def rows(fit: ck.Fit, images: ck.Split) -> Arrays:
    """Return what the layers give for images, one row an image: input, encoder, latent variables, decoder.

    Sampled variables, which a network itself draws in training only, have noise of their own: the same noise would make
    those of any two networks alike.

    Args:
        fit: Fit of a VAE or a classifier.
        images: In the order of the rows.
    """
    state = fit.tasks[TASK]
    arch = "conv" if "conv" in state.task.model else "dense"
    vae = "classifier" not in state.task.model
    names = [*ENCODER[arch], *(("latent", *DECODER[arch]) if vae else ())]
    activations = ck.activations(state, images, layers=names, batch_size=500)
    layers: Arrays = {"input": images.read(range(len(images))).reshape(len(images), -1) / np.float32(255)}
    layers |= {name: np.asarray(activations[name]) for name in ENCODER[arch]}
    if vae:
        mean, log_variance = np.split(np.asarray(activations["latent"]), 2, axis=1)
        noise = np.random.default_rng(zlib.crc32(mean.tobytes())).standard_normal(mean.shape)
        layers |= {"mean": mean, "log_variance": log_variance}
        layers["sampled"] = (mean + np.exp(log_variance / 2) * noise).astype(np.float32)
        layers |= {name: np.asarray(activations[name]) for name in DECODER[arch]}
    return layers


def means_of(fit: ck.Fit, images: Factored, indices: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the means of the latent variables for images at ``indices``, ``(n, variables)``."""
    split = ck.Split(
        images.images[indices], np.zeros(len(indices), np.int64), ("any",), images.name, sample=True
    )
    latent = ck.activations(fit.tasks[TASK], split, layers=["latent"], batch_size=500)["latent"]
    return np.split(np.asarray(latent), 2, axis=1)[0]


def similar(
    left: Arrays, right: Arrays, metric: str = "cka/biased"
) -> tuple[list[list[float]], dict[str, float]]:
    """Return the similarity of all layers, and means of layers with themselves over encoder and decoder.

    Args:
        left: Layers of one network.
        right: Layers of another one, on the same images.
        metric: A table of ``cka`` or ``procrustes``.

    Returns:
        The matrix, undefined cells as -1, and ``encoder``, ``decoder``, and those of the latent layers.
    """
    table = ck.similarity(left, right, [metric.partition("/")[0]]).table(metric)
    same = {name: table.at(this=name, other=name).value for name in left if name in right}
    means = {
        side: [value for name, value in same.items() if name.startswith(f"{side}.") and value is not None]
        for side in ("encoder", "decoder")
    }
    summary = {side: float(np.mean(values)) for side, values in means.items() if values}
    summary |= {name: value for name in LATENT if (value := same.get(name)) is not None}
    return np.nan_to_num(np.round(table.values, 4), nan=-1).tolist(), summary


def reconstructed(fit: ck.Fit, images: ck.Split) -> tuple[float, NDArray[np.float32]]:
    """Return the cross-entropy in nats an image, from the means of latent variables, and the rebuilt images.

    Args:
        fit: Fit of a VAE.
        images: Any of its size.

    Returns:
        The loss, and pixels from 0 to 1, ``(n, channels, height, width)``.
    """
    state = fit.tasks[TASK]
    logits = np.asarray(
        ck.activations(state, images, layers=["decoder"], batch_size=500)["decoder"], np.float64
    )
    pixels = images.read(range(len(images))).transpose(0, 3, 1, 2).reshape(len(images), -1) / 255
    loss = np.logaddexp(0, logits) - pixels * logits
    shape = (len(images), -1, *(images.size or ()))
    return float(loss.sum(1).mean()), (1 / (1 + np.exp(-logits))).reshape(shape).astype(np.float32)


def collapse(fit: ck.Fit, images: ck.Split) -> dict[str, float]:
    """Return counts of active, mixed, passive and varying units, and the divergence in nats."""
    measured = ck.measure(fit.tasks[TASK], images, ["posterior_collapse"], layers=["latent"], batch_size=500)
    units = {name: _number(measured[f"units/{name}"]) for name in ("active", "mixed", "passive", "varying")}
    table = measured.table("units")
    divergence = float(table.values[:, table.axes["quantity"].index("divergence")].sum())
    return {**{f"{name}-units": count for name, count in units.items()}, "divergence": divergence}


def _number(result: Any) -> float:
    return float(result.value or 0)


def side_by_side(shown: Mapping[str, Any], titles: Sequence[str] = ()) -> bytes:
    """Return a PNG of rows of images, given as nested lists or arrays of pixels from 0 to 1."""
    return image_grid(
        {name: np.asarray(images) for name, images in shown.items()}, low=0.0, high=1.0, titles=titles
    )


def few(images: NDArray[Any], count: int = 8) -> list[Any]:
    """Return the first images as JSON values, for figures."""
    return np.round(np.asarray(images[:count], dtype=np.float64), 2).tolist()


def originals(images: ck.Split, count: int = 8) -> list[Any]:
    """Return the first images as JSON values, pixels from 0 to 1."""
    return few(images.read(range(min(count, len(images)))).transpose(0, 3, 1, 2) / 255, count)


def scale(settings: Mapping[str, Any], more: str = "") -> str:
    """Return how the small size differs from the paper."""
    return SCALE.format(**settings) + (f"; {more}" if more else "") + "."
