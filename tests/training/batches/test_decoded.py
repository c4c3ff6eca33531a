"""Batches that workers decode and augment: the same however many work, whatever ends, whoever else draws."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from photos import class_folder
from pictured import counted, photos, task
from PIL import Image
from small import data_set, quick, same_parts
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2

import compatkit as ck
from compatkit.adapters.augmentation import image_augmentation
from compatkit.data import pixelcache
from compatkit.errors import CompatkitError, DataError, EnvironmentFailure
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.hooks import Batch
from compatkit.training.batches.decoded import Decoded
from compatkit.training.batches.loaders import seeded
from compatkit.training.batches.sampler import Sampler
from compatkit.training.batches.sources import ImagePlacement
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision
from compatkit.training.randomness import seed_of

CPU = Precision("cpu", "float32", False)
HALF = {"mean": 0.5, "std": 0.25}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos") / "pets"
    photos(place)
    return place


def source(
    data: ck.data.DataSet, workers: int = 0, seed: int = 0, share: slice = slice(None), **settings: Any
) -> Decoded:
    state = prepare_task(task(data, **settings), 0, CPU)
    made = ImagePlacement(workers=workers).source(state, seed, 8, CPU, share)
    assert isinstance(made, Decoded)
    return made


def batches(steps: range, *args: Any, **settings: Any) -> list[Batch]:
    with closing(source(*args, **settings)) as made:
        return [made.batch(step) for step in steps]


def equal(left: list[Batch], right: list[Batch]) -> bool:
    return all(
        torch.equal(getattr(value, what), getattr(other, what))
        for value, other in zip(left, right, strict=True)
        for what in ("images", "labels", "index")
    )


class TestBatches:
    @pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
    @pytest.mark.parametrize("augment", ["imagenet-strong", "cifar", "none"])
    def test_the_number_of_workers_changes_no_bit(self, folder: Path, augment: str) -> None:
        data = photos(folder)
        result = [batches(range(6), data, workers, augment=augment) for workers in (0, 2, 4)]
        assert equal(result[0], result[1]) and equal(result[0], result[2])

    @pytest.mark.parametrize("workers", [0, 2])
    def test_any_step_can_be_the_first(self, folder: Path, workers: int) -> None:
        whole = batches(range(7), photos(folder), augment="imagenet")
        assert equal(whole[3:], batches(range(3, 7), photos(folder), workers, augment="imagenet"))
        assert not torch.equal(
            whole[0].images, batches(range(1), photos(folder), seed=1, augment="imagenet")[0].images
        )

    def test_without_augmentation_they_are_the_images_of_evaluation(self, folder: Path) -> None:
        data = photos(folder)
        state = prepare_task(task(data), 0, CPU)
        ready = prepare(data.train, state.data)
        for step, batch in enumerate(batches(range(4), data)):
            index = Sampler(len(data.train), 8, 0, "a").at(step)
            assert torch.equal(batch.index, index)
            assert torch.equal(batch.labels, torch.from_numpy(data.train.labels)[index])
            assert torch.equal(batch.images, normalize(ready.batch(index), state.data))

    def test_an_image_is_augmented_by_torchvision_under_its_own_seed(self, folder: Path) -> None:
        data, flip = photos(folder), v2.Compose([v2.RandomResizedCrop(32), v2.ColorJitter(0.4)])
        with closing(source(data, augment=flip)) as made:
            result, batches_per_epoch = made.batch(made_step := 5), made.batches_per_epoch
        state = prepare_task(task(data), 0, CPU)
        before = torch.get_rng_state()
        for image, position in zip(result.images, result.index.tolist(), strict=True):
            torch.manual_seed(seed_of(0, "augment", "a", made_step // batches_per_epoch, position))
            pixels = torch.from_numpy(np.array(flip(data.train.image(position)))).permute(2, 0, 1)
            assert torch.equal(image, normalize(pixels[None], state.data)[0])
        torch.set_rng_state(before)

    def test_erasing_is_an_images_own_too(self, folder: Path) -> None:
        """Halves of a batch, as two processes take them, are together the batch of one."""
        data = photos(folder)
        whole = batches(range(3), data, augment={"re_prob": 1.0, "re_mode": "pixel"})
        halves = [
            batches(range(3), data, share=share, augment={"re_prob": 1.0, "re_mode": "pixel"})
            for share in (slice(0, 4), slice(4, 8))
        ]
        for image, left, right in zip(whole, *halves, strict=True):
            assert torch.equal(image.images, torch.cat([left.images, right.images]))
        plain = batches(range(1), data, augment={"re_prob": 0.0})[0]
        random.seed(seed := seed_of(0, "erase", "a", 0, int(plain.index[0])))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            expected = RandomErasing(1.0, mode="pixel", device="cpu")(plain.images[0])
        assert torch.equal(whole[0].images[0], expected)

    def test_arrays_are_augmented_alike(self) -> None:
        data = data_set("a", size=(32, 32), channels=3)
        result = [batches(range(4), data, workers, augment="imagenet") for workers in (0, 2)]
        assert equal(*result)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_generators_are_as_before(self, folder: Path, workers: int) -> None:
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(3)
        expected = torch.rand(1), np.random.rand(), random.random()
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(3)
        batches(range(6), photos(folder), workers, augment="imagenet-strong")
        assert (torch.rand(1), np.random.rand(), random.random()) == expected


class TestGoingOn:
    def settings(self, path: Path | None = None, **more: Any) -> ck.Trainer:
        return quick(steps=7, workers=2, checkpoint=path, checkpoint_every=1, **more)

    def test_from_the_middle_of_an_epoch_to_the_same_weights(
        self, tmp_path: Path, folder: Path, killed: Callable[..., None]
    ) -> None:
        inputs = [task(photos(folder), augment="imagenet-strong")]
        whole = self.settings().fit(inputs)
        trainer = self.settings(tmp_path / "run")
        killed(trainer, inputs, after=2)  # of four steps an epoch
        resumed = trainer.fit(inputs)
        assert same_parts(whole, resumed) and whole.history == resumed.history

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
    @pytest.mark.parametrize("workers", [0, 2, 4])
    def test_after_a_kill(self, tmp_path: Path, folder: Path, workers: int) -> None:
        script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from pictured import counted, photos, task
from small import quick
class Slow:
    import compatkit as ck
    @ck.hookimpl
    def compatkit_after_step(self, step): time.sleep(0.2)
quick(steps=40, workers={workers}, checkpoint={str(tmp_path / "run")!r}, checkpoint_every=1).fit(
    [task(photos(Path({str(folder)!r})), augment="imagenet")], ["slow"], factories={{"slow": Slow}})
"""
        running = subprocess.Popen([sys.executable, "-c", script])
        while not (tmp_path / "run").exists():
            assert running.poll() is None
            time.sleep(0.05)
        time.sleep(1)
        running.send_signal(signal.SIGKILL)
        running.wait()

        class Slow:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                numbers.append(step.number)

        numbers: list[int] = []
        inputs, names = [task(photos(folder), augment="imagenet")], {"factories": {"slow": Slow}}
        trainer = quick(steps=40, workers=workers, checkpoint=tmp_path / "run", checkpoint_every=1)
        resumed = trainer.fit(inputs, ["slow"], **names)
        assert 0 < numbers[0] < 40
        assert same_parts(resumed, quick(steps=40).fit(inputs, ["slow"], **names))

    @pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
    def test_ctrl_c_reaches_the_workers_too_and_the_state_is_kept(self, tmp_path: Path, folder: Path) -> None:
        class Sends:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                if step.number == 2:
                    workers = multiprocessing.active_children()
                    assert workers
                    for worker in workers:
                        os.kill(worker.pid or 0, signal.SIGINT)
                    signal.raise_signal(signal.SIGINT)
                    time.sleep(0.5)

        with pytest.raises(KeyboardInterrupt):
            attrs.evolve(self.settings(tmp_path / "run"), steps=40, checkpoint_every=40).fit(
                [task(photos(folder))], ["sends"], factories={"sends": Sends}
            )
        assert (tmp_path / "run").exists()


class Fails:
    """Fails on every image from its fifth batch of eight on, in one process."""

    count = 0

    def __call__(self, image: Any) -> Any:
        self.count += 1
        if self.count > 32:
            raise ValueError("bits must be between 1 and 8")
        return v2.functional.resize(image, [32, 32])

    def __repr__(self) -> str:
        return "Fails()"


class TestAnotherAugmentation:
    """A run whose augmentation fails goes on with another one, if asked to."""

    @pytest.fixture
    def failed(self, tmp_path: Path, folder: Path) -> tuple[ck.Trainer, DataError]:
        trainer = quick(steps=7, workers=0, checkpoint=tmp_path / "run", checkpoint_every=3)
        with pytest.raises(DataError) as caught:
            trainer.fit([task(photos(folder), augment=Fails())])
        return trainer, caught.value

    def test_the_error_says_what_is_kept(
        self, failed: tuple[ck.Trainer, DataError], tmp_path: Path, folder: Path
    ) -> None:
        error = failed[1]
        assert error.code == "data" and str(error.subject).endswith(".jpg")
        for words in (
            "Fails of the task",
            "bits must be",
            "retry",
            f"after 3 steps, is kept: {tmp_path / 'run'}",
        ):
            assert words in str(error)
        with pytest.raises(DataError, match="No step is kept"):
            quick(steps=7, workers=0, checkpoint=tmp_path / "other").fit(
                [task(photos(folder), augment=Fails())]
            )

    def test_it_goes_on_from_there_on_request_alone(
        self, failed: tuple[ck.Trainer, DataError], folder: Path
    ) -> None:
        trainer, inputs = failed[0], [task(photos(folder), augment="flip")]
        with pytest.raises(ck.errors.TrainingError, match="new_augment"):
            trainer.fit(inputs)
        asking = attrs.evolve(trainer, new_augment=True)
        for changed in (task(photos(folder), augment="flip", smoothing=0.1), task(photos(folder), name="b")):
            with pytest.raises(ck.errors.TrainingError) as caught:
                asking.fit([changed])
            assert "Only the augmentation" not in str(caught.value)
        fit = asking.fit(inputs)
        change = {"task": "a", "after_step": 3, "before": "Fails()", "augment": ["flip"]}
        assert fit.run["augment_changes"] == [change]
        assert [row["step"] for row in fit.history][-1] == 7
        again = trainer.fit(inputs)  # the checkpoint is now one of this plan, and still knows
        assert again.run["augment_changes"] == [change] and same_parts(fit, again)

    def test_a_run_that_changed_nothing_records_nothing(self, tmp_path: Path, folder: Path) -> None:
        fit = quick(steps=2, new_augment=True, checkpoint=tmp_path / "run").fit([task(photos(folder))])
        assert "augment_changes" not in fit.run
        assert same_parts(fit, quick(steps=2).fit([task(photos(folder))]))


class Dies:
    """Ends the worker that augments its third image."""

    count = 0

    def __call__(self, image: Any) -> Any:
        self.count += 1
        if self.count == 3:
            os._exit(7)
        return image.resize((32, 32))


def refusal(data: ck.data.DataSet, workers: int = 0, **settings: Any) -> CompatkitError:
    with pytest.raises(CompatkitError) as caught:
        quick(steps=8, workers=workers).fit([task(data, **settings)])
    return caught.value


class TestFailures:
    def test_a_worker_that_dies_ends_the_run_at_once(self, folder: Path) -> None:
        began = time.monotonic()
        error = refusal(photos(folder), 2, augment=Dies())
        assert isinstance(error, EnvironmentFailure) and error.subject == "workers"
        assert time.monotonic() - began < 20

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_damaged_or_missing_file_is_named(self, tmp_path: Path, workers: int) -> None:
        data = photos(tmp_path / "pets")
        trainer = quick(steps=8, workers=workers)
        broken = tmp_path / "pets" / "train" / "dog" / "005.jpg"
        assert data.train.digest  # known from here on
        broken.write_bytes(broken.read_bytes()[:400])
        with pytest.raises(DataError) as caught:
            trainer.fit([task(data, normalize=HALF)])
        assert caught.value.subject == str(broken)
        broken.unlink()
        with pytest.raises(DataError) as caught:
            trainer.fit([task(data, normalize=HALF)])
        assert Path(caught.value.subject) == broken

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_folder_that_changes_while_it_trains(self, tmp_path: Path, workers: int) -> None:
        """A new image changes nothing; of those that are gone one is named, whose turn comes first."""
        data = photos(tmp_path / "pets")
        files = sorted((tmp_path / "pets" / "train").glob("*/*.jpg"))

        class Removes:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                if step.number == 0:
                    (tmp_path / "pets" / "train" / "dog" / "new.jpg").write_bytes(files[0].read_bytes())
                if step.number == 4:
                    for file in files:
                        file.unlink()

        with pytest.raises(DataError) as caught:
            quick(steps=60, workers=workers, cache="off").fit(
                [task(data)], ["removes"], factories={"removes": Removes}
            )
        assert Path(caught.value.subject) in files and caught.value.code == "data"

    def test_a_folder_of_one_class_is_no_task(self, tmp_path: Path) -> None:
        error = refusal(ck.data.load(class_folder(tmp_path / "photos", {"ant": 8})))
        assert isinstance(error, DataError) and "photos/train are all of the class 'ant'" in str(error)

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize(
        "transform",
        [
            lambda image: 1 / 0,
            lambda image: torch.zeros(3, 32, 32),
            lambda image: image,
            lambda image: None,
            lambda image: np.zeros((32, 32), dtype=np.uint8),
        ],
        ids=["raises", "floats", "size", "nothing", "flat"],
    )
    def test_a_transform_that_cannot_be_used_is_named_with_the_file(
        self, folder: Path, workers: int, transform: Any
    ) -> None:
        error = refusal(photos(folder), workers, augment=transform)
        assert isinstance(error, DataError)
        assert Path(str(error.subject)).parents[2] == folder

    def test_channels_of_a_transform_are_checked(self, folder: Path) -> None:
        """Gray images for a network of colors."""
        error = refusal(photos(folder), augment=lambda image: image.resize((32, 32)).convert("L"))
        assert isinstance(error, DataError)

    def test_workers_leave_with_their_source(self, folder: Path) -> None:
        made = source(photos(folder), 2)
        made.batch(0)
        workers = list(made._upcoming._workers)  # type: ignore[union-attr]
        assert all(worker.is_alive() for worker in workers)
        made.close()
        for worker in workers:
            worker.join(5)
        assert not any(worker.is_alive() for worker in workers)


class TestRuns:
    @pytest.mark.parametrize("regularizer", ["rotation_prediction", "contrastive", "jigsaw", "colorization"])
    def test_regularizers_with_views_learn_from_files(self, folder: Path, regularizer: str) -> None:
        data = photos(folder)
        inputs = [task(data, "a", augment="imagenet"), task(data_set("b", channels=3), "b", augment="cifar")]
        if regularizer == "colorization":
            inputs = inputs[:1]  # the others are gray
        fit = quick(steps=2).fit(inputs, ["identical_init", regularizer])
        losses = fit.history[-1]["losses"]
        assert any(name.startswith(regularizer) for name in losses)

    def test_a_common_head_learns_from_files_and_arrays(self, folder: Path) -> None:
        data = photos(folder)
        other = data_set("b", classes=data.classes, channels=3)
        fit = quick(steps=2).fit(
            [task(data, "a", augment="imagenet"), task(other, "b", augment="cifar")],
            ["identical_init", "dcc"],
        )
        assert "dcc/loss" in fit.history[-1]["losses"]

    def test_validation_evaluations_and_early_stopping(self, folder: Path) -> None:
        trainer = quick(
            steps=6, validation=0.25, evaluate_every=2, stop_early=ck.EarlyStopping(patience=1), ema=0.5
        )
        fit = trainer.fit([task(photos(folder), augment="imagenet")])
        assert {row["on"] for row in fit.evaluations} == {"validation"}
        assert fit.run["stopped"]["steps"] <= 6

    def test_a_plan_and_a_profile_read_no_more_than_they_need(self, folder: Path) -> None:
        trainer, inputs = quick(steps=4, workers=0), [task(photos(folder), augment="imagenet")]
        explanation = str(trainer.explain(inputs))
        assert "36 images, decoded and augmented (imagenet) by this process" in explanation
        assert "data" in str(trainer.profile(inputs, steps=2))

    def test_accumulation_takes_pieces(self, folder: Path) -> None:
        assert quick(steps=2, accumulate=2).fit([task(photos(folder), augment="imagenet")]).history


def test_files_of_any_kind_of_pixels_train(tmp_path: Path) -> None:
    """Gray, 16 bits, palette and alpha in one folder."""
    for label in ("a", "b"):
        (tmp_path / "mixed" / label).mkdir(parents=True)
        for number, mode in enumerate(("L", "RGB", "RGBA", "P", "I;16") * 2):
            pixels = np.random.default_rng(number).integers(0, 255, (40, 44, 3)).astype(np.uint8)
            image = Image.fromarray(pixels)
            image = (
                Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
                if mode == "I;16"
                else image.convert(mode)
            )
            image.save(tmp_path / "mixed" / label / f"{number}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        fit = quick(steps=2, workers=2).fit([task(ck.data.load(tmp_path / "mixed"), augment="imagenet")])
    assert len(fit.history) == 2


def test_a_task_of_parts_takes_presets(tmp_path: Path, folder: Path) -> None:
    data = photos(folder)
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(quick(steps=1).fit([task(data)]), prefix="pets")
    later = registry.task("b", data, extractor="pets/a.extractor", augment="imagenet")
    assert attrs.evolve(later).augment == ("imagenet",)
    assert quick(steps=1).fit([later]).history


class TestCache:
    def test_where_no_pixel_changes_it_is_the_same_run(self, folder: Path) -> None:
        inputs = [task(photos(folder), augment="cifar")]
        fits = {
            cache: quick(steps=6, workers=workers, cache=cache).fit(inputs)
            for cache, workers in (("off", 0), ("auto", 0), ("on", 2))
        }
        assert same_parts(fits["off"], fits["auto"]) and same_parts(fits["off"], fits["on"])
        assert fits["off"].plan == fits["auto"].plan == fits["on"].plan

    def test_later_epochs_read_no_file(self, folder: Path) -> None:
        data = photos(folder)
        train, seen = counted(data.train)
        quick(steps=12, workers=0).fit([task(attrs.evolve(data, train=train), normalize=HALF)])
        assert sorted(seen) == list(range(len(train)))

    @pytest.mark.parametrize(
        ("cache", "augment", "steps", "expected"),
        [
            ("auto", "none", 9, True),
            ("auto", "none", 4, False),
            ("auto", "imagenet", 9, False),
            ("on", "imagenet", 9, True),
            ("off", "none", 9, False),
        ],
    )
    def test_a_plan_says_whether_images_are_kept(
        self, folder: Path, cache: Any, augment: str, steps: int, expected: bool
    ) -> None:
        explanation = str(quick(steps=steps, cache=cache).explain([task(photos(folder), augment=augment)]))
        assert ("decoded once into" in explanation) == expected
        assert not pixelcache.folder().exists()

    def test_resized_crops_come_from_shrunk_images_also_where_they_cannot_be_kept(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inputs = [task(photos(folder), augment="imagenet")]
        off, on = (quick(steps=5, cache=cache).fit(inputs) for cache in ("off", "on"))
        assert off.plan != on.plan and not same_parts(off, on)
        monkeypatch.setenv("COMPATKIT_CACHE", "/dev/null/nowhere")
        with pytest.warns(UserWarning, match="decoded in every epoch"):
            again = quick(steps=5, cache="on").fit(inputs)
        assert again.plan == on.plan and same_parts(on, again)

    def test_a_plan_says_what_resizes_and_jitters_the_crops(self, folder: Path) -> None:
        for augment, *expected in (
            ("imagenet", "torch", "matrix"),
            ({"color_jitter": None}, "torch", None),
            ({"interpolation": "lanczos"}, None, None),
            ("cifar", None, None),
        ):
            fit = quick(steps=1, cache="on").fit([task(photos(folder), augment=augment)])
            assert [fit.run["tasks"][0].get(key) for key in ("crops_by", "jitter_by")] == expected

    @pytest.mark.parametrize("workers", [0, 2])
    def test_crops_are_those_of_shrunk_images(self, folder: Path, workers: int) -> None:
        """By timm's transform on Pillow images, under the same seeds."""
        data = photos(folder)
        given = task(data, augment={"color_jitter": None})
        state = prepare_task(given, 0, CPU)
        made = ImagePlacement(workers=workers, cache="on").source(state, 0, 8, CPU)
        assert isinstance(made, Decoded) and made.crops_by_torch
        with closing(made):
            batch = made.batch(0)
        size, shape = state.data.size, (*state.data.size, 3)
        augmentation = image_augmentation({"color_jitter": None}, state.data)
        small = data.train.shrunk(size, interpolation=state.data.interpolation, crop_pct=state.data.crop_pct)
        for image, position in zip(batch.images, batch.index.tolist(), strict=True):
            with seeded(seed_of(0, "augment", "a", 0, position)):
                pixels = augmentation(small.image(position), shape, "picture")
            expected = normalize(pixels.permute(2, 0, 1)[None], state.data)[0]
            steps = (image - expected) * 255 * torch.tensor(state.data.std)[:, None, None]
            assert steps.abs().mean() < 0.25 and steps.abs().max() < 24

    def test_a_loader_or_an_array_has_nothing_to_keep(self) -> None:
        data = data_set("a", size=(32, 32), channels=3)
        assert "decoded once" not in str(quick(steps=9, cache="on").explain([task(data, augment="imagenet")]))
