"""Import modules and say, line by line, what came of it: ``python -m compatkit.health.probe``.

A broken library may raise anything, print, hang, or end the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import attrs

LONGEST = 300
"""Most characters of an error."""
TIMEOUT = 60
"""Seconds after which imports are given up."""


@attrs.frozen
class Imported:
    """What came of the import of a module.

    Attributes:
        error: Error, or empty.
        seconds: Seconds that it took.
        facts: What the module says about this machine.
    """

    error: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Probe:
    """A process that imports modules.

    Attributes:
        modules: Names of the modules, in order.
        process: The process.
    """

    modules: tuple[str, ...]
    process: subprocess.Popen[str]

    @classmethod
    def start(cls, modules: Iterable[str], module: str = __name__) -> Probe:
        """Start a process.

        Args:
            modules: Names of modules.
            module: Module to run, which answers line by line as this one does.
        """
        names = tuple(modules)
        command = [sys.executable, "-P", "-m", module, *names]  # -P: the current folder may hold a torch.py
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return cls(names, subprocess.Popen(command, **pipes, text=True, encoding="utf-8", errors="replace"))

    def results(self, timeout: float = TIMEOUT) -> dict[str, Imported]:
        """Wait for the process, and return what came of each module.

        Args:
            timeout: Seconds after which it is ended.
        """
        try:
            text, _ = self.process.communicate(timeout=timeout)
            end = f"the import ended Python with exit code {self.process.returncode}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            text, _ = self.process.communicate()
            end = f"the import took more than {timeout:g} seconds"
        results: dict[str, Imported] = {}
        for line in text.splitlines():
            with suppress(ValueError, TypeError, KeyError):
                name, *values = json.loads(line)
                results[name] = Imported(*values)
        first = next((name for name in self.modules if name not in results), None)
        lacking = {name: end if name == first else f"not tried after {first}" for name in self.modules}
        return {name: results.get(name) or Imported(lacking[name]) for name in self.modules}


def facts_of_torch(torch: Any) -> dict[str, Any]:
    """Return what torch says about this machine.

    Args:
        torch: The module.
    """
    facts: dict[str, Any] = {
        "version": str(torch.__version__),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "mps": bool(torch.backends.mps.is_available()),
        "devices": [],
        "warning": "",
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
            facts["devices"] = [
                {"name": each.name, "bytes": each.total_memory, "capability": f"{each.major}.{each.minor}"}
                for each in properties
            ]
            facts["bf16"] = bool(torch.cuda.is_bf16_supported())
    if caught:
        facts["warning"] = str(caught[0].message)[:LONGEST]
    return facts


def main(names: Iterable[str]) -> None:
    """Import modules, and print a line of JSON for each.

    Args:
        names: Names of the modules.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what modules print is no answer
    for name in names:
        started, error, facts = time.monotonic(), "", {}
        try:
            module = import_module(name)
            facts = facts_of_torch(module) if name == "torch" else {}
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}".partition("\n")[0][:LONGEST]
        out.write(json.dumps([name, error, round(time.monotonic() - started, 3), facts]) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # threads of a broken library may not end
