"""The page about ten teams: its commands run as they stand, each on the machine of its person."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import REPOSITORY, blocks

from compatkit.cli import main
from compatkit.errors import SignatureError
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.signing.verify import require_signature
from compatkit.registry.store import Store

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
PAGE = blocks(REPOSITORY / "docs" / "how_to" / "teams.md", "bash")
RECIPE = blocks(REPOSITORY / "docs" / "how_to" / "teams.md", "toml")[0].text.replace(
    "steps = 300", "steps = 2\nbatch_size = 8"
)
EXIT_CODES = {"compatkit --registry mine push team: 'digits/mnist.*'": 2}
"""Commands of the page that are refused."""


class Machines:
    """The machines of several people, each with its own home, working folder and environment."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root, self.monkeypatch, self.capsys = root, monkeypatch, capsys
        self.keys, self.bucket = root / "keys", root / "bucket"
        self.keys.mkdir()
        self.exported: dict[str, dict[str, str]] = {}
        self.output: dict[str, str] = {}

    def enter(self, person: str) -> None:
        """Sit down at the machine of a person."""
        folder = self.root / person
        if not folder.exists():
            folder.mkdir()
            seed = sorted(["vision", "speech", "release", "operations", "application"]).index(person)
            (folder / "digits.toml").write_text(RECIPE.replace("seed = 1", f"seed = {seed}"))
            (folder / "keys").symlink_to(self.keys)
        self.monkeypatch.chdir(folder)
        self.monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        self.monkeypatch.setenv("COMPATKIT_CACHE", str(folder / "cache"))
        self.monkeypatch.delenv("COMPATKIT_KEY", raising=False)
        for name, value in self.exported.get(person, {}).items():
            self.monkeypatch.setenv(name, value)

    def run(self, person: str, line: str) -> None:
        """Run a line of the page."""
        self.enter(person)
        words = shlex.split(line.replace("s3://bucket/team", str(self.bucket)), comments=True)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.exported.setdefault(person, {})[name] = value
            return
        assert words[0] == "compatkit"
        with pytest.raises(SystemExit) as exit_code:
            main(words[1:])
        captured = self.capsys.readouterr()
        self.output[line] = captured.out + captured.err
        command = line.partition("  ")[0].strip()
        assert exit_code.value.code == EXIT_CODES.get(command, 0), (
            f"{person}: {line}\n{captured.out}{captured.err}"
        )
        for public in (self.root / person / "config/compatkit/keys").glob("*.pub"):
            if not (self.keys / public.name).exists():
                shutil.copy(public, self.keys)


def test_the_story_of_ten_teams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines, person = Machines(tmp_path, monkeypatch, capsys), ""
    for block in PAGE:
        for line in filter(None, block.text.splitlines()):
            if line.startswith("# "):
                person = line.removeprefix("# ")
            else:
                machines.run(person, line)

    def output(text: str) -> Any:
        return next(shown for line, shown in machines.output.items() if text in line)

    bucket = Store.open(machines.bucket)
    assert bucket.aliases("prod/mnist.head") == {"prod": "1.0.0"}
    assert not bucket.references.withdrawn("prod/mnist.head")
    assert bucket.references.withdrawn("digits/mnist.head")
    heads = {
        bucket.references.digest(f"{team}/mnist.head", version)
        for team in ("digits", "speech")
        for version in bucket.references.versions(f"{team}/mnist.head")
    }
    assert len(heads) == 2, "both teams have their parts in the bucket"
    assert "version-exists" in output("registry mine push team: 'digits/mnist.*'")
    assert output("registry parts push team: 'prod/*'").count("[unknown-signer]") == 2
    assert "trained on the test set" in output("registry app pull team:")
    app, trusted = Store.open(tmp_path / "application/app"), Trusted.of(machines.keys)
    released = app.resolve("prod/mnist.head:prod")
    require_signature(app, released, trusted, "auto")
    assert not app.references.withdrawn("digits/mnist.head"), "a pull withdraws nothing here"
    release = Trusted.of(machines.keys / "release.pub")
    require_signature(app, released, release, "auto")
    with pytest.raises(SignatureError):
        require_signature(app, released, Trusted.of(machines.keys / "vision.pub"), "auto")
    log = output("registry app log prod/mnist.head")
    assert next(iter(release.keys)) in log.replace("\n", "").replace(" ", "") or "ed25519:" in log
    assert os.environ["COMPATKIT_CACHE"]
