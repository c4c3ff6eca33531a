"""Maps of layers by layers: a picture that is the same for equal maps, a page that is plain and complete, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from compatkit.errors import DataError
from compatkit.reports.pictures import LayerMaps

ROWS, COLUMNS = ("conv1", "conv2", "<fc>"), ("conv1", "a.very.long.path.of.a.layer")
VALUES = np.array([[1.0, 0.25], [np.nan, -0.1], [0.5, 1.2]])


def maps(**kwargs: Any) -> LayerMaps:
    usual: dict[str, Any] = {
        "row_groups": ("encoder", "encoder", "decoder"),
        "column_groups": ("encoder", "decoder"),
        "notes": {"cka": ["", "", "conv2: zero variance", "", "", ""]},
        "about": {"images": 100},
    }
    return LayerMaps({"cka": VALUES, "procrustes": VALUES / 2}, ROWS, COLUMNS, **{**usual, **kwargs})


def test_equal_maps_give_equal_pictures() -> None:
    picture = maps().to_png()
    assert picture.startswith(b"\x89PNG") and picture == maps().to_png()
    assert picture != maps(row_groups=("encoder", "decoder", "decoder")).to_png()
    assert maps(across=1).to_png() != picture


def test_the_page_has_every_figure_with_its_reason_and_runs_nothing() -> None:
    page = maps().to_html()
    cells = re.findall(r'<td(?: class="noted" title="([^"]*)")?>([^<]*)</td>', page)
    assert [text for _, text in cells[:6]] == ["1.00", "0.25", "-", "-0.10", "0.50", "1.20"]
    assert [note for note, _ in cells[:6]] == ["", "", "conv2: zero variance", "", "", ""]
    assert page.count("<table>") == 2 and "data:image/png;base64," in page
    assert "&lt;fc&gt;" in page and "<fc>" not in page
    assert "<script" not in page and "http://" not in page and "https://" not in page


@pytest.mark.parametrize(
    "requested",
    [
        {"maps": {}},
        {"maps": {"cka": VALUES.T}},
        {"row_groups": ("encoder",)},
        {"rows": ()},
    ],
)
def test_maps_that_do_not_fit_their_layers_are_refused(requested: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"maps": {"cka": VALUES}, "rows": ROWS, "columns": COLUMNS}
    with pytest.raises(DataError) as error:
        LayerMaps(**{**usual, **requested})
    assert error.value.code == "data"
