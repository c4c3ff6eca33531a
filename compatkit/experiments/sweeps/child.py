"""A process that carries out runs: an order a line comes in, the run's name goes out when its record is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper


def main(words: Sequence[str]) -> None:
    """Work until no order comes any more; the one argument is the number of threads."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a plugin prints is no answer
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what was printed before a kill is to be told
    import torch

    from compatkit.experiments.sweeps.orders import Bench, Order, carry_out

    torch.set_num_threads(int(words[0]))
    bench = Bench()
    for line in sys.stdin:
        record = carry_out(Order.loads(line), bench)
        print(record.run, file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
