"""What of a registry is looked at: everything, or the names and versions that patterns match."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from compatkit.errors import InvalidName, NotFound
from compatkit.registry.names import Version
from compatkit.registry.verify.pointers import Published
from compatkit.registry.verify.survey import Survey


@attrs.frozen
class Wanted:
    """What is looked at."""

    patterns: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        for one in self.patterns:
            if ":" in one or "@^" in one:
                raise InvalidName(
                    f"{one!r:.100}: verify takes names or NAME@VERSION, in which *, ? and [...] are allowed; no alias, "
                    "digest or range.",
                    subject=one,
                )

    def name(self, name: str) -> bool:
        """Tell whether any version of a name is looked at."""
        return not self.patterns or any(fnmatchcase(name, one.partition("@")[0]) for one in self.patterns)

    def whole_name(self, name: str) -> bool:
        """Tell whether all versions of a name are looked at, and so its aliases."""
        return not self.patterns or any(fnmatchcase(name, one) for one in self.patterns if "@" not in one)

    def version(self, name: str, version: Version) -> bool:
        """Tell whether a version is looked at."""
        return self.whole_name(name) or any(fnmatchcase(f"{name}@{version}", one) for one in self.patterns)

    def check(self, survey: Survey, root: Path) -> None:
        """Refuse a pattern that matches nothing."""
        names = survey.names()
        for one in self.patterns:
            name, at, version = one.partition("@")
            found = [each for each in names if fnmatchcase(each, name)]
            if at:
                found = [
                    each for each in found for v in survey.versions[each] if fnmatchcase(str(v), version)
                ]
            if not found:
                raise NotFound(
                    f"{one!r:.100} matches no component of {root}; see `compatkit ls`.", subject=one
                )


@attrs.frozen
class Withdrawn:
    """Versions that have a tombstone, whatever it holds."""

    survey: Survey

    def __contains__(self, one: object) -> bool:
        return isinstance(one, Published) and one.version in self.survey.tombstones.get(one.name, ())
