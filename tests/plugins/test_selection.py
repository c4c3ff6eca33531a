"""What a run may say about a regularizer, in Python and in a recipe."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest

from compatkit.errors import PluginError
from compatkit.hooks import Phase
from compatkit.plugins import RegularizerConfig, regularizer_config, use


def test_a_name_is_enough() -> None:
    config = use("dcc")
    assert regularizer_config("dcc") == config == RegularizerConfig("dcc") == regularizer_config(config)
    assert config == use("regularizers.dcc")
    assert (use("dcc").as_, use("dcc").weight, use("dcc").phase) == ("dcc", 1.0, Phase(0, None))


def test_a_recipe_says_the_same_as_python() -> None:
    table = tomllib.loads(
        """
        name = "dcc"
        weight = 2
        as = "dcc_a"
        start = 10
        stop = 20
        before = "iiw"
        after = ["rp", "x"]
        classes = ["cat", "dog"]
        """
    )
    request = use(
        "dcc",
        weight=2.0,
        as_="dcc_a",
        start=10,
        stop=20,
        before=["iiw"],
        after=("rp", "x"),
        classes=["cat", "dog"],
    )
    assert regularizer_config(table) == request


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": -1.0}, "finite number >= 0; got -1.0"),
        ({"weight": math.nan}, "finite number >= 0; got nan"),
        ({"weight": math.inf}, "finite number >= 0; got inf"),
        ({"weight": True}, "finite number >= 0; got True"),
        ({"weight": "1"}, "finite number >= 0; got '1'"),
        ({"as": "a/b"}, r"instance name \(as\) has at most 64 letters"),
        ({"start": -1}, "'start' must be a whole number from 0 up; got -1"),
        ({"stop": 1.5}, "'stop' must be a whole number from 0 up"),
        ({"start": 5, "stop": 5}, "stop must be greater than start"),
        ({"before": 3}, "before and after name other instances"),
    ],
)
def test_unusable_values_name_the_plugin(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        regularizer_config({"name": "dcc", **settings})
    assert "Plugin 'dcc'" in str(caught.value)


@pytest.mark.parametrize("value", [3, None, {"weight": 1.0}, {"name": 3}])
def test_what_is_no_use(value: Any) -> None:
    with pytest.raises(PluginError, match=r"name"):
        regularizer_config(value)
