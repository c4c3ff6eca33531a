"""The machine: instructions of the processor, threads, memory, accelerator, terminal."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from compatkit.foundation.bf16 import multiplies_bf16_fast
from compatkit.health.observation import Observation, State

INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
"""Instructions of x86 processors that torch uses."""
LOW_MEMORY = 2 * 2**30
"""Bytes of free memory below which importing torch and training may fail."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def processor(facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Yield what is found about processor, threads and memory.

    Args:
        facts: What torch says; empty if it cannot be imported.
    """
    model, flags = _cpuinfo()
    known = [name for name in INSTRUCTIONS if name in flags]
    state: State = "ok"
    remedy = ""
    if flags and "avx2" not in flags and os.uname().machine in ("x86_64", "AMD64"):
        state, remedy = "warning", "Without AVX2, training and inference are several times slower."
    used = f"; torch uses {facts['capability']}" if "capability" in facts else ""
    bf16 = "fast" if multiplies_bf16_fast(model, flags) else "slow"
    found = f"{model or 'unknown model'}: {', '.join(known) or 'none of ' + ', '.join(INSTRUCTIONS)}; bf16 is {bf16}"
    yield Observation("processor", "instructions", state, f"{found}{used}", remedy)
    yield _threads(facts)
    if (memory := free_memory()) is not None:
        short = memory < LOW_MEMORY
        remedy = "Close other programs, or use smaller batches." if short else ""
        yield Observation(
            "processor", "memory", "warning" if short else "ok", f"{memory / 2**30:.1f} GB free", remedy
        )


def _threads(facts: Mapping[str, Any]) -> Observation:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limited = {name: os.environ[name] for name in THREADS if name in os.environ}
    found = f"{os.cpu_count()} processors, {usable} of them usable"
    found += f"; torch uses {facts['threads']} threads" if "threads" in facts else ""
    found += "".join(f"; {name}={value}" for name, value in limited.items())
    remedy = ""
    if any(not value.isdecimal() or int(value) > usable for value in limited.values()):
        remedy = f"Set {' and '.join(limited)} to at most {usable}, or unset it."
    return Observation("processor", "threads", "warning" if remedy else "ok", found, remedy)


def accelerator(facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Yield what torch can use besides the processor, or why nothing.

    Args:
        facts: What torch says; empty if it cannot be imported.
    """
    driver = _driver()
    seen = f"driver {driver}" if driver else "no NVIDIA driver"
    if not facts:
        yield Observation("accelerator", "GPU", "ok", f"{seen}; torch could not be asked")
        return
    for number, device in enumerate(facts["devices"]):
        found = f"{device['name']}, {device['bytes'] / 2**30:.0f} GB, capability {device['capability']}"
        bf16 = "bf16" if facts.get("bf16") else "no bf16"
        yield Observation(
            "accelerator",
            f"cuda:{number}",
            "ok",
            f"{found}, {bf16}; {seen}, torch built for CUDA {facts['cuda']}",
        )
    if facts["devices"]:
        return
    if facts["mps"] or facts["hip"]:
        yield Observation("accelerator", "GPU", "ok", "Apple's" if facts["mps"] else f"ROCm {facts['hip']}")
    elif facts["cuda"] is None:
        state: State = "warning" if driver else "ok"
        remedy = "Install a torch built for CUDA: see pytorch.org." if driver else ""
        yield Observation("accelerator", "GPU", state, f"none: torch is built without CUDA; {seen}", remedy)
    elif not driver:
        yield Observation(
            "accelerator", "GPU", "ok", f"none: {seen}; torch is built for CUDA {facts['cuda']}"
        )
    else:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = (
            f"CUDA_VISIBLE_DEVICES={hidden}"
            if hidden is not None
            else facts["warning"] or "torch finds no device"
        )
        remedy = (
            "Unset it." if hidden is not None else "Update the driver, or install a torch for an older CUDA."
        )
        found = f"none: {why}; {seen}, torch built for CUDA {facts['cuda']}"
        yield Observation("accelerator", "GPU", "warning", found, remedy)


def terminal() -> Iterator[Observation]:
    """Yield what is found about encodings."""
    encodings = {
        "standard output": getattr(sys.stdout, "encoding", None) or "none",
        "file names": sys.getfilesystemencoding(),
        "locale": locale.getencoding() if hasattr(locale, "getencoding") else locale.getpreferredencoding(),
    }
    odd = [name for name, encoding in encodings.items() if encoding.lower().replace("-", "") != "utf8"]
    found = ", ".join(f"{name} {encoding}" for name, encoding in encodings.items())
    remedy = "Set LANG=C.UTF-8; other characters are shown as escapes." if odd else ""
    yield Observation("terminal", "encoding", "warning" if odd else "ok", found, remedy)


def free_memory() -> int | None:
    """Return bytes of memory that can be used: what is free, within the limit of the container; None if unknown."""
    limits: list[int] = []
    with suppress(OSError, ValueError):
        lines = dict(
            line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        )
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # "max" without a limit
        folder = Path("/sys/fs/cgroup")
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        limits.append(max(limit - used, 0))
    return min(limits, default=None)


def _cpuinfo() -> tuple[str, frozenset[str]]:
    """Return model and flags of the first processor; empty where the system does not say."""
    model, flags = "", frozenset[str]()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and not model:
                model = value.strip()
            elif name.strip() in ("flags", "Features") and not flags:
                flags = frozenset(value.split())
    return model, flags


def _driver() -> str:
    """Return the version of NVIDIA's kernel module, or empty."""
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    return ""
