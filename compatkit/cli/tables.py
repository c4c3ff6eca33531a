"""Options of commands that write results as tables for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compatkit.cli.options import Options, option

if TYPE_CHECKING:
    from compatkit.reports.tabular import Tabular


class TableOptions(Options):
    """Files of results as tables."""

    csv: Path | None = option("Write every figure as CSV, one a row, with all digits.", is_output=True)
    latex: Path | None = option("Write a LaTeX table (booktabs).", is_output=True)

    def write_tables(self, results: Tabular) -> None:
        """Write the requested files."""
        if self.csv is not None:
            results.to_csv(self.csv)
        if self.latex is not None:
            results.to_latex(self.latex)
