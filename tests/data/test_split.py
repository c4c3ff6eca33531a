"""A split holds images with class names; subsets and halves are balanced, statistics and digests exact."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.data import DataSet, Split
from compatkit.errors import DataError

CLASSES = ("ant", "bee", "cat")


def numbered(labels: list[int]) -> Split:
    """Return a split whose image ``i`` holds ``i`` in its two pixels, to tell the images apart."""
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 1), np.uint8)
    return Split(images, np.array(labels, dtype=np.int64), CLASSES, "t/train")


def which(split: Split) -> list[int]:
    return split.images[:, 0, 0, 0].tolist()


def test_it_tells_its_size_channels_and_counts(make_split):
    split = make_split([0, 2, 2], size=(4, 5), channels=3)
    assert (len(split), split.size, split.channels, split.counts) == (3, (4, 5), "RGB", (1, 0, 2))
    assert repr(split) == "Split('t/train', 3 images 4x5 RGB, 3 classes)"
    assert make_split([0], channels=1).channels == "L"


def test_labels_of_any_integer_type_become_int64():
    split = Split(np.zeros((2, 1, 1, 1), np.uint8), np.array([0, 1], np.uint8), ["a", "b"], "x")  # type: ignore[arg-type]
    assert split.labels.dtype == np.int64
    assert split.classes == ("a", "b")


def test_statistics_worked_by_hand():
    # Red: 0, 0, 255, 255 -> mean .5, std .5. Green: 0, 51, 102, 153 -> mean .3, std sqrt(.05).
    # Blue: 255, 0, 0, 0 -> mean .25, std sqrt(.25 x .75).
    pixels = [[0, 0, 255], [0, 51, 0], [255, 102, 0], [255, 153, 0]]
    split = Split(np.array(pixels, np.uint8).reshape(2, 1, 2, 3), np.array([0, 1]), CLASSES, "x")
    mean, std = split.statistics()
    assert mean == pytest.approx((0.5, 0.3, 0.25), abs=1e-15)
    assert std == pytest.approx((0.5, 0.05**0.5, (0.25 * 0.75) ** 0.5), abs=1e-15)


def test_statistics_agree_with_float64(make_split):
    split = make_split([0, 1, 2] * 20, size=(7, 3), channels=3)
    scaled = split.images.astype(np.float64) / 255
    mean, std = split.statistics()
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 1, 2)), rtol=1e-12)


def test_a_constant_channel_has_no_deviation_to_normalize_by():
    split = Split(np.full((2, 3, 3, 1), 7, np.uint8), np.array([0, 1]), CLASSES, "flat/train")
    with pytest.raises(DataError, match=r"flat/train: all pixels of channel 0 have the value 7"):
        split.statistics()


def test_the_digest_depends_on_content_and_not_on_the_name(make_split):
    split = make_split([0, 1, 2])
    assert split.digest.startswith("data:sha256:") and len(split.digest) == len("data:sha256:") + 64
    assert split.renamed("other/test").digest == split.digest
    reference = split.digest
    pixel = split.images.copy()
    pixel[0, 0, 0, 0] ^= 1
    others = [
        Split(pixel, split.labels, CLASSES, "x"),
        Split(split.images, split.labels[::-1].copy(), CLASSES, "x"),
        Split(split.images, split.labels, ("ant", "bee", "dog"), "x"),
        Split(split.images.reshape(3, 5, 4, 1), split.labels, CLASSES, "x"),
    ]
    assert len({reference, *(other.digest for other in others)}) == 5


def test_the_digest_of_a_view_is_that_of_its_values(make_split):
    split = make_split([0, 1, 2, 0])
    view = Split(split.images[::2], split.labels[::2], CLASSES, "x")
    copy = Split(split.images[::2].copy(), split.labels[::2].copy(), CLASSES, "x")
    assert view.digest == copy.digest


def test_a_subset_takes_the_first_of_each_class_in_order():
    split = numbered([0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert which(split.subset(6)) == [0, 1, 3, 4, 6, 7]
    assert which(split.subset(4)) == [0, 1, 3, 6]  # the remainder goes to the first class


def test_a_class_that_runs_out_is_made_up_by_the_others():
    split = numbered([0, 1, 1, 1, 1, 2, 2, 2, 2])
    assert split.subset(7).counts == (1, 3, 3)
    assert split.subset(9).counts == split.counts


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.data())
def test_subsets_are_as_even_as_the_classes_allow(labels, data):
    split = numbered(labels)
    n = data.draw(st.integers(1, len(labels)))
    subset = split.subset(n, seed=data.draw(st.none() | st.integers(0, 5)))
    assert len(subset) == n == len(set(which(subset)))
    largest = max(subset.counts)
    for taken, available in zip(subset.counts, split.counts, strict=True):
        assert taken == available or taken >= largest - 1


def test_a_seed_draws_other_images_the_same_each_time():
    split = numbered([0, 1, 2] * 30)
    first, again, other = split.subset(30, seed=1), split.subset(30, seed=1), split.subset(30, seed=2)
    assert which(first) == which(again) == sorted(which(first))
    assert which(first) != which(other)
    assert first.counts == other.counts == (10, 10, 10)


@pytest.mark.parametrize("n", [0, -1, 10, 2.0, True, "3"])
def test_a_subset_of_no_usable_number_is_refused(n):
    with pytest.raises(DataError, match="has 9 images; a subset has 1 to all"):
        numbered([0, 1, 2] * 3).subset(n)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=6, max_size=60).filter(
        lambda labels: min(Counter(labels).values()) >= 2
    )
)
def test_halves_are_disjoint_complete_and_balanced(labels):
    split = numbered(labels)
    first, second = split.halves()
    assert sorted(which(first) + which(second)) == list(range(len(labels)))
    assert all(0 <= a - b <= 1 for a, b in zip(first.counts, second.counts, strict=True))


def test_one_image_a_class_cannot_be_halved():
    with pytest.raises(DataError, match="cannot be halved"):
        numbered([0, 1, 2]).halves()


def test_gray_becomes_color_by_repetition_and_back_by_luma(make_split):
    gray = make_split([0, 1, 2])
    colored = gray.converted("RGB")
    assert colored.channels == "RGB"
    assert all((colored.images[..., [channel]] == gray.images).all() for channel in range(3))
    assert (colored.converted("L").images == gray.images).all()
    assert gray.converted("L") is gray
    primary = Split(
        np.array([[[[255, 0, 0], [0, 255, 0], [0, 0, 255]]]], np.uint8), np.array([0]), CLASSES, "x"
    )
    assert primary.converted("L").images.ravel().tolist() == [76, 150, 29]  # 255 x .299, .587, .114, rounded
    with pytest.raises(DataError, match="'L' or 'RGB', not 'CMYK'"):
        gray.converted("CMYK")  # type: ignore[arg-type]


IMAGES, LABELS = np.zeros((2, 3, 3, 1), np.uint8), np.array([0, 1])


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        ([[1]], LABELS, CLASSES, "must be a numpy array, got list"),
        (IMAGES / 255, LABELS, CLASSES, r"must be uint8 \(0 to 255\), got float64. Scale to 0..255"),
        (IMAGES * np.nan, LABELS, CLASSES, "got float64"),
        (IMAGES.astype(np.int64), LABELS, CLASSES, "got int64"),
        (IMAGES.astype(np.int64) + 256, LABELS, CLASSES, r"convert with astype\(numpy.uint8\)"),
        (IMAGES[..., 0], LABELS, CLASSES, r"got \(2, 3, 3\)"),
        (IMAGES.reshape(2, 1, 3, 3)[..., [0, 1]], LABELS, CLASSES, "Channels come last"),
        (IMAGES[:0], LABELS[:0], CLASSES, "at least one image"),
        (IMAGES, LABELS / 2, CLASSES, "array of integers, got float64"),
        (IMAGES, [0, 1], CLASSES, "array of integers, got list"),
        (IMAGES, np.array([0, 1, 1]), CLASSES, r"2 images need labels of shape \(2,\), got \(3,\)"),
        (IMAGES, np.array([0, 3]), CLASSES, r"0 to 2 \(3 classes\); 1 are not, the first is 3 at image 1"),
        (IMAGES, np.array([-1, 0]), CLASSES, "the first is -1 at image 0"),
        (IMAGES, LABELS, ("ant", "ant"), "'ant' comes twice"),
        (IMAGES, LABELS, ("Ant", "ant"), "'ant' differs from 'Ant' only in case"),
        (IMAGES, LABELS, ("caf\u00e9", "cafe\u0301"), "Unicode normalization"),
        (IMAGES, LABELS, ("ant", "a\nb"), "without control characters"),
        (IMAGES, LABELS, ("ant", "\x1b[31mred"), "without control characters"),
        (IMAGES, LABELS, ("ant", "\udcff"), "a name in UTF-8"),
        (IMAGES, LABELS, ("ant", "b" * 1025), "1 to 1024 characters"),
        (IMAGES, LABELS, ("ant", " "), "non-empty strings"),
        (IMAGES, LABELS, ("ant", 1), "non-empty strings"),
        (IMAGES, LABELS, (), "at least one class name"),
        (IMAGES, LABELS, "ab", "got the string"),
    ],
)
def test_what_is_no_split_is_refused(images, labels, classes, message):
    with pytest.raises(DataError, match=r"^t/train: ") as caught:
        Split(images, labels, classes, "t/train")
    assert caught.match(message)


def test_a_data_set_needs_two_splits_that_go_together(make_split):
    train = make_split([0, 1, 2])
    for test, what in (
        (make_split([0], channels=3), "channels of the splits differ: train has L, test has RGB"),
        (make_split([0], size=(5, 4)), "size of the splits differ"),
        (Split(train.images, train.labels, ("a", "b", "c"), "t/test"), "classes of the splits differ"),
    ):
        with pytest.raises(DataError, match=what):
            DataSet("t", train, test)


def test_a_data_set_passes_on_what_is_asked_of_it(make_split):
    data = DataSet("t", make_split([0, 1, 2] * 6), make_split([0, 1, 2] * 4, name="t/test"))
    smaller = data.subset(train=6, test=3)
    assert (len(smaller.train), len(smaller.test), smaller.name) == (6, 3, "t")
    assert len(data.subset(test=3).train) == 18
    assert data.resized((6, 6)).test.size == (6, 6)
    assert data.converted("RGB").train.channels == "RGB"
    first, two = data.halves()
    assert (first.name, first.train.name, two.test.name) == ("t-half1", "t-half1/train", "t-half2/test")
    assert (len(first.train), len(two.train), len(first.test), len(two.test)) == (9, 9, 6, 6)
    assert data.renamed("new").test.name == "new/test"
    assert data.shifted(brightness=0.5).train.images.mean() < 0.6 * data.train.images.mean()


def test_some_classes_are_labeled_by_their_places_in_the_order_asked_for():
    split = numbered([0, 1, 2, 1, 0])
    some = split.of_classes(["cat", "ant"])
    assert some.classes == ("cat", "ant") and some.sample
    assert which(some) == [0, 2, 4] and some.labels.tolist() == [1, 0, 1]
    for item in (["dog"], [], "ant"):
        with pytest.raises(DataError, match="ant, bee, cat"):
            split.of_classes(item)
    words = Split(split.images, split.labels, ("car", "bee", "one"), "t/train")
    assert words.of_classes(["1", "automobile"]).classes == ("one", "car")


class TestDividing:
    def test_parts_are_disjoint_and_drawn_by_the_seed(self):
        split = numbered([0, 1, 2] * 20)
        first, second = split.divide(25, 30, seed=3)
        assert (len(first), len(second)) == (25, 30) and not set(which(first)) & set(which(second))
        assert which(split.divide(25, 30, seed=3)[1]) == which(second) != which(split.divide(25, 30)[1])
        assert first.sample and first.classes == split.classes

    def test_the_first_part_does_not_depend_on_the_others(self):
        split = numbered([0, 1, 2] * 20)
        assert which(split.divide(10)[0]) == which(split.divide(10, 50)[0])

    @pytest.mark.parametrize("counts", [(), (0, 3), (4, 3), (2.0,), (True,), (-1,)])
    def test_counts_that_cannot_be_taken_are_refused(self, counts):
        with pytest.raises(DataError):
            numbered([0, 1, 2, 0, 1, 2]).divide(*counts)
