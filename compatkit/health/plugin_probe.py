"""Import plugins and say, line by line, what came of it: ``python -m compatkit.health.plugin_probe``."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterable

from compatkit.errors import PluginError
from compatkit.health.installed_plugins import key_of
from compatkit.health.probe import LONGEST
from compatkit.plugins.discovery import blocked
from compatkit.plugins.installed import installed
from compatkit.plugins.loading import load


def main(keys: Iterable[str]) -> None:
    """Import plugins, and print a line for each.

    Args:
        keys: Plugins, each as ``distribution:key``.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what plugins print is no answer
    points = {key_of(point): point for point in installed() if not blocked(point)}
    for key in keys:
        started, error = time.monotonic(), ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(points[key])
        except PluginError as raised:
            error = str(raised)[:LONGEST]
        out.write(json.dumps([key, error, round(time.monotonic() - started, 3), {}]) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
