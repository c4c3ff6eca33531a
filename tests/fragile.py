"""Networks whose head kills its process as often as a file says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small import data_set, quick

import compatkit as ck

NETWORK = '''
import os
import signal
from pathlib import Path

import torch

from compatkit import hookimpl

compatkit_api = 1


class Fragile(torch.nn.Module):
    """A network; one output more than asked for, with the file below, ends its process."""

    def __init__(self, classes, name):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8))
        self.act = torch.nn.ReLU()
        self.fc = Killer(8, classes, name)

    def forward(self, x):
        return self.fc(self.act(self.body(x)))


class Killer(torch.nn.Linear):
    def __init__(self, inputs, outputs, name):
        super().__init__(inputs, outputs)
        self.orders = Path(os.environ.get("FRAGILE", "")) / name

    def forward(self, x):
        if self.orders.is_file():
            left = int(self.orders.read_text())
            if left:
                self.orders.write_text(str(left - 1))
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def build(model, num_classes=2, in_chans=1, **_):
    return Fragile(num_classes, model)


@hookimpl
def compatkit_builders(register):
    register("fragile", build)
'''


@contextmanager
def fragile_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ck.Registry, list[ck.data.DataSet]]]:
    """Networks ``calm``, ``other`` and ``wild``, whose heads end their process if a file of that name says so."""
    plugin = folder / f"fragile_{folder.name}.py"  # a process imports a module of one name once
    plugin.write_text(NETWORK)
    monkeypatch.setenv("COMPATKIT_PLUGIN_FILES", str(plugin))
    monkeypatch.setenv("FRAGILE", str(folder))
    sets = [data_set(name, size=(8, 8), seed=seed) for seed, name in enumerate(("calm", "other", "wild"))]
    tasks = [ck.Task(data.name, data, data.name, "act", builder="fragile", size=(8, 8)) for data in sets]
    registry = ck.Registry.init(folder / "parts")
    registry.publish(quick(steps=1).fit(tasks), prefix="digits")
    yield registry, sets
    sys.modules.pop(plugin.stem, None)
