"""Recipes: a training run as a TOML file, read strictly, and checked as a whole before any data is loaded."""

from compatkit.recipes.files import check_tensor_file, loader, parse, providers
from compatkit.recipes.reading import SWEEP, data_sets, read
from compatkit.recipes.recipe import Recipe
from compatkit.recipes.runs import STATE, Started
from compatkit.recipes.tables import TASK, check

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
    "providers",
    "read",
]
