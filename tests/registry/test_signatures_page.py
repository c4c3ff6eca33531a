"""docs/reference/signatures.md lists every reason for which a signature does not count, and verifies one as it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compatkit import errors
from compatkit.registry.signing.checks import SKEW
from compatkit.registry.signing.envelope import LIMIT, PAYLOAD_TYPE, PREDICATE_TYPE, TYPE
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signatures import LIMIT_PER_MANIFEST

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "signatures.md").read_text(
    encoding="utf-8"
)


def test_the_page_lists_every_reason_with_its_exit_code() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d) \|", PAGE, re.MULTILINE)
    known = [(entry.code, str(entry.exit_code)) for entry in errors.SignatureError.__subclasses__()]
    assert sorted(rows) == sorted(known)
    for item in (errors.KeyFileError, *errors.KeyFileError.__subclasses__(), errors.MissingDependency):
        assert f"`{item.code}`" in PAGE


def test_the_page_states_the_bounds_and_types_that_hold() -> None:
    assert LIMIT == 16 * 2**10 and "at most 16 KiB" in " ".join(PAGE.split())
    assert f"at most {LIMIT_PER_MANIFEST:,} a manifest" in PAGE
    assert f"{int(SKEW.total_seconds()) // 60} minutes apart" in PAGE
    assert f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE}" in PAGE and TYPE in PAGE and PREDICATE_TYPE in PAGE


@pytest.mark.skipif(shutil.which("openssl") is None or sys.platform == "win32", reason="no openssl")
def test_its_recipe_verifies_a_signature_and_refuses_another(tmp_path: Path) -> None:
    key = SigningKey.new("alice")
    key.save(tmp_path / "alice.pem")
    (tmp_path / "FILE.json").write_bytes(key.sign("sha256:" + "ab" * 32, "digits/usps.head@2.0.1").to_bytes())
    (recipe,) = re.findall(r"^```bash\n(python3 -c .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    recipe = recipe.replace("python3", sys.executable, 1)
    done = subprocess.run(["bash", "-ec", recipe], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "digits/usps.head@2.0.1" in done.stdout, done.stderr
    assert "Verified Successfully" in done.stdout + done.stderr
    other = SigningKey.new("mallory")
    other.save(tmp_path / "mallory.pem")
    shutil.copy(tmp_path / "mallory.pub", tmp_path / "alice.pub")
    refused = subprocess.run(["bash", "-ec", recipe], cwd=tmp_path, capture_output=True, check=False)
    assert refused.returncode != 0
