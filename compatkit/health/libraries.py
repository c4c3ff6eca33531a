"""Libraries: installed versions and what compatkit requires, whether they import, torch and torchvision as a pair."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from compatkit.health.observation import Observation
from compatkit.health.probe import Imported

MODULES = {"scikit-learn": "sklearn", "pillow": "PIL", "attrs": "attrs"}
"""Modules of distributions that have another name."""
HEAVY = ("torch", "torchvision", "timm")
"""Libraries that import each other, in this order."""
UNCHECKED = ("dev", "benchmarks", "docs")
"""Extras for people who work on compatkit."""


def required() -> dict[str, Requirement]:
    """Return what compatkit requires, by distribution."""
    return {requirement.name: requirement for requirement, extra in _requirements() if not extra}


def module_of(name: str) -> str:
    """Return the module that a distribution is imported by."""
    return MODULES.get(name, name.replace("-", "_"))


def _requirements() -> Iterator[tuple[Requirement, str]]:
    """Yield each requirement of compatkit with the extra that asks for it, or an empty text."""
    for text in distribution("compatkit").requires or ():
        requirement = Requirement(text)
        marker = str(requirement.marker or "")
        yield requirement, marker.partition('extra == "')[2].partition('"')[0]


def python() -> Iterator[Observation]:
    """Yield what is found about Python and compatkit."""
    try:
        own = distribution("compatkit").version
        yield Observation("python", "compatkit", "ok", own)
    except PackageNotFoundError:
        yield Observation(
            "python", "compatkit", "problem", "its metadata are missing", "Install it: pip install compatkit."
        )
    yield Observation("python", "Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Observation("python", "system", "ok", f"{platform.platform()}, {platform.machine()}")


def libraries(imported: Mapping[str, Imported]) -> Iterator[Observation]:
    """Yield an observation for each required library, and for those of extras that are there.

    Args:
        imported: What came of the imports, by module.
    """
    for name, requirement in required().items():
        yield _library(name, requirement, imported.get(module_of(name), Imported()))
    yield from _pair()
    known: dict[str, list[str]] = {}
    for requirement, extra in _requirements():
        if extra and extra not in UNCHECKED:
            known.setdefault(extra, []).append(str(Requirement(str(requirement).partition(";")[0])))
    for extra, texts in sorted(known.items()):
        yield _extra(extra, [Requirement(text) for text in texts])


def _library(name: str, requirement: Requirement, imported: Imported) -> Observation:
    install = f"pip install '{name}{requirement.specifier}'"
    version = version_of(name)
    if version is None:
        return Observation("libraries", name, "problem", "not installed", f"Install it: {install}.")
    if not requirement.specifier.contains(version, prereleases=True):
        found = f"{version}, but compatkit requires {requirement.specifier}"
        return Observation("libraries", name, "problem", found, f"Install it: {install}.")
    if imported.error:
        remedy = f"Install it again: pip install --force-reinstall --no-deps '{name}=={version}'."
        if name in HEAVY[1:]:
            remedy = f"See torch first, on which it depends. {remedy}"
        return Observation(
            "libraries", name, "problem", f"{version} cannot be imported: {imported.error}", remedy
        )
    return Observation("libraries", name, "ok", f"{version} ({requirement.specifier} required)")


def _pair() -> Iterator[Observation]:
    """Yield whether torchvision was built for this torch, by its own metadata."""
    torch, torchvision = version_of("torch"), version_of("torchvision")
    if torch is None or torchvision is None:
        return
    wanted = next((each for each in requirements_of("torchvision") if each.name == "torch"), None)
    subject = "torch and torchvision"
    if wanted is None or wanted.specifier.contains(Version(torch).public, prereleases=True):
        asked = "" if wanted is None else f", which asks for torch{wanted.specifier}"
        yield Observation("libraries", subject, "ok", f"torch {torch}, torchvision {torchvision}{asked}")
        return
    yield Observation(
        "libraries",
        subject,
        "problem",
        f"torchvision {torchvision} asks for torch{wanted.specifier}, but torch {torch} is installed",
        f"Install a pair in one command: pip install --upgrade torch torchvision, or "
        f"pip install 'torch{wanted.specifier}' 'torchvision=={torchvision}'.",
    )


def _extra(extra: str, requirements: list[Requirement]) -> Observation:
    versions = {each.name: version_of(each.name) for each in requirements}
    install = f"pip install 'compatkit[{extra}]'"
    lacking = [name for name, version in versions.items() if version is None]
    old = [
        f"{each.name} {version} (required {each.specifier})"
        for each in requirements
        if (version := versions[each.name]) and not each.specifier.contains(version, prereleases=True)
    ]
    subject = f"extra {extra}"
    if old:
        return Observation("libraries", subject, "warning", ", ".join(old), f"Install it: {install}.")
    if lacking:
        return Observation(
            "libraries", subject, "ok", f"not installed: {', '.join(lacking)}", f"Optional: {install}."
        )
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Observation("libraries", subject, "ok", found)


def version_of(name: str) -> str | None:
    """Return the installed version of a distribution; None without usable metadata."""
    try:
        version = distribution(name).version
        return str(version) if Version(version) else None
    except (PackageNotFoundError, InvalidVersion, TypeError, OSError):
        return None


def requirements_of(name: str) -> list[Requirement]:
    """Return what a distribution requires without extras; what cannot be read is left out."""
    result: list[Requirement] = []
    for text in distribution(name).requires or ():
        try:
            requirement = Requirement(_canonical(text))
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            result.append(requirement)
    return result


def _canonical(text: Any) -> str:
    """Return a requirement without the parentheses of old metadata: ``torch (>=2)``."""
    name, opened, rest = str(text).partition("(")
    return f"{name}{rest.replace(')', '', 1)}" if opened and ";" not in name else str(text)
