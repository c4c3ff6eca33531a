"""Images as people have them go in, class names and probabilities come out: of recombinations and of exports."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small import data_set
from torch import nn

import compatkit as ck
from compatkit.data.unlabeled import read_unlabeled
from compatkit.errors import DamagedImage, DataError, UsageError
from compatkit.evaluation.assembly import BatchStatisticsWarning
from compatkit.evaluation.preprocessing import normalize, prepare

CLASSES = ("crow", "dog", "eel")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    made = ck.Registry.init(tmp_path_factory.mktemp("predicting") / "parts")
    tasks = [
        ck.Task(
            name,
            data_set(name, seed=seed, channels=3, classes=CLASSES),
            "resnet8_cifar",
            "layer2",
            size=(16, 16),
        )
        for seed, name in enumerate(("left", "right"))
    ]
    trainer = ck.Trainer(steps=30, batch_size=16, precision="float32", progress=False)
    made.publish(trainer.fit(tasks, ["identical_init", "dcc"]), prefix="animals")
    return made


@pytest.fixture(scope="module")
def recombined(registry: ck.Registry) -> ck.Recombination:
    return registry.recombine("animals/left.extractor", "animals/left.head")


@pytest.fixture(scope="module", params=["recombination", "export"])
def model(request: Any, registry: ck.Registry, recombined: ck.Recombination, tmp_path_factory: Any) -> Any:
    if request.param == "recombination":
        return recombined
    path = tmp_path_factory.mktemp("exported") / "animals.safetensors"
    registry.export(recombined, path)
    return ck.load_exported(path)


@pytest.fixture(scope="module")
def images() -> ck.Split:
    return data_set("left", channels=3, classes=CLASSES).test


FORMS: dict[str, Callable[[np.ndarray[Any, Any], Path], Any]] = {
    "array": lambda images, _: images,
    "float array": lambda images, _: images / 255,
    "tensor": lambda images, _: torch.from_numpy(images).permute(0, 3, 1, 2),
    "float tensor": lambda images, _: torch.from_numpy(images).permute(0, 3, 1, 2) / 255,
    "arrays": lambda images, _: list(images),
    "tensors": lambda images, _: [torch.from_numpy(image).permute(2, 0, 1) for image in images],
    "pil images": lambda images, _: [Image.fromarray(image) for image in images],
    "generator": lambda images, _: (Image.fromarray(image) for image in images),
    "paths": lambda images, folder: written(images, folder),
    "texts": lambda images, folder: tuple(map(str, written(images, folder))),
    "folder": lambda images, folder: written(images, folder)[0].parent,
    "split": lambda images, _: ck.Split(images, np.zeros(len(images), dtype=np.int64), ("unknown",), "some"),
    "mixed": lambda images, folder: [images[:2], Image.fromarray(images[2]), *written(images, folder)[3:]],
}


ROUNDED = ("pil images", "generator", "paths", "texts", "folder", "mixed")


def written(images: np.ndarray[Any, Any], folder: Path) -> list[Path]:
    paths = [folder / f"{place:02}.png" for place in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    return paths


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same(model: Any, images: ck.Split, form: str, tmp_path: Path) -> None:
    pixels = images.images[:6]
    expected = model(normalize(prepare(images, model.data).images[:6], model.data)).softmax(1)
    inputs = model.preprocess(FORMS[form](pixels, tmp_path))
    assert inputs.dtype == torch.float32 and inputs.shape == (6, 3, 16, 16)
    prepared = normalize(prepare(images, model.data).images[:6], model.data)
    result = model.predict(FORMS[form](pixels, tmp_path))
    if form in ROUNDED:  # resized by Pillow, which rounds after each direction: as when photos are trained on
        levels = torch.tensor(model.data.std).view(3, 1, 1) * 255
        assert ((inputs - prepared).abs() * levels).max() <= 1 + 1e-3
        files = read_unlabeled(written(pixels, tmp_path)[0].parent)
        if form != "mixed":
            assert torch.equal(inputs, normalize(prepare(files, model.data).images, model.data))
        assert torch.allclose(result.probabilities, model(inputs).softmax(1), atol=1e-6)
    else:
        assert torch.equal(inputs, prepared)
        assert torch.allclose(result.probabilities, expected, atol=1e-6)
    assert len(result) == 6


@pytest.mark.parametrize("form", ["path", "pil image", "array", "tensor", "gray array"])
def test_one_image_is_one_prediction(model: Any, images: ck.Split, form: str, tmp_path: Path) -> None:
    first = images.images[4]
    forms = {
        "path": lambda: written(images.images[4:5], tmp_path)[0],
        "pil image": lambda: Image.fromarray(first),
        "array": lambda: first,
        "tensor": lambda: torch.from_numpy(first).permute(2, 0, 1),
        "gray array": lambda: first[..., 0],
    }
    (result,) = model.predict(forms[form]())
    assert (
        result.label in CLASSES
        and CLASSES[result.position] == result.label
        and 1 / 3 <= result.probability <= 1
    )


def test_classes_are_those_of_the_images(model: Any, images: ck.Split) -> None:
    result = model.predict(images)
    truth = [CLASSES[at] for at in images.labels]
    assert sum(label == other for label, other in zip(result.labels, truth, strict=True)) > 40
    assert result.classes == CLASSES and torch.allclose(result.probabilities.sum(1), torch.ones(48))
    best = result.top(2)[0]
    assert best[0] == result[0] and best[0].probability >= best[1].probability and len(result.top(9)[0]) == 3
    assert [match.label for match in result] == result.labels
    assert (
        repr(result[0]) in str(list(result))
        and result.labels[0] in repr(result)
        and "more lines" in repr(result)
    )


def test_images_of_different_sizes_go_together(model: Any, images: ck.Split) -> None:
    large = Image.fromarray(images.images[0]).resize((90, 70))
    assert model.preprocess([large, images.images[1], images.images[2][..., 0]]).shape == (3, 3, 16, 16)


def test_predicting_leaves_the_network_as_it_is(recombined: ck.Recombination, images: ck.Split) -> None:
    assert isinstance(recombined, nn.Module)
    recombined.train()
    before = {name: value.clone() for name, value in recombined.state_dict().items()}
    recombined.predict(images)
    assert all(module.training for module in recombined.modules())
    assert all(torch.equal(value, before[name]) for name, value in recombined.state_dict().items())
    recombined.eval()


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "channels first": (
        lambda _: np.zeros((2, 3, 8, 9), dtype=np.uint8),
        r"shape \(2, 3, 8, 9\).*\(n, height, width, channels\)",
    ),
    "gray without an axis": (lambda _: np.zeros((5, 28, 28), dtype=np.uint8), r"images\[..., None\]"),
    "channels last in a tensor": (lambda _: torch.zeros(8, 9, 3), "channels, height, width"),
    "nothing": (lambda _: [], "no images"),
    "an empty array": (lambda _: np.zeros((0, 8, 8, 3)), "not an image"),
    "normalised": (lambda _: torch.randn(2, 3, 16, 16), r"model\(images\)"),
    "floats of 0 to 255": (lambda _: np.arange(48.0).reshape(4, 4, 3) * 5, "expected 0 to 1"),
    "12 bits in 16": (lambda _: np.full((4, 4), 4000, dtype=np.uint16), "ends? at"),
    "signed": (lambda _: np.zeros((4, 4), dtype=np.int16), "uint8"),
    "not finite": (lambda _: np.full((4, 4), np.nan), "nan"),
    "integers": (lambda _: np.zeros((8, 8, 3), dtype=np.int64), "uint8"),
    "a number": (lambda _: 5, "got int"),
    "bytes": (lambda _: b"png", "got bytes"),
    "a data set": (lambda _: data_set("left"), "got DataSet"),
    "no such file": (lambda folder: folder / "none.png", "no file or folder"),
    "no image file": (lambda folder: text_file(folder), "cannot be read as an image"),
    "an empty folder": (lambda folder: folder, "holds no images"),
}


def turned() -> Image.Image:
    """Return an image whose EXIF orientation says that it lies on its side."""
    image = Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3))
    image.getexif()[0x0112] = 6
    return image


KINDS: dict[str, Callable[[], Image.Image]] = {
    "gray": lambda: Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)),
    "sixteen bits": lambda: Image.fromarray(np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)),
    "transparency": lambda: Image.fromarray(
        np.arange(1024, dtype=np.uint32).astype(np.uint8).reshape(16, 16, 4)
    ),
    "a palette": lambda: Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert("P"),
    "turned": turned,
}


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_any_kind_are_taken_as_in_training(
    recombined: ck.Recombination, kind: str, tmp_path: Path
) -> None:
    image = KINDS[kind]()
    image.save(tmp_path / "0.png", exif=image.getexif())
    split = read_unlabeled(tmp_path)  # read as a task's images are
    expected = recombined.preprocess(split)
    for form in (tmp_path / "0.png", tmp_path, image, Image.open(tmp_path / "0.png")):
        assert torch.equal(recombined.preprocess(form), expected)
    assert expected.shape == (1, 3, 16, 16)


def test_images_of_too_many_pixels_are_refused(recombined: ck.Recombination) -> None:
    with pytest.raises(DataError) as caught:
        recombined.predict(Image.new("1", (2**15, 2**13)))
    assert (caught.value.code, caught.value.subject) == ("damaged-image", "the PIL image")


def text_file(folder: Path) -> Path:
    (folder / "text.png").write_text("text")
    return folder / "text.png"


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_image_is_refused_with_what_is(
    recombined: ck.Recombination, what: str, tmp_path: Path
) -> None:
    make, says = REFUSED[what]
    for ask in (recombined.predict, recombined.preprocess):
        with pytest.raises(DataError, match=says) as error:
            ask(make(tmp_path))
        assert error.value.code == ("damaged-image" if what == "no image file" else "data")


def test_a_part_alone_says_what_it_lacks(registry: ck.Registry, images: ck.Split, tmp_path: Path) -> None:
    for side in ("extractor", "head"):
        registry.export(f"animals/left.{side}", tmp_path / side)
    extractor, head = (ck.load_exported(tmp_path / side) for side in ("extractor", "head"))
    features = extractor(extractor.preprocess(images))
    assert head(features).shape == (48, 3)
    for ask in (extractor.predict, head.predict, head.preprocess):
        with pytest.raises(UsageError) as error:
            ask(images)
        assert error.value.code == "usage"


def test_one_image_under_batch_statistics_is_warned_of(registry: ck.Registry, images: ck.Split) -> None:
    made = registry.recombine("animals/left.extractor", "animals/right.head", bn_policy="batch")
    with pytest.warns(BatchStatisticsWarning, match="of a single image"):
        made(made.preprocess(images.images[0]))
    assert len(made(made.preprocess(images.images[:8]))) == 8


def test_predictions_that_depend_on_the_batch_are_warned_of(registry: ck.Registry, images: ck.Split) -> None:
    """An image beside itself is told otherwise than beside others; with statistics of its own it is not."""
    parts = ("animals/left.extractor", "animals/right.head")
    made = registry.recombine(*parts, bn_policy="batch")
    with pytest.warns(BatchStatisticsWarning, match="depend on the other images"):
        beside_others = made.predict(images.images[:8]).probabilities[0]
    with pytest.warns(BatchStatisticsWarning):
        beside_itself = made.predict(images.images[[0] * 8]).probabilities[0]
    assert not torch.allclose(beside_others, beside_itself, atol=1e-3)
    stored = registry.recombine(*parts, data=images)
    torch.testing.assert_close(
        stored.predict(images.images[:8]).probabilities[0], stored.predict(images.images[0]).probabilities[0]
    )


def dirty(images: ck.Split, folder: Path) -> list[Path]:
    """Write images, of which the first, one in the middle and the last cannot be decoded."""
    paths = written(images.images[:7], folder)
    for place in (0, 3, 6):
        paths[place].write_bytes(paths[place].read_bytes()[:60])
    return paths


WAYS: dict[str, Callable[[list[Path]], Any]] = {
    "folder": lambda paths: paths[0].parent,
    "files": lambda paths: paths,
    "split": lambda paths: read_unlabeled(paths[0].parent),
    "generator": lambda paths: (path for path in paths),
}


@pytest.mark.parametrize("way", WAYS)
def test_damaged_images_get_a_row_that_says_why(
    model: Any, images: ck.Split, way: str, tmp_path: Path
) -> None:
    paths = dirty(images, tmp_path)
    with pytest.raises(DamagedImage) as caught:
        model.predict(WAYS[way](paths))
    assert caught.value.code == "damaged-image" and str(caught.value.subject) == str(paths[0])
    result = model.predict(WAYS[way](paths), batch_size=2, damaged="skip")
    assert len(result) == 7 and set(result.damaged) == {0, 3, 6} and all(result.damaged.values())
    assert [match.damaged != "" for match in result] == [place in (0, 3, 6) for place in range(7)]
    sound = model.predict([images.images[place] for place in (1, 2, 4, 5)])
    torch.testing.assert_close(result.probabilities[[1, 2, 4, 5]], sound.probabilities)
    assert result.probabilities[[0, 3, 6]].isnan().all() and result.positions[[0, 3, 6]].tolist() == [-1] * 3
    assert [result.labels[place] for place in (1, 2, 4, 5)] == sound.labels and result.labels[0] == ""
    assert result.top(2)[3] == []
    assert [entry.label for entry in result.top(2)[1]] == [entry.label for entry in sound.top(2)[0]]
    some = result[2:]
    assert (
        set(some.damaged) == {1, 4}
        and result[-1].damaged == result.damaged[6]
        and math.isnan(result[0].probability)
    )
    assert result.files == tuple(map(str, paths)) and str(result).count("not read: ") == 3
    rows = result.to_csv().splitlines()
    assert rows[0] == "image,label,probability,position,damaged" and rows[1].startswith(f"{paths[0]},,,,")
    assert sound.to_csv().splitlines()[0] == "image,label,probability,position"


def test_one_damaged_image_alone_is_a_row_too(recombined: ck.Recombination, tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(b"")
    result = recombined.predict(tmp_path / "0.png", damaged="skip")
    assert len(result) == 1 and result[0].label == "" and result.probabilities.shape == (1, 3)


@pytest.mark.parametrize("word", ["ignore", True, None])
def test_other_words_for_damaged_images_are_refused(recombined: ck.Recombination, word: Any) -> None:
    with pytest.raises(DataError) as caught:
        recombined.predict(np.zeros((4, 4), dtype=np.uint8), damaged=word)
    assert caught.value.subject == word
