"""Measure the time of fitting a bridge between wide features, and whether memory grows with the number of images.

    python benchmarks/bridges.py [--channels 2048] [--images 1000] [--threads 2]

Features are random: maps of 7x7 positions; half of the variance of the target is explained by the source. Each row is
measured in a separate process with its own peak memory. The rival is scikit-learn's Ridge on all samples at once, in
float64.
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
    """Yield batches of source and target maps ``(batch, channels, 7, 7)``."""
    draw = torch.Generator().manual_seed(0)
    mixing = torch.randn(channels, channels, generator=draw) / channels**0.5
    for start in range(0, images, BATCH):
        count = min(BATCH, images - start)
        x = torch.randn(count, channels, 7, 7, generator=draw).relu_()
        noise = torch.randn(count, channels, 7, 7, generator=draw)
        yield x, torch.einsum("oi,nihw->nohw", mixing, x) + noise


def time_fits(channels: int, images: int) -> dict[str, float]:
    """Return the seconds of each fit; drawing the features is not counted."""
    from compatkit.adapters.alignment.maps import permutation, ridge, rotation, scale_of
    from compatkit.components.projecting import moments_of

    seconds, drawing, drawing_processor = dict[str, float](), 0.0, 0.0

    def timed_pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        nonlocal drawing, drawing_processor
        source = features(channels, images)
        while True:
            start, processor_start = time.perf_counter(), time.process_time()
            pair = next(source, None)
            drawing += time.perf_counter() - start
            drawing_processor += time.process_time() - processor_start
            if pair is None:
                return
            yield pair

    start, processor = time.perf_counter(), time.process_time()
    moments = moments_of(timed_pairs(), "NCHW", images)
    seconds["moments"] = time.perf_counter() - start - drawing
    processor = time.process_time() - processor - drawing_processor

    def timed(name: str, fit: Callable[[], Any]) -> Any:
        nonlocal processor
        start, processor_start = time.perf_counter(), time.process_time()
        result = fit()
        seconds[name] = time.perf_counter() - start
        processor += time.process_time() - processor_start
        return result

    timed("permutation", lambda: permutation(moments))
    rotated = timed("procrustes", lambda: rotation(moments))
    timed("ridge", lambda: ridge(moments, 0.01))
    timed("ridge-procrustes", lambda: ridge(moments, 0.01, rotated * scale_of(moments, rotated)))
    return seconds | {"samples": moments.samples, "processor": processor}


def time_ridge(channels: int, images: int) -> dict[str, float]:
    """Return the seconds of scikit-learn's Ridge on as many samples as compatkit's fit takes."""
    from sklearn.linear_model import Ridge

    from compatkit.components.projecting import FOR_EACH, SAMPLES

    samples = max(SAMPLES, FOR_EACH * channels)
    pairs = [(x.permute(0, 2, 3, 1).reshape(-1, channels), y.permute(0, 2, 3, 1).reshape(-1, channels))
             for x, y in features(channels, min(images, -(-samples // POSITIONS)))]  # fmt: skip
    x, y = (torch.cat([pair[side] for pair in pairs])[:samples].double().numpy() for side in (0, 1))
    start = time.perf_counter()
    processor_start = time.process_time()
    Ridge(alpha=0.01 * float(x.var(axis=0).mean()) * len(x), solver="cholesky").fit(x, y)
    processor = time.process_time() - processor_start
    return {"ridge": time.perf_counter() - start, "processor": processor, "samples": len(x)}


def run_in_subprocess(contestant: str, channels: int, images: int, threads: int) -> dict[str, float]:
    """Measure a contestant in a separate process; return its figures, with the peak memory in MB."""
    words = [sys.executable, __file__, "--one", contestant, "--channels", str(channels)]
    words += ["--images", str(images), "--threads", str(threads)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", choices=("climb", "rival"))
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(options.threads)
        result = (time_fits if options.one == "climb" else time_ridge)(options.channels, options.images)
        result["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result))
        return
    print(f"{options.channels} channels to {options.channels}, maps of 7x7, {options.threads} threads\n")
    print("| images | samples | " + " | ".join(f"{fit}, s" for fit in FITS) + " | processor, s | peak, MB |")
    print("|---|---|" + "---|" * (len(FITS) + 2))
    for images in (options.images, 4 * options.images):
        row = run_in_subprocess("climb", options.channels, images, options.threads)
        seconds = " | ".join(f"{row[fit]:.1f}" for fit in FITS)
        print(
            f"| {images:,} | {row['samples']:,} | {seconds} | {row['processor']:.0f} | {row['peak']:,.0f} |",
            flush=True,
        )
    ridge = run_in_subprocess("rival", options.channels, options.images, options.threads)
    print(
        f"\nscikit-learn's Ridge, {ridge['samples']:,} samples at once: {ridge['ridge']:.1f} s "
        f"({ridge['processor']:.0f} of the processor), {ridge['peak']:,.0f} MB"
    )


if __name__ == "__main__":
    main()
