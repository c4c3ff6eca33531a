"""Where a task starts and what it sees: a stated normalization, and a class layer that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import TrainingError, UsageError
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision

CPU = Precision("cpu", "float32", True)


def task(**settings: Any) -> ck.Task:
    channels = settings.pop("channels", 1)
    return ck.Task(
        "a", data_set("a", channels=channels), "resnet8_cifar", "layer2", size=(12, 12), **settings
    )


def test_a_stated_normalization_is_what_the_network_sees() -> None:
    class Look:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, Any]:
            seen.append((step.batch.index.clone(), step.batch.images.clone()))
            return {}

    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    first = task(normalize={"mean": 0, "std": 1 / 255})
    fit = quick(steps=1).fit([first], ["look"], factories={"look": Look})
    index, images = seen[0]
    pixels = torch.from_numpy(first.data.train.images[index.numpy()]).permute(0, 3, 1, 2).float()
    torch.testing.assert_close(images, pixels, rtol=0, atol=1e-3)
    assert (fit.tasks["a"].data.mean, fit.tasks["a"].data.std) == ((0.0,), (1 / 255,))


def test_it_stands_in_the_contracts_and_in_the_plan(tmp_path: Path) -> None:
    stated = {"mean": [0.1, 0.2, 0.3], "std": 0.5}
    with pytest.raises(UsageError, match="each a number or one number per channel"):
        task(channels=3, normalize=stated)
    stated["std"] = [0.5, 0.5, 0.25]
    fit = quick(steps=1).fit([task(channels=3, normalize=stated)])
    assert fit.run["tasks"][0]["normalisation"] == stated
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(fit, prefix="parts")
    for part in ("extractor", "head"):
        data = registry.store.manifest(f"parts/a.{part}").contract.data
        assert data is not None and (list(data.mean), list(data.std)) == (stated["mean"], stated["std"])


def test_one_number_is_for_all_channels_and_wins_over_pretrained_weights() -> None:
    state = prepare_task(task(channels=3, normalize={"mean": 0.5, "std": 0.25}), 0, CPU)
    assert (state.data.mean, state.data.std) == ((0.5,) * 3, (0.25,) * 3)
    plain = prepare_task(task(channels=3), 0, CPU)
    np.testing.assert_allclose(plain.data.mean, task(channels=3).data.train.statistics()[0])


def test_a_checkpoint_of_another_normalization_is_refused(tmp_path: Path) -> None:
    trainer = quick(steps=1, checkpoint=tmp_path / "run.safetensors")
    trainer.fit([task()])
    with pytest.raises(TrainingError, match=r"tasks\[0\].normalisation.mean"):
        trainer.fit([task(normalize={"mean": 0, "std": 1})])


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"mean": 0}, "expects {'mean': ..., 'std': ...}"),
        ((0.0, 1.0), "expects {'mean': ..., 'std': ...}"),
        ({"mean": 0, "std": 0}, "with std above 0"),
        ({"mean": float("nan"), "std": 1}, "mean is nan"),
        ({"mean": "0", "std": 1}, "mean is '0'"),
        ({"mean": [], "std": 1}, r"mean is \[\]"),
        ({"mean": [0, 0], "std": [1]}, "with std above 0"),
    ],
)
def test_what_is_no_normalization_is_refused(stated: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        task(normalize=stated)


def test_as_many_numbers_as_channels() -> None:
    with pytest.raises(UsageError, match="normalize has 2 numbers for images of 3 channels"):
        prepare_task(task(channels=3, normalize={"mean": [0, 0], "std": [1, 1]}), 0, CPU)


def test_a_class_layer_goes_on_where_that_is_asked_for() -> None:
    fit = quick(steps=2).fit([task()]).weights("a")
    state = prepare_task(task(weights=fit, keep_class_layer=True), 0, CPU)
    taken = {**state.extractor.state_dict(), **state.head.state_dict()}
    assert taken.keys() == fit.keys()
    assert all(torch.equal(value, fit[key]) for key, value in taken.items())


def test_a_class_layer_of_other_classes_or_of_no_state_dict_is_refused() -> None:
    fit = quick(steps=1).fit([task()]).weights("a")
    with pytest.raises(UsageError, match="keep_class_layer needs weights as a state dict"):
        task(keep_class_layer=True)
    other = ck.Task(
        "b",
        data_set("b", classes=("0", "1")),
        "resnet8_cifar",
        "layer2",
        size=12,
        weights=fit,
        keep_class_layer=True,
    )
    with pytest.raises(UsageError, match=r"2 have another shape: fc.weight"):
        prepare_task(other, 0, CPU)
