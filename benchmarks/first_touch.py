"""Processor time of new processes: quick commands, and the first touch of the trainer, against what they must import.

    python -m benchmarks --only command-ls command-plugins first-touch

Each round runs both programs once, in a random order; the first round fills a folder of bytecode and is not counted.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

COMMAND = "from compatkit.cli import main; main({words!r})"
PARTS = 5
"""Networks in the registry, of two parts each."""
PROGRAM = "import click, attrs, json"
REGISTRY = f"{PROGRAM}, sqlite3, hashlib, pathlib, msgspec"
"""What commands on a registry import."""
METADATA = (
    f"{PROGRAM}, packaging.utils, packaging.specifiers, tokenize\n"
    "from importlib.metadata import entry_points\n"
    "for package in {id(point.dist): point.dist for point in entry_points(group='compatkit')}.values():\n"
    "    package.name, package.version"
)
FILL = """
from contextlib import suppress
from compatkit.cli import main
for number in range({parts}):
    with suppress(SystemExit):
        main([*{root}, "split", "simple_cnn", "--cut", "forward_features", "--publish", f"zoo/small{{number}}"])
"""
PAIR = "zoo/small0.extractor", "zoo/small0.head"
FIT = """
import numpy as np
import compatkit as ck
images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8), np.arange(8) % 2
data = ck.DataSet.of("gray", images, images, ("a", "b"))
task = ck.Task("gray", data, "resnet18", "layer2", size=32)
ck.Trainer(steps=0, batch_size=4, progress=False, device="cpu").fit([task])
"""


def seconds(program: str, bytecode: str) -> float:
    """Return the processor seconds of a process that runs a program."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode} of {program!r}")
    return usage.ru_utime + usage.ru_stime


def ratios(ours: str, rival: str, rounds: int) -> list[float]:
    """Return our processor time by the rival's in each round."""
    generator, found = random.Random(0), list[float]()
    with tempfile.TemporaryDirectory() as bytecode:
        for number in range(rounds + 1):
            programs = [ours, rival]
            generator.shuffle(programs)
            taken = {program: seconds(program, bytecode) for program in programs}
            if number:
                found.append(taken[ours] / taken[rival])
    return found


def on_registry(words: list[str], rival: str, rounds: int) -> list[float]:
    """Return the ratios of a command on a registry of ten parts."""
    with tempfile.TemporaryDirectory() as folder:
        root = ["--registry", str(Path(folder) / "parts")]
        program = FILL.format(root=root, parts=PARTS)
        subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
        return ratios(COMMAND.format(words=[*root, *words]), rival, rounds)


def version(rounds: int) -> list[float]:
    """Measure ``compatkit --version``."""
    rival = f"{PROGRAM}\nimport importlib.metadata; importlib.metadata.version('compatkit')"
    return ratios(COMMAND.format(words=["--version"]), rival, rounds)


def program_help(rounds: int) -> list[float]:
    """Measure ``compatkit --help``."""
    return ratios(COMMAND.format(words=["--help"]), PROGRAM, rounds)


def every_help(rounds: int) -> list[float]:
    """Measure ``--help`` of all commands together, each in a process of its own, as is its rival."""
    from compatkit.cli import COMMANDS

    each = [
        ratios(COMMAND.format(words=[name, "--help"]), f"{PROGRAM}, msgspec", rounds) for name in COMMANDS
    ]
    return [fmean(of_round) for of_round in zip(*each, strict=True)]


def train_help(rounds: int) -> list[float]:
    """Measure ``compatkit train --help``."""
    return ratios(COMMAND.format(words=["train", "--help"]), f"{PROGRAM}, msgspec", rounds)


def completion(rounds: int) -> list[float]:
    """Measure ``compatkit completion bash``."""
    return ratios(COMMAND.format(words=["completion", "bash"]), PROGRAM, rounds)


def plugins(rounds: int) -> list[float]:
    """Measure ``compatkit plugins``."""
    return ratios(COMMAND.format(words=["plugins"]), METADATA, rounds)


def ls(rounds: int) -> list[float]:
    """Measure ``compatkit ls``."""
    return on_registry(["ls"], REGISTRY, rounds)


def search(rounds: int) -> list[float]:
    """Measure ``compatkit search``."""
    return on_registry(["search", "--kind", "head"], REGISTRY, rounds)


def show(rounds: int) -> list[float]:
    """Measure ``compatkit show``."""
    return on_registry(["show", PAIR[1]], REGISTRY, rounds)


def check(rounds: int) -> list[float]:
    """Measure ``compatkit check``."""
    return on_registry(["check", *PAIR], REGISTRY, rounds)


def verify(rounds: int) -> list[float]:
    """Measure ``compatkit verify``, which reads weights and compares them as a load would."""
    return on_registry(["verify"], f"{REGISTRY}, torch", rounds)


def verify_quick(rounds: int) -> list[float]:
    """Measure ``compatkit verify --quick``."""
    return on_registry(["verify", "--quick"], REGISTRY, rounds)


def trainer(rounds: int) -> list[float]:
    """Measure the first touch of ``ck.Trainer``."""
    return ratios("import compatkit as ck; ck.Trainer", "import torch, numpy", rounds)


def empty_fit(rounds: int, *, known: bool) -> list[float]:
    """Measure a fit of no steps of a network of timm.

    Args:
        rounds: Number of rounds.
        known: Whether an earlier process has checked the network.
    """
    with tempfile.TemporaryDirectory() as cache:
        begin = f"import os\nos.environ['COMPATKIT_CACHE'] = {cache!r}\n"
        if not known:
            begin += f"import shutil\nshutil.rmtree({cache!r}, ignore_errors=True)\n"
        return ratios(f"{begin}{FIT}", "import timm; timm.create_model('resnet18', num_classes=2)", rounds)
