"""Three small extractors of different architecture under one shared head, as several tests need them."""

from __future__ import annotations

from pathlib import Path

from small import data_set, quick

import compatkit as ck

REST = {"model": "mobilenetv2_025_cifar", "cut": "blocks.9"}
"""16 channels cross there."""
NETWORKS = {
    "server": ("wide_resnet10_2_cifar", "layer2"),
    "desk": ("resnet8_cifar", "layer2"),
    "phone": ("mobilenetv2_025_cifar", "blocks.9"),
}
OLD, ALL = ("0", "1", "2"), ("0", "1", "2", "frog", "truck")


def small_data(classes: tuple[str, ...] = OLD) -> ck.DataSet:
    """Return images of some classes under one name."""
    return data_set("d", classes=classes, size=(16, 16))


def tasks() -> list[ck.Task]:
    """Return the tasks of the fleet, which have no heads of their own."""
    data = small_data()
    return [
        ck.Task(name, data, *network, size=16, rest=REST, own_head=False)
        for name, network in NETWORKS.items()
    ]


def published(root: Path) -> ck.Registry:
    """Return a registry with the parts of a fleet, trained for one step with a rotation head besides."""
    registry = ck.Registry.init(root)
    uses = ["dcc", ck.use("rotation_prediction", half_turn="flip")]
    registry.publish(quick(steps=1).fit(tasks(), uses), prefix="fleet")
    return registry
