"""Make a registry with a pair of numbers under a policy: release.py ROOT EXTRACTOR HEAD MODE."""

from __future__ import annotations

import sys
from pathlib import Path

from bound_parts import release

release(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
