"""Many processes do the same thing at once; prints what each got, as JSON.

Run by test_concurrency with a folder, a scenario and a number of processes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from registry_parts import manifest_for, put

from compatkit.errors import CompatkitError
from compatkit.registry.store import Store

ROUNDS = 20


def work(root: Path, scenario: str, number: int) -> Any:
    """Do one process's part; return a JSON value."""
    if scenario == "init":
        return Store.init(root / "new", exist_ok=True).id
    store = Store.open(root)
    if scenario == "same":
        return str(store.publish("a/b", manifest_for(put(store, 7)), version="1.0.0"))
    if scenario == "different":
        return str(store.publish("a/b", manifest_for(put(store, number)), version="1.0.0"))
    if scenario == "numbers":
        return [str(store.publish("a/b", manifest_for(put(store, 100 * number + one)))) for one in range(5)]
    moved = 0
    while moved < ROUNDS:  # count up, by compare-and-swap on the alias
        current = store.aliases("a/b")["count"]
        try:
            store.set_alias("a/b", "count", f"{int(current.split('.')[0]) + 1}.0.0", expected=current)
        except CompatkitError as error:
            if error.code != "alias-moved":
                raise
            continue
        moved += 1
    return moved


def main() -> None:
    """Start the processes, let them go at once, and collect what they say."""
    root, scenario, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.fsync = lambda descriptor: None  # the kernel survives: nothing to wait for
    gate_read, gate_write = os.pipe()
    results = []
    for number in range(count):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(gate_write)
            os.read(gate_read, 1)
            try:
                said: Any = work(root, scenario, number)
            except CompatkitError as error:
                said = {"error": error.code}
            os.write(write, json.dumps(said).encode())
            os._exit(0)
        os.close(write)
        results.append(read)
    os.close(gate_write)  # the gate opens for all
    said = []
    for read in results:
        with os.fdopen(read) as file:
            said.append(json.load(file))
    print(json.dumps(said))


main()
