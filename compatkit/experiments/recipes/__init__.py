"""Recipes: training runs as TOML files, read strictly and checked as a whole before any data is loaded."""

from compatkit.experiments.recipes.files import SWEEP, data_sets, loader, parse
from compatkit.experiments.recipes.recipe import Recipe, check, check_tensor_file, task_keys
from compatkit.experiments.recipes.runs import STATE, Started

__all__ = [
    "STATE",
    "SWEEP",
    "Recipe",
    "Started",
    "check",
    "check_tensor_file",
    "data_sets",
    "loader",
    "parse",
    "task_keys",
]
