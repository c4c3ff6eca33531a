"""Values in a real notebook kernel: each is shown once, and its text is the text of a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SETUP = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import contextlib, io
from reports import examples
matrix, hostile = examples.digits_and_more(), examples.hostile()
verdicts = __import__("compatkit").check_all({{}}, {{}})
"""
CELLS = (
    "matrix",
    "print(matrix)",
    "str(matrix) == repr(matrix) != ''",
    "hostile",
    "str(verdicts)",
    "verdicts",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What a kernel sends back for each cell."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("kernel")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(name, str(folder / name))
        cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *CELLS)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return {cell.source: cell.outputs for cell in notebook.cells}


def test_a_matrix_is_shown_once_as_a_heat_map(outputs: dict[str, list[Any]]) -> None:
    (shown,) = outputs["matrix"]
    assert shown.output_type == "execute_result" and "<img" in shown.data["text/html"]
    assert shown.data["text/plain"].startswith("Compatibility matrix, 2 extractors x 4 heads")
    assert "0.881" in shown.data["text/html"]


def test_printing_prints_and_texts_are_not_empty(outputs: dict[str, list[Any]]) -> None:
    (printed,) = outputs["print(matrix)"]
    assert printed.output_type == "stream" and printed.text.startswith("Compatibility matrix")
    (same,) = outputs["str(matrix) == repr(matrix) != ''"]
    assert same.data["text/plain"] == "True"
    (text,) = outputs["str(verdicts)"]
    assert "0 pairs" in text.data["text/plain"]
    assert len(outputs["verdicts"]) == 1


def test_hostile_names_stay_text_in_a_notebook(outputs: dict[str, list[Any]]) -> None:
    (shown,) = outputs["hostile"]
    page = shown.data["text/html"]
    assert "<script" not in page and page.count("<img") == 1 and "&lt;script&gt;alert(1)" in page
