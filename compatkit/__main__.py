"""``python -m compatkit``: the command line, for starters that want a module."""

from __future__ import annotations

from compatkit.cli import main

main()
