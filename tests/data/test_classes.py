"""Classes are matched by name through the alias table."""

from __future__ import annotations

import pytest

from compatkit.contracts.contract import Label
from compatkit.contracts.labels import SYNONYMS, common, label, same_as
from compatkit.errors import DataError

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def test_cifar_and_stl_share_nine_classes():
    pairs = common(CIFAR10, STL10)
    assert pairs == [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4), (5, 5), (7, 6), (8, 8), (9, 9)]
    assert {CIFAR10[i] for i in range(10)} - {CIFAR10[i] for i, _ in pairs} == {"frog"}
    assert {STL10[j] for j in range(10)} - {STL10[j] for _, j in pairs} == {"monkey"}
    assert common(STL10, CIFAR10) == sorted((j, i) for i, j in pairs)


def test_labels_match_as_names_do():
    ours, theirs = [label(name) for name in CIFAR10], [label(name) for name in STL10]
    assert common(ours, theirs) == common(CIFAR10, STL10) == common(ours, STL10)
    assert label("automobile") == Label("automobile", ("car", "auto", "motorcar"))
    assert label("automobile").names & label("car").names
    assert label("monkey") == Label("monkey")


def test_a_label_may_bring_names_that_the_table_lacks():
    assert common([Label("vespa", ("scooter",))], ["scooter"]) == [(0, 0)]
    assert common([Label("my car", ("car",))], ["automobile"]) == [(0, 0)]


def test_spelling_makes_no_difference():
    assert common(["Aquarium_Fish", "sweet pepper"], ["aquarium fish", "Bell_Pepper"]) == [(0, 0), (1, 1)]
    assert common(["0 - zero", "7"], ["7", "0"]) == [(0, 1), (1, 0)]


def test_a_part_is_not_the_whole():
    assert common(["pickup_truck"], ["truck"]) == []
    assert common([], ["truck"]) == common(["truck"], []) == []


def test_same_as_leaves_out_the_name_itself():
    assert same_as("CAR") == ("automobile", "auto", "motorcar")
    assert same_as("unheard of") == ()


def test_no_name_stands_in_two_groups():
    names = [name for group in SYNONYMS for name in group]
    assert len(names) == len(set(names))


def test_two_classes_that_mean_the_same_are_ambiguous():
    with pytest.raises(DataError, match="'car' means the same as both 'automobile' and 'auto'"):
        common(["car"], ["automobile", "auto"])
    with pytest.raises(DataError, match="'car' means the same as both"):
        common(["automobile", "auto"], ["car"])


def test_two_classes_of_one_name_are_refused_even_where_nobody_asks_for_them():
    with pytest.raises(DataError, match=r"have the same name: number 1, 'Big cat', and number 3, 'big_cat'"):
        common(["Big cat", "dog", "big_cat"], ["bird"])
    with pytest.raises(DataError, match="Two of the second classes"):
        common(["bird"], [label("crane"), label("crane")])


def test_matching_is_the_same_as_comparing_each_with_each():
    """With names and synonyms that overlap in every way that is not ambiguous."""
    left = [Label("a", ("b",)), Label("car"), Label("one"), Label("x y"), Label("lonely")]
    right = [Label("X_Y"), Label("1"), Label("q", ("B",)), Label("AUTO", ("p",)), Label("alone")]

    def names(label: Label) -> set[str]:
        inputs = [label.name, *label.same_as]
        return {spelled.lower().replace("_", " ") for name in inputs for spelled in (name, *same_as(name))}

    slow = [
        (i, j) for i, mine in enumerate(left) for j, theirs in enumerate(right) if names(mine) & names(theirs)
    ]
    assert common(left, right) == slow == [(0, 2), (1, 3), (2, 1), (3, 0)]
