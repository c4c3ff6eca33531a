"""Policies as they are found: every change must say what it holds, and none may be missing before the last."""

from __future__ import annotations

from collections import defaultdict

from compatkit.errors import FormatError
from compatkit.registry.policylog import FOLDER, file_name, parse_file, understood
from compatkit.registry.verify.faults import shown
from compatkit.registry.verify.pointers import small_file
from compatkit.registry.verify.survey import Survey


def check_policies(survey: Survey) -> None:
    """Report changes of policies that cannot be read, that are not there, and names that are none of a change."""
    if FOLDER in survey.blocked:
        return
    found: dict[str, list[int]] = defaultdict(list)
    for entry in survey.entries(FOLDER):
        parsed = parse_file(entry.name)
        if parsed is None:
            survey.foreign(entry, f"{FOLDER}/{entry.name}", "no change of a policy (SCOPE@NUMBER)")
        else:
            found[parsed[0]].append(parsed[1])
    for scope, numbers in sorted(found.items()):
        _check_log(survey, scope, sorted(numbers))


def _check_log(survey: Survey, scope: str, numbers: list[int]) -> None:
    reached, last = 0, numbers[-1]
    for number in numbers:
        missing = f"{FOLDER}/{file_name(scope, reached + 1)}"
        if number > reached + 1 and not survey.is_there(missing):
            which = f"{reached + 1} is" if number == reached + 2 else f"{reached + 1} to {number - 1} are"
            survey.findings.add(
                "policy-gap", missing, f"{which} not there, {number} is: its history is lost", (scope,)
            )
        reached = number
        path = f"{FOLDER}/{file_name(scope, number)}"
        content = small_file(survey, path, (scope,))
        if content is None:
            continue
        try:
            understood(content, scope, number)
        except FormatError as error:
            since = "nothing in its scope is published" if number == last else "a later change holds"
            what = f"expected a policy of {scope}, got {shown(content)}: {error} {since.capitalize()}"
            survey.findings.add("policy-damaged", path, what, (scope,))
