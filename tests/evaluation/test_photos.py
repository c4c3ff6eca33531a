"""Photos in folders give what timm's own validation gives: the same images, logits and accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data.dataset_factory import create_dataset
from timm.data.loader import create_loader

import compatkit as ck
from compatkit.components.splitting import publish_split, split
from compatkit.evaluation.preprocessing import normalize, prepare

pytestmark = pytest.mark.filterwarnings(  # timm leaves files open
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
NAMES = ("grebe", "heron", "ibis")
NETWORKS = [
    ("resnet18", "layer3", (64, 64)),
    pytest.param("vit_tiny_patch16_224", "blocks.5", (224, 224), marks=pytest.mark.slow),
    ("mobilenetv3_small_050", "blocks.3", (96, 96)),
]
"""A convolutional network, a transformer and a mobile network: model, cut, size."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JPEGs of three classes, of many sizes and proportions."""
    root = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 6)):
        for name in NAMES:
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                low = draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)
                size = tuple(int(integer) for integer in draw.integers(90, 330, 2))
                image = Image.fromarray(low).resize(size, Image.Resampling.BICUBIC)
                image.save(root / part / name / f"{number}.jpg", quality=92)
    return root


@pytest.mark.parametrize(("model", "cut", "size"), NETWORKS, ids=["convolutional", "transformer", "mobile"])
def test_logits_and_accuracy_are_those_of_timms_validation(
    photos: Path, tmp_path: Path, model: str, cut: str, size: tuple[int, int]
) -> None:
    torch.manual_seed(3)
    network = timm.create_model(model, num_classes=len(NAMES)).eval()
    config = timm.data.resolve_data_config({"input_size": (3, *size)}, model=network)
    loader = create_loader(
        create_dataset("", root=str(photos / "val")),
        input_size=config["input_size"],
        batch_size=6,
        use_prefetcher=False,
        interpolation=config["interpolation"],
        mean=config["mean"],
        std=config["std"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
        num_workers=0,
    )
    inputs, theirs, labels = [], [], []
    with torch.no_grad():
        for images, answers in loader:
            inputs.append(images)
            theirs.append(network(images))
            labels.append(answers)
    expected, truth = torch.cat(theirs), torch.cat(labels)

    registry = ck.Registry.init(tmp_path / "parts")
    parts = split(
        model,
        cut,
        kwargs={"num_classes": len(NAMES)},
        size=size,
        labels=NAMES,
        weights=network.state_dict(),
    )
    publish_split(registry.store, parts, "birds")
    whole = registry.recombine("birds.extractor", "birds.head", bn_policy="running")
    content = ck.data.load(photos).test
    prepared = prepare(content, whole.data)
    assert torch.equal(prepared.labels, truth)
    images = normalize(prepared.images, whole.data)
    torch.testing.assert_close(images, torch.cat(inputs), rtol=0, atol=2e-6)
    with torch.no_grad():
        logits = whole(images)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)

    matrix = registry.matrix(
        "birds.extractor", "birds.head", data={"birds.extractor": content}, bn_policy="running"
    )
    (cell,) = matrix.cells
    right = int((expected.argmax(1) == truth).sum())
    assert cell.restricted is not None
    assert round(cell.restricted.accuracy * cell.restricted.count) == right
