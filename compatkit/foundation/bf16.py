"""Which processors multiply bf16 faster than float32."""

from __future__ import annotations

from collections.abc import Collection


def multiplies_bf16_fast(model: str, flags: Collection[str]) -> bool:
    """Return whether a processor multiplies bf16 faster than float32.

    AMX does, and so does AVX512-BF16, except on Intel's processors without AMX (or where a virtual machine hides it):
    they take twice the time of float32 (``docs/results/precision.md``).

    Args:
        model: Name of the processor, such as ``"Intel(R) Xeon(R) Processor"``.
        flags: Names of its instruction sets, as Linux spells them.
    """
    return "amx_bf16" in flags or ("avx512_bf16" in flags and not model.casefold().startswith("intel"))
