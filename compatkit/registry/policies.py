"""Compatibility policies as values: what a new version must keep working with, and how that is measured.

A policy has a scope: a name, or a glob over whole names. Of the scopes that match a name only the most specific counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import attrs

from compatkit.contracts.batchnorm import DEFAULT, POLICIES, is_policy
from compatkit.errors import FormatError, InvalidName, UsageError
from compatkit.foundation.codec import dumps, key_of, loads
from compatkit.registry.names import check_name

Mode = Literal[
    "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive"
]
MODES: tuple[Mode, ...] = get_args(Mode)
ASKED = ("extractor", "head")
"""Kinds of components that policies apply to: those that others are trained with, or on."""
SCHEMA = 1
LONGEST = 200
"""Characters of a scope: it becomes part of the name of a file, in which ``/``, ``*`` and ``?`` take three each."""
WILDCARDS = "*?"
LARGEST = 2**31 - 1
"""Of sample caps, seeds and batch sizes."""

_SCOPE = re.compile(
    r"[a-z0-9*?](?:[a-z0-9._*?-]*[a-z0-9*?])?(?:/[a-z0-9*?](?:[a-z0-9._*?-]*[a-z0-9*?])?){0,2}"
)


def check_scope(scope: str) -> str:
    """Return the stored form of a scope: ``digits/`` becomes ``digits/*``.

    Raises:
        InvalidName: Neither a component name nor a glob (``*``, ``?``) that could match one.
    """
    text = f"{scope}*" if isinstance(scope, str) and scope.endswith("/") else scope
    if isinstance(text, str) and not set(WILDCARDS) & set(text):
        return check_name(text)
    if not isinstance(text, str) or len(text) > LONGEST or ".." in text or not _SCOPE.fullmatch(text):
        raise InvalidName(
            f"scope {scope!r:.100} is not valid: give a component name such as 'digits/mnist.extractor', a prefix "
            f"such as 'digits/', or a glob of at most {LONGEST} characters over whole names such as "
            "'digits/*.extractor' ('*' also matches '/').",
            subject=scope,
        )
    return text


def matches(scope: str, name: str) -> bool:
    """Return whether a policy's scope covers a name.

    Args:
        scope: A name or glob.
        name: Of a component.
    """
    return scope == name or fnmatchcase(name, scope)


def by_specificity(scopes: Iterable[str]) -> list[str]:
    """Return scopes, the most specific first.

    A name comes before every glob. Of two globs the one with more characters before its first wildcard comes first,
    then the one with more characters that are no wildcards, then the one with fewer wildcards, then the
    alphabetically first: an order without ties.
    """
    return sorted(scopes, key=_rank)


def _rank(scope: str) -> tuple[int, int, int, int, str]:
    literal = [character for character in scope if character not in WILDCARDS]
    wild = len(scope) - len(literal)
    first = next((at for at, character in enumerate(scope) if character in WILDCARDS), len(scope))
    return (1 if wild else 0, -first, -len(literal), wild, scope)


def _is(fits: Callable[[Any], object], expected: str) -> Any:
    """Return a validator."""

    def check(instance: object, field: attrs.Attribute[Any], value: object) -> None:
        if not fits(value):
            raise UsageError(f"policy: {field.name} should be {expected}, got {value!r:.100}.")

    return check


def _whole(least: int) -> Any:
    return _is(
        lambda value: type(value) is int and least <= value <= LARGEST,
        f"a whole number from {least} to {LARGEST}",
    )


def _like(pattern: str, example: str) -> Any:
    return _is(
        lambda value: isinstance(value, str) and re.fullmatch(pattern, value), f"text such as {example!r}"
    )


_mode = _is(lambda value: isinstance(value, str) and value in MODES, f"one of {', '.join(MODES)}")
_statistics = _is(is_policy, f"one of {', '.join(POLICIES)} with N from 1 to {LARGEST}")
_flag = _is(lambda value: type(value) is bool, "true or false")
_tolerance = _is(
    lambda value: type(value) is float and 0 <= value < 1,
    "a share of accuracy from 0 to below 1, such as 0.03",
)
_data_name = _is(
    lambda value: isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable(),
    f"the name of the images that decide, such as 'mnist/test', in at most {LONGEST} characters",
)


@attrs.frozen
class Images:
    """The data set that a policy measures on.

    Attributes:
        name: ``"mnist/test"``; for people, and to find the data.
        digest: ``data:sha256:...`` of images, labels and classes; identifies the data.
    """

    name: str = attrs.field(validator=_data_name)
    digest: str = attrs.field(validator=_like("data:sha256:[0-9a-f]{64}", "data:sha256:<64 hex digits>"))


@attrs.frozen(kw_only=True)
class Policy:
    """What a new version of any name in the scope must keep working with, and how that is measured.

    Attributes:
        scope: A component name, or a glob over whole names.
        mode: ``backward``: a new extractor under every head released against the previous version;
            ``forward``: a new head on every released extractor of the previous version's line; ``full``: both;
            each with ``_transitive`` for every earlier version; ``none``: nothing, also where a wider scope asks.
        data: Images that decide; None for ``none`` only.
        metric: Name of what is measured.
        metric_version: Its version; another version is another figure.
        bn_policy: Statistics of batch normalization: ``running`` as stored, ``batch``, ``reestimate`` or ``mix:N``.
        tolerance: Largest share of accuracy below the bound that passes, in [0, 1).
        cap: Largest count of images, drawn class-balanced by ``seed``; None takes all.
        seed: Of that draw, and of the order of the images.
        batch_size: Images in a batch; part of the figure under ``batch``.
        across_major: Whether a new MAJOR version is bound too.

    Raises:
        UsageError: A value is none that a policy can have.
        InvalidName: The scope is not valid.
    """

    scope: str = attrs.field(converter=check_scope)
    mode: Mode = attrs.field(validator=_mode)
    data: Images | None = None
    metric: str = attrs.field(
        default="recombination_accuracy", validator=_like("[a-z][a-z0-9_]{0,63}", "recombination_accuracy")
    )
    metric_version: str = attrs.field(default="1", validator=_like("[0-9A-Za-z][0-9A-Za-z._-]{0,31}", "1"))
    bn_policy: str = attrs.field(default=DEFAULT, validator=_statistics, metadata={"key": "normalisation"})
    tolerance: float = attrs.field(
        default=0.0,
        converter=lambda value: float(value) if type(value) is int else value,
        validator=_tolerance,
    )
    cap: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(1)))
    seed: int = attrs.field(default=0, validator=_whole(0))
    batch_size: int = attrs.field(default=256, validator=_whole(2))
    across_major: bool = attrs.field(default=False, validator=_flag)

    def __attrs_post_init__(self) -> None:
        if self.mode != "none" and not isinstance(self.data, Images):
            raise UsageError(
                f"policy: the mode {self.mode} needs the images that decide (data), by name and digest."
            )
        if self.mode == "none" and self.data is not None:
            raise UsageError("policy: the mode none measures nothing; leave data out.")

    @property
    def transitive(self) -> bool:
        """Whether every earlier version counts, not only the previous one."""
        return self.mode.endswith("_transitive")

    def concerns(self, kind: str) -> bool:
        """Return whether the policy applies to a kind of component: extractors and heads only."""
        side = self.mode.removesuffix("_transitive")
        extractor, head = ASKED
        return side in {extractor: ("backward", "full"), head: ("forward", "full")}.get(kind, ())

    def unconcerned(self, kind: str) -> str:
        """Return why the policy does not apply to a kind of component, for messages."""
        if kind not in ASKED:
            article = "an" if kind[0] in "aeiou" else "a"
            return (
                f"policies ask something of extractors and heads, not of {article} {kind}, whose step is what its "
                "change demands"
            )
        return f"the mode {self.mode} asks nothing of {kind}s"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values that are stored."""
        values = {key: getattr(self, name) for key, name in _names().items()}
        if self.data is not None:
            values["data"] = {"name": self.data.name, "digest": self.data.digest}
        values["metric"] = {"name": self.metric, "version": values.pop("metric_version")}
        return {"schema": SCHEMA, **values}

    def __str__(self) -> str:
        if self.data is None:
            return f"{self.scope}: {self.mode}"
        images = f"{self.cap} images of {self.data.name}" if self.cap is not None else self.data.name
        wide = ", across majors" if self.across_major else ""
        return (
            f"{self.scope}: {self.mode}, {self.metric} {self.metric_version} on {images} within {self.tolerance:g} "
            f"of the bound, {self.bn_policy} statistics, seed {self.seed}{wide}"
        )


def _names() -> dict[str, str]:
    """Return the names of a policy's fields by their keys on disk."""
    return {key_of(field): field.name for field in attrs.fields(Policy)}


def to_bytes(policy: Policy | None, time: str, admitted: str = "") -> bytes:
    """Return one revision as canonical JSON.

    Args:
        policy: None if it is cleared.
        time: When, ISO 8601.
        admitted: Version that came in unmeasured, if that is the change.
    """
    value = {"policy": None if policy is None else policy.to_json(), "time": time}
    return dumps(value | ({"admitted": admitted} if admitted else {}))


def from_bytes(data: bytes, *, what: str) -> tuple[Policy | None, str, str]:
    """Read one revision strictly.

    Args:
        data: Content of the file.
        what: Its name, for messages.

    Returns:
        The policy, None where it was cleared; when that was; and what came in unmeasured, if that was the change.

    Raises:
        FormatError: Not what ``to_bytes`` writes.
    """
    value = loads(data, what=what)
    try:
        stored, time, admitted = value["policy"], value["time"], value.get("admitted", "")
        policy = None if stored is None else _policy(stored)
        if not isinstance(time, str) or not isinstance(admitted, str):
            raise TypeError("time and admitted are text")
    except (UsageError, InvalidName, LookupError, TypeError, AttributeError) as error:
        raise FormatError(f"{what}: {error}; got {value!r:.500}.") from error
    expected = to_bytes(policy, time, admitted)
    if data != expected and dumps(value) != expected:  # the same, spelled otherwise, is taken
        raise FormatError(f"{what}: expected {expected.decode().strip()}, got {value!r:.500}.")
    return policy, time, admitted


def _policy(value: Mapping[str, Any]) -> Policy:
    names = _names()
    fields = {names.get(key, key): value[key] for key in value if key != "schema"}
    metric, data = fields.pop("metric"), fields.pop("data")
    fields |= {"metric": metric["name"], "metric_version": metric["version"]}
    return Policy(**fields, data=None if data is None else Images(**data))
