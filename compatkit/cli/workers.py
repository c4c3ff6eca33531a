"""Options of commands whose work may be divided among processes or machines."""

from __future__ import annotations

from compatkit.cli.options import Options, option


class WorkerOptions(Options):
    """Where the parts of a long work are carried out."""

    workers: int | None = option("Jobs at a time, in processes or on a cluster.", min=1)
    launcher: str = option(
        "sequential, process (here), ray (on a cluster), or a plugin's; auto: ray if --cluster is given, process if "
        "--workers is.",
        default="auto",
    )
    cluster: str | None = option(
        "Cluster, such as ray://head:10001; its machines must see the folders of this command at the same paths.",
        metavar="ADDRESS",
    )
