"""Recipes: a training run as a TOML file, read strictly, and checked as a whole before any data is loaded."""

from compatkit.experiments.recipes.files import check_tensor_file, loader, parse
from compatkit.experiments.recipes.reading import SWEEP, data_sets, read
from compatkit.experiments.recipes.recipe import Recipe
from compatkit.experiments.recipes.runs import STATE, Started
from compatkit.experiments.recipes.tables import TASK, check

__all__ = [
    "STATE",
    "SWEEP",
    "TASK",
    "Recipe",
    "Started",
    "check",
    "check_tensor_file",
    "data_sets",
    "loader",
    "parse",
    "read",
]
