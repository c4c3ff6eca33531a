"""Rows of the floor about the command line, in new processes."""

from __future__ import annotations

from floor.row import Row

ROWS = (
    Row(
        "command-version",
        "`compatkit --version`",
        "click, attrs, and the version from metadata",
        "x",
        1.3,
        "first_touch:version",
    ),
    Row(
        "command-help", "`compatkit --help`", "imports of click, attrs", "x", 1.3, "first_touch:program_help"
    ),
    Row(
        "command-every-help",
        "`compatkit COMMAND --help`, mean over all commands",
        "imports of click, attrs, msgspec",
        "x",
        1.5,
        "first_touch:every_help",
        3,
    ),
    Row(
        "command-ls",
        "`compatkit ls` of ten parts",
        "imports of click, attrs, msgspec, sqlite3",
        "x",
        2,
        "first_touch:ls",
    ),
    Row(
        "command-search",
        "`compatkit search` in ten parts",
        "the same imports",
        "x",
        2,
        "first_touch:search",
    ),
    Row(
        "command-show",
        "`compatkit show`",
        "the same imports",
        "x",
        2,
        "first_touch:show",
    ),
    Row(
        "command-train-help",
        "`compatkit train --help`",
        "imports of click, attrs, msgspec",
        "x",
        2,
        "first_touch:train_help",
    ),
    Row(
        "command-check",
        "`compatkit check` of a pair",
        "imports of click, attrs, msgspec, sqlite3",
        "x",
        2,
        "first_touch:check",
    ),
    Row(
        "command-verify",
        "`compatkit verify` of ten parts",
        "these imports and torch's",
        "x",
        2,
        "first_touch:verify",
    ),
    Row(
        "command-verify-quick",
        "`compatkit verify --quick` of ten parts",
        "imports of click, attrs, msgspec, sqlite3",
        "x",
        2,
        "first_touch:verify_quick",
    ),
    Row(
        "command-completion",
        "`compatkit completion bash`",
        "imports of click, attrs",
        "x",
        1.3,
        "first_touch:completion",
    ),
    Row(
        "command-plugins",
        "`compatkit plugins`, from metadata",
        "imports of click, attrs, packaging; names and versions by importlib.metadata",
        "x",
        2,
        "first_touch:plugins",
    ),
)
