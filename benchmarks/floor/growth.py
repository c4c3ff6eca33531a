"""Rows of the floor about growth with size."""

from __future__ import annotations

from floor.row import Row

ROWS = (
    *(
        Row(
            f"growth-{work}",
            what,
            "time proportional to the number of pairs",
            "slope",
            1.05,
            "growth_pairs:growth",
            3,
            arguments={"work": work},
        )
        for work, what in (
            ("check", "checks of 100, 200 and 400 extractors with as many heads, no two contracts alike"),
            ("matrix", "matrices of 6 x 6, 12 x 12 and 24 x 24 small parts from a registry, processor time"),
            ("bridges", "`ridge` bridges of 2 x 2, 4 x 4 and 8 x 8 small parts, judged, processor time"),
        )
    ),
    *(
        Row(
            f"growth-{work}",
            f"{what}, processor time at 2,000, 8,000 and 32,000 versions",
            "time proportional to the number of versions",
            "slope",
            1.05,
            "growth:growth",
            3,
            why="a publish lists all versions of its name five times, so that no other process's is overlooked: "
            "4.7 ms of the processor where the name has 200 versions, 12.6 ms where it has 3,200."
            if work == "publish-long"
            else "",
            arguments={"work": work},
        )
        for work, what in (
            ("ls", "`ls`"),
            ("search", "`search` for a word that all versions have"),
            ("index", "rebuilding the index"),
            ("gc", "`gc`, dry run"),
            ("verify", "`verify`"),
            ("publish", "as many publishes as a registry has versions, of names with five each"),
            ("publish-long", "the same, of one name that has a tenth of the versions"),
        )
    ),
)
