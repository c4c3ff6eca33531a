"""Recipes: training runs as TOML files, checked before any data is loaded."""

from compatkit.experiments.recipes.files import SWEEP, data_sets, loader, parse
from compatkit.experiments.recipes.recipe import Recipe, check, check_tensor_file, task_keys
from compatkit.experiments.recipes.runs import STATE, StartedRun

__all__ = [
    "STATE",
    "SWEEP",
    "Recipe",
    "StartedRun",
    "check",
    "check_tensor_file",
    "data_sets",
    "loader",
    "parse",
    "task_keys",
]
