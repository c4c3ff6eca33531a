"""Where a catalogue is served unless another address is named."""

from __future__ import annotations

HOST, PORT = "127.0.0.1", 8642
