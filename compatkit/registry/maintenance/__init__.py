"""Keeping a registry sound: every fault found and named, mended where that is possible; garbage collected."""
