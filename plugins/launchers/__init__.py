"""Launchers of sweeps: what carries out many runs at a time."""
