"""The user's configuration."""

from __future__ import annotations

from pathlib import Path


def configuration() -> Path:
    """Return the user's configuration folder."""
    from platformdirs import user_config_path

    return user_config_path("compatkit", appauthor=False)
