"""The attack on a registry: how large its slow tests are, and the scripts that they run.

``COMPATKIT_ATTACK=10 pytest -m slow tests/registry/test_durability.py tests/registry/test_concurrency.py
tests/registry/test_fuzz.py tests/test_foreign_files.py`` makes ten times as many cases as without it;
docs/results/attack.md has the figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TIMES = float(os.environ.get("COMPATKIT_ATTACK", "1"))
"""Multiple of the slow tests' usual number of cases."""
SCRIPTS = Path(__file__).parent / "registry" / "scripts"


def script(name: str, *arguments: object) -> str:
    """Run a script in a process of its own; return what it printed.

    Args:
        name: File in ``registry/scripts``.
        arguments: Its arguments.
    """
    command = [sys.executable, str(SCRIPTS / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cases(most: int) -> int:
    """Return the number of cases of a slow test that usually makes ``most``; at least one."""
    return max(1, round(most * TIMES))
