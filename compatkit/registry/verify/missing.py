"""Blobs that are needed and not in their place: where else their bytes are, and how bad it is."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry.verify.contents import read_content
from compatkit.registry.verify.reaching import Reach, Use
from compatkit.registry.verify.survey import Survey
from compatkit.registry.verify.surveying import ANY_DIGEST, listed


def blob_path(digest: str) -> str:
    """Return where a blob belongs, relative to the root."""
    hexadecimal = digest.removeprefix("sha256:")
    return f"blobs/sha256/{hexadecimal[:2]}/{hexadecimal}"


@attrs.define
class Missing:
    """Tells of what is not there.

    Attributes:
        survey: What is there.
        reach: Who uses what.
        deep: Whether copies are compared with their digests, or only their sizes.
    """

    survey: Survey
    reach: Reach
    deep: bool
    _behind: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))
    _misplaced: dict[str, list[str]] | None = None

    @property
    def _elsewhere(self) -> dict[str, list[str]]:
        """Files that have a digest in their name and are in no place of a blob, by that digest."""
        if self._misplaced is None:
            self._misplaced = defaultdict(list)
            for path in self.survey.misplaced:
                if match := ANY_DIGEST.search(path.rpartition("/")[2]):
                    self._misplaced[f"sha256:{match[1].lower()}"].append(path)
        return self._misplaced

    def tell(self, digest: str) -> bool:
        """Report a blob that is not in its place; False if it is there again."""
        path, users, findings = blob_path(digest), self.reach.users(digest), self.survey.findings
        if not users:
            return True  # gc took it out at this moment
        blocked = next((str(one) for one in Path(path).parents if str(one) in self.survey.blocked), None)
        if blocked is not None:
            self._behind[blocked].extend(users)
            return True
        for place in self._elsewhere.get(digest, []):
            if self._is_good(place, digest):
                self._elsewhere[digest].remove(place)
                findings.add("blob-place", place, f"its place is {path}", users)
                return True
        for folder in ("trash", "quarantine"):
            self.survey.aside[folder] = listed(self.survey, folder)
        kept = {folder: self._copy(folder, digest) for folder in ("trash", "quarantine")}
        if os.path.lexists(self.survey.root / path):
            return False
        if kept["trash"]:
            findings.add("blob-in-trash", path, f"it is in {kept['trash']}", users)
            return True
        code = missing_code(self.reach.uses[digest])
        if code == "blob-collected" and self._names("quarantine", digest):
            code = "blob-missing"  # it was damaged, and not taken out
        if kept["quarantine"]:
            what = f"a good copy is in {kept['quarantine']}"
            findings.add(code, path, what, users, "--repair puts that copy back in its place")
        else:
            findings.add(code, path, "not there, and no good copy of it in trash/ or quarantine/", users)
        return True

    def tell_rest(self) -> None:
        """Report files in wrong places that nothing needs, and folders that could not be looked into."""
        for path in sorted(one for paths in self._elsewhere.values() for one in paths):
            what = "named by a digest, and not where blobs are looked for"
            remedy = "--repair moves it to its place if its bytes fit; else remove it"
            self.survey.findings.add("misnamed", path, what, remedy=remedy)
        for path, (code, what) in sorted(self.survey.blocked.items()):
            name = path.removeprefix("refs/").partition("/@")[0] if path.startswith("refs/") else ""
            self.survey.findings.add(code, path, what, self._behind[path] or ([name] if name else []))

    def _copy(self, folder: str, digest: str) -> str | None:
        """Return the path of a good copy of a blob that lies in ``trash`` or ``quarantine``."""
        return next((path for path in self._names(folder, digest) if self._is_good(path, digest)), None)

    def _names(self, folder: str, digest: str) -> list[str]:
        hexadecimal = digest.removeprefix("sha256:")
        return [
            f"{folder}/{name}" for name in self.survey.aside.get(folder, {}) if name.startswith(hexadecimal)
        ]

    def _is_good(self, path: str, digest: str) -> bool:
        try:
            if not self.deep:
                sizes = {use.size for use in self.reach.uses.get(digest, []) if use.size is not None}
                return sizes <= {os.lstat(self.survey.root / path).st_size}
            content = read_content(self.survey.root / path, self.survey.root, lambda size: None)
            return content.digest == digest
        except (OSError, IntegrityError):
            return False


def missing_code(uses: Iterable[Use]) -> str:
    """Return the code of a blob that is not there, by what it is needed for."""
    roles = {use.role for use in uses}
    if "version" in roles:
        return "manifest-missing"
    if "parent" in roles:
        return "parent-missing"
    if roles == {"result"}:
        return "result-missing"
    living = [use for use in uses if use.living]
    if not living and roles == {"payload"}:
        return "blob-collected"
    return "kin-missing" if all(use.kin for use in living or uses) else "blob-missing"
