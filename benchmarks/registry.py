"""Measure the cost of a registry: every operation as a ratio to minimal bare code, next to rivals.

Run ``python benchmarks/registry.py [--only publish,load] [--versions 100000] [--rounds 7] [--out FILE]``. All
contestants of an operation take turns in one run, in a new random order each round, so that a busy machine slows all
of them alike; the first round is not counted. ``ms`` is the median over the rounds and, in brackets, the minimum. Gates
judge the median of the rounds' ratios; the brackets give the ratio of the minima, of wall and of processor time.
Results are compared: sums of weights, names, rows. MLflow (``pip install mlflow``) is left out if it is not
installed.

- ``publish``, ``load``: ResNet-50 cut after its last stage, 94 MB;
- ``small``: a network of 1 MB;
- ``scale``: 100,000 versions of 20,000 names, and 10,000 of one name;
- ``matrix``: 300 extractors with 300 heads, with reasons;
- ``commands``: the command line, in a new process each time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before torch is imported

READING = """\
- **ms**: median of the rounds, in brackets the minimum. **ratio**: median of the rounds' ratios, which the gate judges;
  in brackets minimum by minimum, on the clock and of the processor's time, which other programs disturb less.
- **publish** does more than its floors: a second digest, of the tensors; a look for values that are not finite; a
  manifest that is read back before it is written; three files that are durable one after the other, with all folders.
- **The first load** of a component on a machine hashes the file and runs the probe, one forward pass of two images,
  which is most of the time; it runs again when a library or the component changes. Later rows show each by itself.
- **build** rebuilds a part of a network: it traces the network in train and in eval mode and cuts it, which no floor
  and no rival does. They build the whole network, here without its class layer.
- **timm on meta** runs timm's initialization, which computes nothing there but takes most of the time; the stricter
  floor leaves it out, as no user of timm could.
- **From the index**: a result is compared with the state of its files first; the bare SELECT believes its table.
- **matrix**: ``check_all`` says the reasons as codes, beside a loop that notes names and one that writes sentences;
  the texts of a pair are written for whoever asks for its report.
- MLflow and Hugging Face neither hash nor sync here. MLflow's pickle runs what the file says; its many versions are
  rows that were copied by SQL, its look-ups go through its own Python client on SQLite."""
GROUPS = {
    "publish": "registry_weights",
    "load": "registry_weights",
    "small": "registry_small",
    "scale": "registry_scale",
    "matrix": "registry_matrix",
    "commands": "registry_commands",
}


def main() -> None:
    """Measure the requested operations, print the table, and write it where ``--out`` is given."""
    options = _arguments()
    chosen = options.only.split(",") if options.only else list(GROUPS)
    unknown = sorted(set(chosen) - set(GROUPS))
    if unknown:
        sys.exit(f"no such operation: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="registry-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        with redirect_stdout(sys.stderr):  # rivals print too
            text = _measure(options, Path(folder), chosen)
        print(text, flush=True)  # removing the folder takes long
        if options.out is not None:
            options.out.write_text(f"# What a registry costs\n\n    {_command()}\n\n{text}\n\n{READING}\n")


def _measure(options: argparse.Namespace, folder: Path, chosen: list[str]) -> str:
    from contest import head, machine, say
    from registry_settings import Settings

    settings = Settings(folder, options.rounds, options.seed, options.versions, options.network, options.cut)
    conditions = f"{options.rounds} rounds, seed {options.seed}; load at the end: {{load}}."
    text = [machine(), conditions, "", head()]
    failures: list[str] = []
    for name in chosen:
        measure: Callable[[Any], list[str]] = getattr(import_module(GROUPS[name]), name)
        try:
            lines = measure(settings)
            say("\n".join(lines))
            text += lines
        except Exception as error:  # the other operations are still measured
            traceback.print_exc()
            failures.append(f"- **{name} was not measured**: {type(error).__name__}: {error}")
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return "\n".join([*text, *(["", *failures] if failures else [])]).replace("{load}", load)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="operations, separated by commas; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of turns")
    parser.add_argument(
        "--versions",
        type=int,
        default=100_000,
        help="number of versions for `scale`; one name gets a tenth more",
    )
    parser.add_argument("--network", default="resnet50", help="network of timm for `publish` and `load`")
    parser.add_argument("--cut", default="layer4", help="cut of the network; only the class layer may follow")
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    return parser.parse_args()


def _command() -> str:
    return " ".join(["python", "benchmarks/registry.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
