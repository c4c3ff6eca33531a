"""Arms of a study run: the study's own, and those of the user, which extend one of them by regularizers.

``none,mine=dcc+cross_barlow:weight=.01:lam=5e-3`` names the study's arm ``none`` and an arm ``mine`` with two plugins.
A comma separates arms, ``+`` before a letter plugins, ``:`` settings. Within brackets and quotes nothing is separated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs

from compatkit.errors import CompatkitError, UsageError, suggest, type_of
from compatkit.experiments.studies.finding import InstalledStudy
from compatkit.experiments.studies.study import WORD
from compatkit.plugins import RegularizerConfig, RunPlugins, regularizer_config

FORM = "NAME=PLUGIN:KEY=VALUE:KEY=VALUE+PLUGIN"
_OPENING, _CLOSING = "[{", "]}"


@attrs.frozen
class Arm:
    """Arm of a study run.

    Attributes:
        name: Name in results.
        base: Arm of the study that it is, or that it extends.
        added: Regularizers of the user, besides those of ``base``.
        versions: Distribution and version of each plugin in ``added``.
    """

    name: str
    base: str
    added: tuple[RegularizerConfig, ...] = ()
    versions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The arm as it is written on the command line."""
        return self.name + (f"={'+'.join(map(_written, self.added))}" if self.added else "")

    def to_json(self) -> list[dict[str, Any]]:
        """Return the added regularizers as tables of a recipe, with their versions."""
        return [
            {**_table(use), "version": version}
            for use, version in zip(self.added, self.versions, strict=True)
        ]


ArmArgument = str | Mapping[str, Sequence[str | RegularizerConfig | Mapping[str, Any]]]
"""The name of an arm, an arm as on the command line, or a mapping from the name of a new arm to its regularizers."""


def arms_of(installed: InstalledStudy, arms: Iterable[ArmArgument]) -> tuple[Arm, ...]:
    """Return the selected arms: the study's in its own order, then those of the user.

    Args:
        installed: Study.
        arms: Arms, or texts of arms separated by commas; none for all of the study's.

    Raises:
        UsageError: An arm is unknown, repeated or malformed, or the study takes no arms of the user.
        UnknownName: A plugin is unknown.
        PluginError: A setting of a plugin is refused.
    """
    study, names, own = installed.study, list[str](), dict[str, Arm]()
    for item in arms:
        for name, uses in _parsed(item):
            if uses is None:
                if name not in study.arms:
                    raise UsageError(
                        f"Study {installed.number} has no arm {name!r}.{suggest(name, study.arms)} Its arms are "
                        f"{', '.join(study.arms)}. A new arm names its plugins: {FORM}.",
                        subject=name,
                    )
                names.append(name)
                continue
            if name in own or name in study.arms:
                raise UsageError(
                    f"Study {installed.number} has an arm {name!r} already; give yours another name.",
                    subject=name,
                )
            own[name] = _own(installed, name, uses)
    selected = [Arm(arm, arm) for arm in study.arms if arm in names or not (names or own)]
    return (*selected, *own.values())


def _own(installed: InstalledStudy, name: str, uses: Sequence[Any]) -> Arm:
    study = installed.study
    if study.extends is None:
        why = study.closed or f"they are no methods of training ({', '.join(study.arms[:4])}, ...)"
        raise UsageError(f"Study {installed.number} takes no arms of others: {why}.", subject=name)
    if not WORD.fullmatch(name):
        raise UsageError(
            f"An arm is a lower-case word such as 'mine'; got {name!r:.80}. Write {FORM}.", subject=name
        )
    if not uses:
        raise UsageError(f"The arm {name!r} names no plugin; write {FORM}.", subject=name)
    try:
        configs = tuple(map(regularizer_config, uses))
        members = RunPlugins.create(configs).members
    except CompatkitError as error:
        error.args = (f"Arm {name}: {error}", *error.args[1:])
        raise
    owners = {member.use.as_: member.owner for member in members}
    versions = [owners.get(config.as_) for config in configs]
    texts = [
        "" if owner is None else f"{owner.distribution or ''} {owner.version or ''}".strip()
        for owner in versions
    ]
    return Arm(name, study.extends, configs, tuple(texts))


def _parsed(item: ArmArgument) -> list[tuple[str, Sequence[Any] | None]]:
    """Return names of arms, with the regularizers of those of the user, else None."""
    if isinstance(item, Mapping):
        for name, uses in item.items():
            if isinstance(uses, str) or not isinstance(uses, Sequence):
                raise UsageError(
                    f"The arm {name!r:.80} needs a list of regularizers, such as ['dcc']; got {type_of(uses)}.",
                    subject=name,
                )
        return list(item.items())
    if not isinstance(item, str):
        raise UsageError(
            f"An arm is a text, or a mapping from its name to regularizers; got {type_of(item)}."
        )
    found: list[tuple[str, Sequence[Any] | None]] = []
    for text in separated(item, r","):
        name, equals, plugins = text.strip().partition("=")
        uses = [_use(name, plugin) for plugin in separated(plugins, r"\+(?=[A-Za-z])")] if equals else None
        found.append((name.strip(), uses if not equals or plugins.strip() else ()))
    return found


def _use(arm: str, text: str) -> dict[str, Any]:
    """Return the table of a plugin written as ``NAME:KEY=VALUE``; a package may precede the name, ``package:dcc``."""
    words = separated(text.strip(), r":")
    count = next((index for index, word in enumerate(words) if "=" in word), len(words))
    table: dict[str, Any] = {"name": ":".join(words[:count])}
    for word in words[count:]:
        key, equals, value = word.partition("=")
        if not equals or not key.strip() or key.strip() in table:
            raise UsageError(
                f"Arm {arm}: expected KEY=VALUE once for each setting of {table['name']!r}, got {word!r:.80}. Write "
                f"{FORM}.",
                subject=arm,
            )
        table[key.strip()] = _value(value.strip())
    return table


def _value(text: str) -> Any:
    """Return JSON, a number such as ``.01``, or the text itself."""
    for read in (json.loads, float):
        with suppress(ValueError):
            return read(text)
    return text


def separated(text: str, separator: str) -> list[str]:
    """Return the parts of a text, without dividing brackets and double quotes.

    Args:
        text: Text to divide.
        separator: Regular expression of a separator that begins with one character.
    """
    parts, start, depth, quoted = list[str](), 0, 0, False
    pattern = re.compile(separator)
    for place, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            depth += (letter in _OPENING) - (letter in _CLOSING)
            if depth == 0 and pattern.match(text, place):
                parts.append(text[start:place])
                start = place + 1
    return [*parts, text[start:]]


def _table(use: RegularizerConfig) -> dict[str, Any]:
    """Return a configuration as a table, without defaults."""
    table: dict[str, Any] = {"name": use.name}
    table |= {"weight": use.weight} if use.weight != 1.0 else {}
    table |= {"as": use.as_} if use.as_ != use.name.rpartition(":")[2] else {}
    table |= {"start": use.phase.start} if use.phase.start else {}
    table |= {"stop": use.phase.stop} if use.phase.stop is not None else {}
    order = {"before": list(use.before), "after": list(use.after)}
    return table | {key: value for key, value in order.items() if value} | dict(use.settings)


def _written(use: RegularizerConfig) -> str:
    table = _table(use)
    return ":".join([table.pop("name"), *(f"{key}={json.dumps(value)}" for key, value in table.items())])
