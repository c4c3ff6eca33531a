"""Studies by their number: those that installed packages offer, found like any other plugin."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import attrs

from compatkit import plugins
from compatkit.errors import CompatkitError, PluginError, UnknownName, UsageError, type_of
from compatkit.experiments.studies.study import Study
from compatkit.plugins.owners import Owner

KIND = "studies"


@attrs.frozen(eq=False)
class Found:
    """A study with its number and whose it is."""

    number: str
    study: Study
    owner: Owner


def numbers() -> list[str]:
    """Return the numbers of all installed studies in their order, 0.1, 0.1b, 0.9, 0.10; nothing is imported."""
    return sorted(plugins.names(KIND), key=_order)


def find(number: str) -> Found:
    """Import the study of this number.

    Raises:
        UnknownName: There is none; the message names near ones.
        PluginError: It is blocked, broken, or offered by two distributions.
    """
    known = numbers()
    if number not in known:
        raise UnknownName(
            f"There is no study {number!r}.{near(number, known)} There are {', '.join(known) or 'none'}: "
            "`compatkit study list` says what each shows.",
            subject=number,
        )
    offer = plugins.find(KIND, number)
    study = offer.make({})
    if not isinstance(study, Study):
        raise offer.owner.error(
            f"its factory gives {type_of(study)}; a study is a compatkit.experiments.studies.Study."
        )
    return Found(number, study, offer.owner)


def find_all() -> tuple[list[Found], dict[str, CompatkitError]]:
    """Import every installed study; return those that can be used, and by number why the others cannot."""
    found: list[Found] = []
    broken: dict[str, CompatkitError] = {}
    for number in numbers():
        try:
            found.append(find(number))
        except PluginError as error:
            broken[number] = error
    return found, broken


def arms_of(found: Found, asked: Iterable[str]) -> tuple[str, ...]:
    """Return the arms asked for, in the study's order; all of them where none are asked for.

    Raises:
        UsageError: An arm is unknown; the message names a near one.
    """
    wanted = [one.strip() for one in asked]
    for one in wanted:
        if one not in found.study.arms:
            raise UsageError(
                f"Study {found.number} has no arm {one!r}.{near(one, found.study.arms)} Its arms are "
                f"{', '.join(found.study.arms)}.",
                subject=one,
            )
    return tuple(arm for arm in found.study.arms if arm in wanted or not wanted)


def near(name: str, known: Iterable[str]) -> str:
    """Return ``" Near it: ..."``, or nothing: numbers of the same chapter first, then names that look alike."""
    names = list(known)
    chapter = [one for one in names if "." in name and one.split(".")[0] == name.split(".")[0]]
    close = difflib.get_close_matches(name, chapter or names, 3) or chapter[:3]
    return f" Near it: {', '.join(close)}." if close else ""


def _order(number: str) -> list[tuple[float, str]]:
    """Return a key by which 0.1b comes after 0.1 and before 0.2, and words after numbers."""
    parts = (re.fullmatch(r"(\d*)(.*)", part) for part in number.split("."))
    return [(float(one[1] or "inf"), one[2]) for one in parts if one is not None]
