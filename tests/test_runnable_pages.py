"""Pages that promise that their commands run as they stand: every block, in order, in an empty folder.

Each block of Python is a script of its own, which also has to end without a complaint on stderr.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from compatkit.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs" / "how_to"
PAGES = (
    *("adaptation.md", "adopting.md", "bridges.md", "fleet.md", "recombinations.md"),
    *("from_lightning.md", "from_mlflow.md", "from_timm.md"),
)
PROGRESS = re.compile(r": step [\d,]+ of [\d,]+; ")
EXIT = re.compile(r"# exit code ([0-9]+)$")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks: commands, programs, and recipes and modules that name their file."""
    return re.findall(
        r"^```(bash|python|toml)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default:.*type hint:UserWarning")  # MLflow's, while it is imported
@pytest.mark.parametrize("page", PAGES)
def test_everything_runs(page: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    result = blocks(page)
    assert {language for language, _ in result} >= {"bash", "python"}
    for language, text in result:
        if language == "toml":
            names = re.match(r"# (\w+\.toml)\n", text)
            assert names, text
            Path(names[1]).write_text(text)
            continue
        if names := re.match(r"# (\w+\.py)\n", text):
            Path(names[1]).write_text(text)
            continue
        if language == "python":
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, check=False
            )
            reply = [line for line in done.stderr.splitlines() if not PROGRESS.search(line)]
            assert (done.returncode, reply) == (0, []), f"{text}\n{done.stderr}"
            continue
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "compatkit", line
            with pytest.raises(SystemExit) as end:
                main(words[1:])
            expected = EXIT.search(line)
            reply = capsys.readouterr()
            assert end.value.code == int(expected[1] if expected else 0), f"{line}\n{reply.out}{reply.err}"
    assert not (tmp_path / "owned").exists()


def test_what_adopting_says_is_what_the_program_says() -> None:
    """Messages that the page quotes are made from these texts."""
    from compatkit.components.checkpoints.unpickle_subprocess import _refusal

    page = " ".join((DOCS / "adopting.md").read_text().split())
    refusal = _refusal(ValueError("Unsupported global: GLOBAL posix.system was not an allowed global"))
    assert f"error [unsafe-checkpoint] malicious.pth: {refusal}" in page
