"""Labels of pictures: short, never two alike, and with what differs."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compatkit.reports.heatmap import MAX_LARGE, _names
from compatkit.reports.labels import shorten_names

from . import examples

names = st.lists(st.text("ab/.-01", min_size=1, max_size=80), min_size=1, max_size=12)


def test_no_name_is_abbreviated_for_a_few_letters() -> None:
    names = [f"demo/none/{'x' * size}.extractor" for size in (11, 17, 18)]
    assert shorten_names(names, 30)[:2] == names[:2] and len(shorten_names(names, 30)[2]) == 30


@given(names, st.integers(12, 40))
def test_labels_are_short_and_differ_where_names_do(names: list[str], letters: int) -> None:
    labels = shorten_names(names, letters)
    assert len(labels) == len(names) and all(labels)
    assert len(set(labels)) == len(set(names))
    for name, label in zip(names, labels, strict=True):
        assert label == name if len(name) <= int(1.25 * letters) else len(label) <= letters


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("experiments/resnet18-imagenet-long-run-with-dcc-seed{}/mnist.extractor", range(8)),
        ("a-very-long-prefix-of-all-experiments/{}.extractor", ("mnist", "usps", "svhn")),
        ("{}/of-a-very-long-name-that-all-of-them-share.extractor", ("mnist", "usps")),
        ("x" * 60 + "{}" + "y" * 60, range(3)),
    ],
)
def test_what_differs_is_kept(pattern: str, values: object) -> None:
    texts = [str(value) for value in values]  # type: ignore[attr-defined]
    for label, text in zip(shorten_names([pattern.format(text) for text in texts], 30), texts, strict=True):
        assert text in label and "…" in label


def test_no_names_have_no_labels() -> None:
    assert shorten_names([], 30) == []


@pytest.mark.parametrize("rows", [3, 8, 20])
def test_parts_of_a_picture_read_apart(rows: int) -> None:
    few = rows <= MAX_LARGE
    for pattern in (
        "experiments/resnet18-imagenet-pretrained-long-run/{}.extractor@1.0.0",
        "experiments/resnet18-imagenet-pretrained-long-run/mnist.extractor@{}.0.0",
        "sha256:{}",
        "\u72ac{}".replace("{}", "\u72ac" * 1) + "{}",
        "\U0001f600" * 2 + "{}@1.0.0",
    ):
        parts = [examples.part(pattern.format(number), "extractor") for number in range(rows)]
        assert len(set(_names(parts, few))) == rows
    unprintable = [
        attrs.evolve(examples.part("a", "head"), reference=f"{sign}@1.0.0") for sign in "\u72ac\u732b"
    ]
    assert len(set(_names(unprintable, few))) == 2, "neither is in the font"
