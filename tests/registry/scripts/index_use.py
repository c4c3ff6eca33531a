"""Use an index from a process of its own. Run by test_index_failures with a root, what to do, and a number."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from compatkit.registry.index.lookup import Index


def ask(root: Path, times: int) -> None:
    """Rebuild and ask, several times, while others do the same."""
    index = Index.of(root, "id")
    for turn in range(times):
        if turn % 3 == 1:
            index.rebuild()
        print(len(index.listing()), index.count())


def die(root: Path, names: int) -> None:
    """Rebuild, and be killed after some names, inside the transaction."""

    def progress(done: int, total: int, what: str) -> None:
        if done == total or names == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    Index.of(root, "id").rebuild(progress)


{"ask": ask, "die": die}[sys.argv[2]](Path(sys.argv[1]), int(sys.argv[3]))
