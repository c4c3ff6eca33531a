"""Names of plugins that earlier manifests record under another spelling."""

RENAMED = {
    "metrics.mutual_neighbours": "metrics.mutual_neighbors",
    "metrics.specialisation": "metrics.specialization",
    "regularizers.colourisation": "regularizers.colorization",
}


def current(name: str) -> str:
    """Return the name that a recorded plugin has today."""
    return RENAMED.get(name, name)
