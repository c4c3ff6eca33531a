"""The check itself: kinds, JSON, how fast it is, what it imports."""

from __future__ import annotations

import json
import subprocess
import sys

import attrs
import pytest
from sample_components import GRAY, extractor, figures, head, initial, labels, maps, shared

from compatkit.contracts.check import check
from compatkit.contracts.contract import Data
from compatkit.errors import UsageError


def test_wrong_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="Expected a first component of kind extractor"):
        check(head(), head())
    with pytest.raises(UsageError, match=r"second component of kind head"):
        check(extractor(), extractor())
    assert check(extractor(), head(kind="auxiliary_head")).wiring == "direct"


def test_the_report_as_json_holds_everything() -> None:
    value = json.loads(json.dumps(check(extractor(maps(64)), head(maps(128))).to_json()))
    assert (value["wiring"], value["promise"], value["evidence"], value["word"]) == (
        "needs-adapter",
        "none",
        "none",
        "adaptable",
    )
    assert set(value["findings"][0]) == {
        "code",
        "level",
        "severity",
        "expected",
        "actual",
        "between",
        "remedy",
    }


@pytest.mark.parametrize("classes", [10, 1000])
def test_findings_of_every_level_stand_together_whatever_the_count_of_classes(classes: int) -> None:
    names = [f"class {number}" for number in range(classes)]
    anchors = (initial("one"), shared("dcc"), shared("rp", "rotation"))
    left = extractor(maps(64), anchors=anchors, norm="batch", features=figures(0.4, 0.8))
    right = head(
        maps(128),
        data=Data((16, 16), "L", (0.2,), (0.3,)),
        anchors=anchors,
        norm="batch",
        classes=labels(*names),
        features=figures(0.9, 0.8),
    )
    data = attrs.evolve(GRAY, labels=labels(*names[1:]))
    report_findings = check(left, right, data=data).findings
    assert len(report_findings) == 8
    assert {match.level for match in report_findings} == {"structural", "data", "protocol", "statistical"}


def test_importing_the_check_imports_no_heavy_package() -> None:
    code = (
        "import compatkit.contracts.check, compatkit.contracts.evidence, sys;"
        "print([m for m in ('torch', 'numpy', 'scipy', 'timm', 'safetensors') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
