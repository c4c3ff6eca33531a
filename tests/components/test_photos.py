"""Images in files, wherever networks are measured, fitted or decided: read a batch at a time, never all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import pytest
import torch
from pictured import counted, photos, task
from small import quick

import compatkit as ck
from compatkit.data.lazy import LazyImages
from compatkit.data.split import Split
from compatkit.data.transforms import Images

BATCH = 8


@attrs.frozen(eq=False)
class World:
    """Two networks of one folder of photos, published."""

    registry: ck.Registry
    data: ck.data.DataSet
    fit: ck.Fit
    seen: list[int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = tmp_path_factory.mktemp("pets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        inputs = photos(place / "pets", count=20, test=12)
        train, seen = counted(inputs.train)
        data = attrs.evolve(inputs, train=train, test=counted(inputs.test)[0])
        fit = quick(steps=2).fit(
            [task(data, "a"), task(data, "b")], ["identical_init", "rotation_prediction"]
        )
        registry = ck.Registry.init(place / "parts")
        registry.publish(fit, prefix="pets")
        yield World(registry, data, fit, seen)


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were read at a time."""
    counts: list[int] = [0]
    read = LazyImages.read

    def watched(self: LazyImages, positions: Iterable[int]) -> Images:
        places = list(positions)
        counts.append(len(places))
        return read(self, places)

    monkeypatch.setattr(LazyImages, "read", watched)
    return counts


def loaded(split: Split) -> Split:
    """The same images in memory, as evaluation brings them to 32 x 32."""
    fitted = split.resized((32, 32), interpolation="bilinear", crop_pct=1.0, crop_mode="center")
    return Split(fitted.read(range(len(split))), split.labels, split.classes, split.name)


def test_a_matrix(world: World, most: list[int]) -> None:
    matrix = world.registry.matrix(
        ["pets/*.extractor"], ["pets/*.head"], [world.data.test], batch_size=BATCH, fill="all"
    )
    assert len(matrix.cells) == 4 and max(most) <= BATCH


def test_a_recombination_whose_statistics_are_estimated_anew(world: World, most: list[int]) -> None:
    model = world.registry.recombine(
        "pets/a.extractor", "pets/b.head", bn_policy="reestimate", data=world.data.train
    )
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3) and max(most) <= 64


def test_predictions_are_those_of_images_in_memory(world: World, most: list[int]) -> None:
    network = world.registry.recombine("pets/a.extractor", "pets/a.head")
    result = network.predict(world.data.test, batch_size=BATCH)
    assert max(most) == BATCH
    assert [match.label for match in result] == [
        entry.label for entry in network.predict(loaded(world.data.test))
    ]


def test_the_images_of_a_folder_are_read_a_batch_at_a_time_and_named(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = world.registry.recombine("pets/a.extractor", "pets/a.head", bn_policy="running")
    for place in range(3 * BATCH):
        (tmp_path / f"{place % 2}").mkdir(exist_ok=True)
        world.data.train.image(place % 6).save(tmp_path / f"{place % 2}" / f"{place:02}.png")
    sizes: list[int] = []
    network.register_forward_pre_hook(lambda module, arguments: sizes.append(len(arguments[0])))
    events: list[str] = []
    image = LazyImages.image
    monkeypatch.setattr(LazyImages, "image", lambda self, item: (events.append("read"), image(self, item))[1])
    network.register_forward_hook(lambda module, inputs, out: events.append("predicted"))
    result = network.predict(tmp_path, batch_size=BATCH)
    assert sizes == [BATCH] * 3 and events == ([*["read"] * BATCH, "predicted"]) * 3
    files = sorted(tmp_path.rglob("*.png"))
    assert result.files == tuple(map(str, files)) and result[1:3].files == result.files[1:3]
    assert torch.allclose(result.probabilities, network.predict(files).probabilities, atol=1e-6)
    assert [line.split()[0] for line in str(result).splitlines()[1:]] == [
        f"{file.parent.name}/{file.name}" for file in files
    ]
    assert str(result[:2]).splitlines()[1].startswith("00.png")


def test_metrics(world: World, most: list[int]) -> None:
    table = ck.measure(world.fit.tasks["a"], world.data.test, ["accuracy"], batch_size=BATCH)
    assert max(most) <= BATCH
    in_memory = ck.measure(world.fit.tasks["a"], loaded(world.data.test), ["accuracy"], batch_size=BATCH)
    assert table["accuracy"].value == in_memory["accuracy"].value


def test_a_bridge(world: World, most: list[int]) -> None:
    outcome = world.registry.bridge(
        "pets/a.extractor",
        "pets/b.head",
        world.data.train,
        test=world.data.test,
        rungs=["statistics", "ridge"],
        until=None,
        max_images=40,
    )
    assert len(outcome.steps) >= 2 and max(most) <= 64


def test_an_adaptation(world: World, most: list[int]) -> None:
    result = world.registry.adapt(
        "pets/a.extractor",
        "pets/a.head",
        "pets/shared.rotation",
        world.data.train,
        trainer=quick(steps=2),
        test=world.data.test,
        augment="imagenet",
    )
    assert result.fit.history and max(most) <= 256


def test_a_policy_is_decided(world: World, most: list[int]) -> None:
    world.registry.policies.set("pets/", "backward", data=world.data.test, batch_size=BATCH, tolerance=0.9)
    outcome = world.registry.policies.test("pets/a.extractor", against="pets/b.head", data=[world.data])
    assert outcome and max(most) <= BATCH
    world.registry.policies.clear("pets/")


def test_a_task_of_parts_reads_the_files_of_its_steps(world: World) -> None:
    inputs = world.registry.task("c", world.data, extractor="pets/a.extractor", head="pets/a.head")
    world.seen.clear()
    quick(steps=2, workers=0).fit([inputs])
    assert len(world.seen) == 2 * BATCH


def test_publishing_reads_moments_batch_by_batch(world: World, tmp_path: Path, most: list[int]) -> None:
    ck.Registry.init(tmp_path / "parts").publish(world.fit, prefix="pets")
    assert max(most) <= 64


def test_images_are_found_again(world: World) -> None:
    """The folder is remembered; nothing of it stands in a manifest."""
    matrix = world.registry.matrix(["pets/a.extractor"], ["pets/a.head"], fill="none")
    assert len(matrix.cells) == 1
    manifest = world.registry.store.manifest(world.registry.store.resolve("pets/a.extractor"))
    assert world.data.train.images.reader.name(0).rpartition("/train/")[0] not in str(manifest)  # type: ignore[union-attr]
