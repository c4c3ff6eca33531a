"""Random labels: every image has a class drawn at random, always the same one.

Paper: Maennel, Alabdulmohsin, Tolstikhin, Baldock, Bousquet, Gelly, Keysers (2020), "What Do Neural Networks Learn When
    Trained With Random Labels?", Sec. 2.1: labels are drawn evenly and apart from the images.
Equations: y(x) = blake2b(seed, bytes of x) mod K, so that a label does not depend on which other images are trained on;
    equal images have equal labels.
Cost: none in a step; a digest of each image at the start.
Limits: accuracy on test images is chance by construction. With data augmentation a label belongs to the stored image,
    so views of it share one; the paper uses none. Negative transfer, which the paper reports, was seen at one seed of
    three.
"""

from __future__ import annotations

import hashlib

import attrs
import numpy as np

from compatkit import DataSet, Split, Task, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import SEED, Number
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``random_labels``."""
    register("random_labels", RandomLabels)


def randomly_labeled(split: Split, classes: int, seed: int) -> Split:
    """Return the images with labels drawn evenly from ``classes`` by their bytes and ``seed``.

    Args:
        split: Images in memory or in files.
        classes: K, at least 2; need not be the count of the split's own classes.
        seed: Seed of the labels. Other seeds give independent ones.

    Returns:
        A split of the same images and name, with the classes ``random-0``, ``random-1``, ...
    """
    key = str(seed).encode("ascii")
    drawn = [
        int.from_bytes(hashlib.blake2b(digest, key=key, digest_size=8).digest(), "big") % classes
        for digest in split.image_digests
    ]
    width = len(str(classes - 1))
    names = tuple(f"random-{number:0{width}d}" for number in range(classes))
    return attrs.evolve(split, labels=np.array(drawn, dtype=np.int64), classes=names)


@attrs.frozen
class RandomLabels:
    """Gives all images of a run's tasks random labels; each network is built with that many outputs.

    Test images have random labels too, so accuracy on them is chance.

    Attributes:
        classes: K; need not be the number of real classes.
        seed: Seed of the labels, whatever the seed of the run.
    """

    classes: int = attrs.field(default=10, validator=Number(least=2, whole=True))
    seed: int = attrs.field(default=0, validator=SEED)

    @hookimpl
    def compatkit_task(self, task: Task) -> Task:
        """Return the task with random labels.

        Raises:
            UsageError: The task has no labels to replace, or takes them from a loader or a stored head.
        """
        why = (
            "learns no labels"
            if not task.supervised
            else "takes images and labels from a loader"
            if task.loader is not None
            else "starts from a head with classes of its own"
            if task.head is not None
            else None
        )
        if why is not None:
            raise UsageError(
                f"random_labels draws the labels that a network learns; task {task.name!r} {why}. Leave the plugin "
                "out, or give the task a data set and a new head.",
                subject=task.name,
            )
        train, test = (
            randomly_labeled(split, self.classes, self.seed) for split in (task.data.train, task.data.test)
        )
        return attrs.evolve(task, data=DataSet(task.data.name, train, test))
