"""Loaders by name and what is checked of any: the order of classes, the scale of images, what cannot go on."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick, same_parts, write_packs
from swept import read_recipe as read
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import compatkit as ck
from compatkit.contracts.contract import Data
from compatkit.data.split import Split
from compatkit.errors import CompatkitError, DataError, PluginError, UnknownName, UsageError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.plugins import discovery
from compatkit.plugins.loading import Offer
from compatkit.training import task as tasks
from compatkit.training.batches import loaders
from compatkit.training.batches.loaders import Streamed, check_order, implausible
from compatkit.training.precision import Precision

DATA = Data((4, 4), "L", (0.5,), (0.25,), "bilinear", tuple(ck.label(name) for name in "abc"))
GIVEN: list[Split] = []


def shuffled(split: Split, data: Data, batch_size: int, workers: int = 0) -> DataLoader[Any]:
    """Return what a plugin would."""
    GIVEN.append(split)
    ready = prepare(split, data)
    return DataLoader(
        TensorDataset(ready.images, ready.labels), batch_size, shuffle=True, num_workers=workers
    )


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Offer a factory as a loader of some plugin."""

    def offer(factory: Callable[..., Any] = shuffled) -> None:
        made = Offer("loaders", "mine", factory, "demo")
        names = discovery.names
        monkeypatch.setattr(loaders, "find", lambda kind, name: made)
        monkeypatch.setattr(discovery, "names", lambda kind: ["mine"] if kind == "loaders" else names(kind))

    return offer


def task(loader: Any = "mine", **settings: Any) -> ck.Task:
    return ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16, loader=loader, **settings)


class TestNames:
    def test_a_named_loader_is_that_of_its_factory(self, offered: Callable[..., None]) -> None:
        offered()
        fit = quick(steps=7).fit([task()])
        plain = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
        state = quick(steps=0).fit([plain]).tasks["a"]
        made = shuffled(plain.data.train, state.data, 8)
        assert same_parts(fit, quick(steps=7).fit([task(made)]))
        assert fit.run["tasks"][0]["loader"] == "mine"

    def test_settings_come_with_it(self, offered: Callable[..., None]) -> None:
        offered()
        fit = quick(steps=1).fit([task({"name": "mine", "workers": 1})])
        assert fit.run["tasks"][0]["loader"] == {"name": "mine", "workers": 1}
        with pytest.raises(PluginError) as caught:
            quick(steps=1).fit([task({"name": "mine", "wrokers": 1})])
        assert "workers" in str(caught.value)

    def test_images_are_held_out_of_what_it_is_given(self, offered: Callable[..., None]) -> None:
        offered()
        GIVEN.clear()
        fit = quick(steps=2, validation=0.25, evaluate_every=1).fit([task()])
        assert [len(part) for part in GIVEN] == [36] and fit.evaluations[-1]["on"] == "validation"

    def test_a_run_ends_early_by_what_is_held_out_of_it(self, offered: Callable[..., None]) -> None:
        offered()
        stop = ck.EarlyStopping(patience=1, least=1e9)
        fit = quick(steps=9, validation=0.25, evaluate_every=1, stop_early=stop).fit([task()])
        assert {row["on"] for row in fit.evaluations} == {"validation"} and fit.evaluations[-1]["step"] == 2
        assert fit.run["stopped"]["steps"] == 2

    def test_nothing_is_held_out_of_a_loader_that_is_an_object(self) -> None:
        """It may give any image; the error names the task, and what to do."""
        inputs = [(torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.arange(8) % 3)] * 2
        for settings in ({}, {"evaluate_every": 1, "stop_early": ck.EarlyStopping(patience=1)}):
            with pytest.raises(UsageError) as caught:
                quick(steps=1, validation=0.25, **settings).fit([task(inputs)])
            assert (caught.value.code, caught.value.subject) == ("usage", "a")

    def test_a_recipe_names_it(self, tmp_path: Path, offered: Callable[..., None]) -> None:
        offered()
        write_packs(tmp_path)
        file = tmp_path / "recipe.toml"
        file.write_text(
            textwrap.dedent("""
                prefix = "digits"
                [trainer]
                steps = 1
                [[tasks]]
                name = "left"
                data = "left.npz"
                model = "resnet8_cifar"
                cut = "layer2"
                loader = {name = "mine", workers = 0}
                smoothing = 0.1
                mixup = 0.8
            """)
        )
        made = read(file).tasks[0]
        assert made.loader == {"name": "mine", "workers": 0} and (made.smoothing, made.mixup) == (0.1, 0.8)

    def test_what_is_no_loader_is_refused(self, offered: Callable[..., None]) -> None:
        with pytest.raises(UnknownName):
            task("mine")
        offered(lambda split, data, batch_size: iter([]))
        with pytest.raises(PluginError):
            quick(steps=1).fit([task()])
        offered(lambda split, data, batch_size: 1 / 0)
        with pytest.raises(PluginError):
            quick(steps=1).fit([task()])
        with pytest.raises(UsageError):
            task({"workers": 1})


class TestOrder:
    def folder(self, place: Path) -> Path:
        from PIL import Image

        for name in "abc":
            (place / name).mkdir(parents=True)
            for number in range(3):
                Image.new("L", (4, 4), 40 * number).save(place / name / f"{number}.png")
        return place

    def test_of_torchvisions_folders(self, tmp_path: Path) -> None:
        images = ImageFolder(str(self.folder(tmp_path / "photos")))
        check_order(DataLoader(images), DATA, "a")
        check_order(DataLoader(Subset(Subset(images, [0, 4]), [1])), DATA, "a")
        other = attrs.evolve(DATA, labels=tuple(ck.label(name) for name in "acb"))
        for loader in (DataLoader(images), DataLoader(Subset(images, [0, 4]))):
            with pytest.raises(DataError) as caught:
                check_order(loader, other, "a")
            assert caught.value.subject == "b"

    def test_other_names_say_nothing(self, tmp_path: Path) -> None:
        images = ImageFolder(str(self.folder(tmp_path / "photos")))
        check_order(DataLoader(images), attrs.evolve(DATA, labels=(ck.label("n01"), ck.label("n02"))), "a")
        check_order([], DATA, "a")

    def test_before_the_first_step(self) -> None:
        class Other(Dataset[Any]):
            class_to_idx = {"0": 0, "2": 1, "1": 2}  # noqa: RUF012

        with pytest.raises(DataError) as caught:
            quick(steps=1).explain([task(DataLoader(Other()))])
        assert caught.value.subject == "2"


RGB = Data((8, 8), "RGB", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), labels=DATA.labels)


@pytest.mark.parametrize("data", [DATA, RGB])
class TestScale:
    def images(self, data: Data) -> torch.Tensor:
        pixels = np.random.default_rng(0).integers(0, 256, (16, len(data.mean), *data.size))
        return torch.from_numpy(pixels.astype(np.uint8))

    def test_normalized_images_are_plausible(self, data: Data) -> None:
        images = normalize(self.images(data), data)
        assert implausible(images, data) is None
        assert implausible(images + 0.5 * torch.randn_like(images), data) is None
        assert implausible(v2.RandomErasing(1.0, value=0)(images), data) is None

    def test_others_are_named(self, data: Data) -> None:
        pixels = self.images(data).float()
        assert "not normalized" in str(implausible(pixels / 255, data))
        assert "bytes" in str(implausible(pixels, data))
        assert "bytes" in str(implausible(normalize(self.images(data), data) * 50, data))
        assert "finite" in str(implausible(pixels / 0, data))

    def test_as_the_task_states_it(self, data: Data) -> None:
        unit = attrs.evolve(data, mean=(0.0,) * len(data.mean), std=(1.0,) * len(data.mean))
        assert implausible(self.images(data).float() / 255, unit) is None

    def test_only_the_first_batches_are_looked_at_and_said_once(self, data: Data) -> None:
        labels = torch.zeros(16, dtype=torch.int64)
        scaled, right = self.images(data).float() / 255, normalize(self.images(data), data)

        def said(batches: list[torch.Tensor]) -> int:
            inputs = [(batch, labels) for batch in batches]
            source = Streamed(inputs, data, "a", 0, 16, Precision("cpu", "float32", False))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for step in range(len(batches)):
                    source.batch(step)
            return len(caught)

        assert said([scaled] * 5) == 1
        assert said([right, right, scaled]) == 1
        assert said([right, right, right, scaled]) == 0
        assert said([self.images(data)] * 4) == 0


def test_what_cannot_go_on_is_said_at_the_start(tmp_path: Path) -> None:
    inputs = [(torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.arange(8) % 3)] * 2
    with pytest.warns(UserWarning, match=r"task 'a'.*not a torch DataLoader"):
        quick(steps=1, checkpoint=tmp_path / "run").fit([task(inputs)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(steps=1).fit([task(inputs)])


def test_a_name_is_known_where_the_task_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    request: list[tuple[str, str]] = []
    monkeypatch.setattr(tasks, "require", lambda *args: request.append(args))
    task("mine")
    assert request == [("loaders", "mine")] and issubclass(UnknownName, CompatkitError)
