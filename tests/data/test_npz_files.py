"""The real packs, where they are present: counts, classes and figures known from the literature.

Decoding the 60,000 images of CIFAR-10 takes long: ``pytest -m slow tests/data/test_npz_files.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compatkit.contracts.labels import common
from compatkit.data import load, load_spec


def present(packs: Path, file: str) -> None:
    if not (packs / file).exists():
        pytest.skip(f"the folder of data packs holds no {file}")


def test_mnist_and_usps_share_all_ten_classes(packs):
    present(packs, "usps.npz")
    mnist, usps = load("mnist", root=packs), load("usps", root=packs)
    assert (len(mnist.train), len(mnist.test), mnist.train.size) == (60_000, 10_000, (28, 28))
    assert (len(usps.train), len(usps.test), usps.train.size) == (7_291, 2_007, (16, 16))
    assert common(mnist.classes, usps.classes) == [(i, i) for i in range(10)]
    mean, std = mnist.train.statistics()
    assert (round(mean[0], 4), round(std[0], 4)) == (0.1307, 0.3081)
    assert mnist.train.counts == (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


@pytest.mark.slow
def test_cifar_is_decoded_and_halved(packs):
    present(packs, "cifar10.webp.npz")
    data = load_spec(
        {"name": "cifar10", "half": 2, "train": 8000, "test": 2000, "shift": {"hue": 0.3, "blur": 1.0}},
        root=packs,
    )
    assert data.train.counts == (800,) * 10
    assert data.test.counts == (200,) * 10
    assert (data.train.size, data.train.channels, data.classes[1]) == ((32, 32), "RGB", "automobile")


@pytest.mark.slow
def test_cifar_has_its_published_statistics(packs):
    present(packs, "cifar10.webp.npz")
    mean, std = load("cifar10", root=packs).train.statistics()
    np.testing.assert_allclose(mean, (0.4914, 0.4822, 0.4465), atol=5e-5)
    np.testing.assert_allclose(std, (0.2470, 0.2435, 0.2616), atol=5e-5)
