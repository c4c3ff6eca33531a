"""What a matrix says that it shows, and what it says that it does not."""

from __future__ import annotations

import attrs
import pytest

from compatkit.contracts.evidence import Cell
from compatkit.contracts.grades import Grade
from compatkit.reports.conclusion import conclusion, scale_of
from compatkit.reports.matrix import Matrix
from compatkit.reports.page import render
from compatkit.reports.wording import share

from . import examples

LEFT, RIGHT = (
    examples.part("a/left.extractor@1.0.0", "extractor"),
    examples.part("a/right.head@1.0.0", "head"),
)


def matrix_of(grade: Grade, accuracy: float = 0.5, count: int = 100) -> Matrix:
    cell = examples.measured(LEFT.reference, RIGHT.reference, accuracy, grade, bound=0.9, count=count)
    return Matrix([LEFT], [RIGHT], [cell])


def many(grades: list[Grade]) -> Matrix:
    heads = [examples.part(f"a/{number}.head@1.0.0", "head") for number in range(len(grades))]
    cells = [
        examples.measured(LEFT.reference, head.reference, 0.2, grade, bound=0.9)
        for head, grade in zip(heads, grades, strict=True)
    ]
    return Matrix([LEFT], heads, cells)


@pytest.mark.parametrize(
    ("grade", "words", "works"),
    [
        ("perfect", "as good as", True),
        ("compatible", "compatible", True),
        ("weak", "weak", True),
        ("undecided", "want of images", False),
        ("chance", "at chance", False),
    ],
)
def test_each_grade_is_counted_and_only_those_above_chance_work(
    grade: Grade, words: str, works: bool
) -> None:
    text = conclusion(matrix_of(grade))
    assert f"1 {words}" in text or words in text
    assert ("No recombination is shown to work" in text) is not works
    assert "0.500 (95 % interval 0.404\N{EN DASH}0.596, chance 0.114, bound 0.900)" in text
    assert "over images; other seeds" in text


def test_nothing_measured_shows_nothing() -> None:
    digits = examples.digits()
    own = Matrix(digits.extractors, digits.heads, [cell for cell in digits.cells if cell.own])
    barred = [Cell(LEFT.reference, RIGHT.reference, "refused", "none", "none", reason="no")]
    for matrix in (own, Matrix((), (), ()), Matrix([LEFT], [RIGHT], barred)):
        assert "it is unknown which parts work" in conclusion(matrix)
    assert "Only networks as trained" in conclusion(own)


def test_stale_figures_do_not_count() -> None:
    matrix = matrix_of("compatible")
    stale = attrs.evolve(matrix, cells=[attrs.evolve(matrix.cells[0], grade="stale")])
    assert "it is unknown which parts work" in conclusion(stale) and "1 pair are stale" in conclusion(stale)
    assert conclusion(matrix.filter(grade="perfect")).startswith("No pair was measured")


def test_accidents_among_many_are_told() -> None:
    few: list[Grade] = ["weak"] * 2 + ["chance"] * 198
    assert "About 2 of so many would be graded above chance by accident" in conclusion(many(few))
    assert "by accident" not in conclusion(many(["weak"] * 100 + ["chance"] * 100))


def test_the_highest_is_the_one_that_recovers_most() -> None:
    matrix = examples.digits()
    best = max(
        (cell for cell in matrix if not cell.own and cell.recovered is not None),
        key=lambda cell: cell.recovered or 0,
    )
    assert best.restricted and best.extractor in conclusion(matrix)
    assert f"accuracy {share(best.restricted.accuracy)}" in conclusion(matrix)


def test_chance_and_images_are_in_view_on_the_page() -> None:
    matrix = examples.digits_and_more()
    assert scale_of(matrix) == "chance 0.114; 61 to 10,000 images of common classes per accuracy"
    assert scale_of(Matrix((), (), ())) == ""
    page = render(matrix)
    assert scale_of(matrix) in page and "chance 0.114, n 61" in page and "No recombination" not in page
    assert conclusion(matrix).replace("'", "&#39;") in page
    assert "1 undecided, for want of images" in render(matrix_of("undecided"))


def test_the_page_outlines_in_the_colors_of_the_picture() -> None:
    from compatkit.reports.drawing import OWN_OUTLINE, STALE_OUTLINE

    assert OWN_OUTLINE in render(examples.digits())
    assert STALE_OUTLINE in render(examples.digits())
