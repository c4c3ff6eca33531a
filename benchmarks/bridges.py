"""How long a bridge between wide parts takes once features are there, and whether memory grows with the images.

    python benchmarks/bridges.py [--channels 2048] [--images 1000] [--threads 2]

Features are drawn: maps of 7x7 positions, half of whose variance the target shares. Each row is a process of its
own, so that its peak of memory is its own. The rival is scikit-learn's Ridge on all samples at once, in float64.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

POSITIONS = 49
BATCH = 64
FITS = ("moments", "permutation", "procrustes", "ridge", "ridge-procrustes")


def features(channels: int, images: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of maps with those that they should give."""
    draw = torch.Generator().manual_seed(0)
    mixing = torch.randn(channels, channels, generator=draw) / channels**0.5
    for start in range(0, images, BATCH):
        count = min(BATCH, images - start)
        x = torch.randn(count, channels, 7, 7, generator=draw).relu_()
        noise = torch.randn(count, channels, 7, 7, generator=draw)
        yield x, torch.einsum("oi,nihw->nohw", mixing, x) + noise


def climb(channels: int, images: int) -> dict[str, float]:
    """Return the seconds of each fit, that of the moments without those of drawing features."""
    from compatkit.adapters.alignment.maps import permutation, ridge, rotation, scale_of
    from compatkit.components.projecting import moments_of

    found, drawn, idle = dict[str, float](), 0.0, 0.0

    def given() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        nonlocal drawn, idle
        source = features(channels, images)
        while True:
            began, before = time.perf_counter(), time.process_time()
            pair = next(source, None)
            drawn, idle = drawn + time.perf_counter() - began, idle + time.process_time() - before
            if pair is None:
                return
            yield pair

    began, worked = time.perf_counter(), time.process_time()
    moments = moments_of(given(), "NCHW", images)
    found["moments"] = time.perf_counter() - began - drawn
    worked = time.process_time() - worked - idle

    def timed(name: str, fit: Callable[[], Any]) -> Any:
        nonlocal worked
        began, before = time.perf_counter(), time.process_time()
        made = fit()
        found[name], worked = time.perf_counter() - began, worked + time.process_time() - before
        return made

    timed("permutation", lambda: permutation(moments))
    turned = timed("procrustes", lambda: rotation(moments))
    timed("ridge", lambda: ridge(moments, 0.01))
    timed("ridge-procrustes", lambda: ridge(moments, 0.01, turned * scale_of(moments, turned)))
    return found | {"samples": moments.samples, "processor": worked}


def rival(channels: int, images: int) -> dict[str, float]:
    """Return the seconds of scikit-learn's Ridge on as many samples as our fit takes."""
    from sklearn.linear_model import Ridge

    from compatkit.components.projecting import FOR_EACH, SAMPLES

    wanted = max(SAMPLES, FOR_EACH * channels)
    pairs = [(x.permute(0, 2, 3, 1).reshape(-1, channels), y.permute(0, 2, 3, 1).reshape(-1, channels))
             for x, y in features(channels, min(images, -(-wanted // POSITIONS)))]  # fmt: skip
    x, y = (torch.cat([pair[side] for pair in pairs])[:wanted].double().numpy() for side in (0, 1))
    began = time.perf_counter()
    before = time.process_time()
    Ridge(alpha=0.01 * float(x.var(axis=0).mean()) * len(x), solver="cholesky").fit(x, y)
    worked = time.process_time() - before
    return {"ridge": time.perf_counter() - began, "processor": worked, "samples": len(x)}


def alone(what: str, channels: int, images: int, threads: int) -> dict[str, float]:
    """Return what a process of its own measures, with its peak of memory in MB."""
    words = [sys.executable, __file__, "--one", what, "--channels", str(channels), "--images", str(images)]
    out = subprocess.run(
        [*words, "--threads", str(threads)], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", choices=("climb", "rival"))
    asked = parser.parse_args()
    if asked.one:
        torch.set_num_threads(asked.threads)
        found = (climb if asked.one == "climb" else rival)(asked.channels, asked.images)
        found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    print(f"{asked.channels} channels to {asked.channels}, maps of 7x7, {asked.threads} threads\n")
    print("| images | samples | " + " | ".join(f"{one}, s" for one in FITS) + " | processor, s | peak, MB |")
    print("|---|---|" + "---|" * (len(FITS) + 2))
    for images in (asked.images, 4 * asked.images):
        row = alone("climb", asked.channels, images, asked.threads)
        seconds = " | ".join(f"{row[one]:.1f}" for one in FITS)
        print(
            f"| {images:,} | {row['samples']:,} | {seconds} | {row['processor']:.0f} | {row['peak']:,.0f} |",
            flush=True,
        )
    other = alone("rival", asked.channels, asked.images, asked.threads)
    print(
        f"\nscikit-learn's Ridge, {other['samples']:,} samples at once: {other['ridge']:.1f} s "
        f"({other['processor']:.0f} of the processor), {other['peak']:,.0f} MB"
    )


if __name__ == "__main__":
    main()
