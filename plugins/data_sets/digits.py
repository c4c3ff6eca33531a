"""Handwritten digits that come with scikit-learn: 1,797 gray images of 8 x 8 pixels, no download."""

from __future__ import annotations

import random

import numpy as np

from compatkit import DataSet, hookimpl
from compatkit.hooks import Register

compatkit_api = 1
TEST_PER_CLASS = 40
"""The last 40 images of each digit are the test set (400), the other 1,397 the training set.

The file is ordered by writer, so that most writers of the test set are not in the training set.
"""


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``digits``."""
    register("digits", lambda root=None, download=False: digits())


def digits() -> DataSet:
    """Return scikit-learn's ``load_digits`` with 0 to 16 stretched to 0 to 255, in a fixed split.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI (the test part of it).
    """
    state = random.getstate()
    from sklearn.datasets import load_digits  # draws random numbers when it is imported

    random.setstate(state)
    bunch = load_digits()
    images = np.floor(bunch.images * (255 / 16) + 0.5).astype(np.uint8)[..., None]  # type: ignore[union-attr]
    labels = bunch.target.astype(np.int64)  # type: ignore[union-attr]
    last = [np.flatnonzero(labels == digit)[-TEST_PER_CLASS:] for digit in range(10)]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[np.concatenate(last)] = True
    return DataSet.of(
        "digits",
        (images[~is_test], labels[~is_test]),
        (images[is_test], labels[is_test]),
        [str(digit) for digit in range(10)],
    )
