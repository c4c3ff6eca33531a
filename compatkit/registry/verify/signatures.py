"""Signatures as they lie there: names, form and subject; whether they verify is asked with the keys of a user."""

from __future__ import annotations

import os
from collections.abc import Collection

from compatkit.errors import SignatureError
from compatkit.registry.signing.envelope import LIMIT
from compatkit.registry.signing.signatures import FILE, FOLDER, file_name
from compatkit.registry.verify.faults import shown
from compatkit.registry.verify.pointers import small_file
from compatkit.registry.verify.reaching import Reach
from compatkit.registry.verify.survey import Survey
from compatkit.registry.verify.surveying import HEXADECIMAL


def survey_signatures(survey: Survey) -> None:
    """Look through ``signatures``; what no signature is called is kept, and not looked into."""
    if FOLDER in survey.blocked:
        return
    for entry in survey.entries(FOLDER):
        path = f"{FOLDER}/{entry.name}"
        if not HEXADECIMAL.fullmatch(entry.name):
            survey.foreign(entry, path, "")
        elif survey.is_folder(entry, path):
            survey_signed(survey, entry.name)


def survey_signed(survey: Survey, signed: str) -> None:
    """Look through the signatures of one manifest, given by 64 hex digits."""
    folder = f"{FOLDER}/{signed}"
    for entry in survey.entries(folder):
        if FILE.fullmatch(entry.name):
            survey.signatures.append((signed, entry.name))
        else:
            survey.foreign(entry, f"{folder}/{entry.name}", "")


def check_signatures(survey: Survey, reach: Reach, here: Collection[str] | None) -> None:
    """Report signatures that are damaged, or of manifests that are not here and that nobody misses.

    Args:
        survey: What is there.
        reach: Who uses what.
        here: All blobs, or None where not all were looked at.
    """
    orphans: dict[str, int] = {}
    for signed, name in survey.signatures:
        path, digest = f"{FOLDER}/{signed}/{name}", f"sha256:{signed}"
        content = small_file(survey, path, reach.users(digest))
        if content is None:
            continue
        if (wrong := fault(content, digest, name)) is not None:
            survey.findings.add("signature-damaged", path, wrong, reach.users(digest))
        elif here is not None and digest not in here and digest not in reach.uses:
            orphans[signed] = orphans.get(signed, 0) + 1
    for signed, count in orphans.items():
        what = f"{count} of a manifest that is not here; good again if it comes"
        survey.findings.add("signature-orphan", f"{FOLDER}/{signed}", what)


def fault(content: bytes, digest: str, name: str) -> str | None:
    """Return why a file is no signature of a manifest under this name; None if it is one."""
    if len(content) > LIMIT:
        return f"a signature has at most {LIMIT} bytes"
    try:
        expected = file_name(content, digest)
    except SignatureError as error:
        return str(error)
    if expected != name:
        return f"its name says other bytes; these belong to {os.path.basename(expected)}: {shown(content)}"
    return None
