"""Compatibility policies: the released parts that a new version must work with, and how that is measured.

If the scopes of several match a name, the most specific counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import attrs

from compatkit.contracts.batchnorm import DEFAULT, POLICIES, is_policy
from compatkit.errors import FormatError, InvalidName, UsageError
from compatkit.foundation.codec import dumps, loads
from compatkit.foundation.json_fields import key_of
from compatkit.registry.policy_scopes import MAX_LENGTH, check_scope

Mode = Literal[
    "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive"
]
MODES: tuple[Mode, ...] = get_args(Mode)
KINDS = ("extractor", "head")
"""Kinds of components that policies apply to."""
SCHEMA = 1
MAX_INTEGER = 2**31 - 1
"""Maximum of sample caps, seeds and batch sizes."""


def _validator(is_valid: Callable[[Any], object], expected: str) -> Any:
    """Return an attrs validator that raises unless ``is_valid`` returns a true value."""

    def check(instance: object, field: attrs.Attribute[Any], value: object) -> None:
        if not is_valid(value):
            raise UsageError(f"policy: {field.name} should be {expected}, got {value!r:.100}.")

    return check


def _integer(minimum: int) -> Any:
    return _validator(
        lambda value: type(value) is int and minimum <= value <= MAX_INTEGER,
        f"a whole number from {minimum} to {MAX_INTEGER}",
    )


def _matching(pattern: str, example: str) -> Any:
    return _validator(
        lambda value: isinstance(value, str) and re.fullmatch(pattern, value), f"text such as {example!r}"
    )


_mode = _validator(lambda value: isinstance(value, str) and value in MODES, f"one of {', '.join(MODES)}")
_statistics = _validator(is_policy, f"one of {', '.join(POLICIES)} with N from 1 to {MAX_INTEGER}")
_flag = _validator(lambda value: type(value) is bool, "true or false")
_tolerance = _validator(
    lambda value: type(value) is float and 0 <= value < 1,
    "a fraction of accuracy from 0 to below 1, such as 0.03",
)
_data_name = _validator(
    lambda value: isinstance(value, str) and 0 < len(value) <= MAX_LENGTH and value.isprintable(),
    f"the name of a data set, such as 'mnist/test', in at most {MAX_LENGTH} characters",
)


@attrs.frozen
class Images:
    """Data set that a policy measures on.

    Attributes:
        name: Name for display and for finding the data, such as ``"mnist/test"``.
        digest: Digest ``data:sha256:...`` of images, labels and classes.
    """

    name: str = attrs.field(validator=_data_name)
    digest: str = attrs.field(validator=_matching("data:sha256:[0-9a-f]{64}", "data:sha256:<64 hex digits>"))


@attrs.frozen(kw_only=True)
class Policy:
    """Compatibility policy for the new versions of all names in a scope.

    Attributes:
        scope: Component name, or glob over full names.
        mode: Released parts that a new version must work with. ``backward``: a new extractor with every head released
            against the previous version. ``forward``: a new head with every released extractor of the line that the
            previous version was trained with. ``full``: both. With ``_transitive``, every earlier version counts.
            ``none``: no requirement, even if a wider scope has one.
        data: Data set to measure on; None for mode ``none`` only.
        metric: Name of the metric.
        metric_version: Version of the metric; results of different versions are not compared.
        bn_policy: Batch-norm statistics: ``running`` as stored, ``batch``, ``reestimate`` or ``mix:N``.
        tolerance: Maximum difference of accuracy below the bound that passes, in [0, 1).
        cap: Maximum number of images, drawn class-balanced with ``seed``; None takes all.
        seed: Seed of that draw and of the order of the images.
        batch_size: Number of images in a batch; affects the result if ``bn_policy`` is ``batch``.
        across_major: Whether the policy also applies to a new MAJOR version.

    Raises:
        UsageError: A value is not valid.
        InvalidName: The scope is not valid.
    """

    scope: str = attrs.field(converter=check_scope)
    mode: Mode = attrs.field(validator=_mode)
    data: Images | None = None
    metric: str = attrs.field(
        default="recombination_accuracy",
        validator=_matching("[a-z][a-z0-9_]{0,63}", "recombination_accuracy"),
    )
    metric_version: str = attrs.field(
        default="1", validator=_matching("[0-9A-Za-z][0-9A-Za-z._-]{0,31}", "1")
    )
    bn_policy: str = attrs.field(default=DEFAULT, validator=_statistics, metadata={"key": "normalisation"})
    tolerance: float = attrs.field(
        default=0.0,
        converter=lambda value: float(value) if type(value) is int else value,
        validator=_tolerance,
    )
    cap: int | None = attrs.field(default=None, validator=attrs.validators.optional(_integer(1)))
    seed: int = attrs.field(default=0, validator=_integer(0))
    batch_size: int = attrs.field(default=256, validator=_integer(2))
    across_major: bool = attrs.field(default=False, validator=_flag)

    def __attrs_post_init__(self) -> None:
        if self.mode != "none" and not isinstance(self.data, Images):
            raise UsageError(f"policy: the mode {self.mode} needs a data set (data), by name and digest.")
        if self.mode == "none" and self.data is not None:
            raise UsageError("policy: the mode none measures nothing; leave data out.")

    @property
    def transitive(self) -> bool:
        """Whether all earlier versions count, not only the previous one."""
        return self.mode.endswith("_transitive")

    def concerns(self, kind: str) -> bool:
        """Return whether the policy applies to a kind of component."""
        side = self.mode.removesuffix("_transitive")
        extractor, head = KINDS
        return side in {extractor: ("backward", "full"), head: ("forward", "full")}.get(kind, ())

    def unconcerned(self, kind: str) -> str:
        """Return why the policy does not apply to a kind of component, for messages."""
        if kind not in KINDS:
            article = "an" if kind[0] in "aeiou" else "a"
            return (
                f"policies apply to extractors and heads, not to {article} {kind}; its version step follows from its "
                "change"
            )
        return f"the mode {self.mode} does not apply to {kind}s"

    def to_json(self) -> dict[str, Any]:
        """Return the policy as stored JSON values."""
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
    """Return the field names of ``Policy`` by key on disk."""
    return {key_of(field): field.name for field in attrs.fields(Policy)}


def to_bytes(
    policy: Policy | None, time: str, admitted: str = "", author: Mapping[str, str] | None = None
) -> bytes:
    """Return an entry of a policy log as canonical JSON.

    Args:
        policy: New policy; None if the policy is cleared.
        time: Time of the change, ISO 8601.
        admitted: Version that was admitted without a measurement; empty for other changes.
        author: Fields of the author.
    """
    value = {**(author or {}), "policy": None if policy is None else policy.to_json(), "time": time}
    return dumps(value | ({"admitted": admitted} if admitted else {}))


def from_bytes(data: bytes, *, what: str) -> tuple[Policy | None, str, str, dict[str, str]]:
    """Read an entry of a policy log strictly.

    Args:
        data: Content of the file.
        what: Name of the file, for messages.

    Returns:
        Policy (None if it was cleared), time, admitted version (empty for other changes), and fields of the author.

    Raises:
        FormatError: The content is not what ``to_bytes`` writes.
    """
    value = loads(data, what=what)
    try:
        stored, time, admitted = value["policy"], value["time"], value.get("admitted", "")
        policy = None if stored is None else _policy(stored)
        author = {field: value[field] for field in ("by", "commit") if field in value}
        if not all(isinstance(text, str) for text in (time, admitted, *author.values())):
            raise TypeError("time, admitted, by and commit are texts")
    except (UsageError, InvalidName, LookupError, TypeError, AttributeError) as error:
        raise FormatError(f"{what}: {error}; got {value!r:.500}.") from error
    expected = to_bytes(policy, time, admitted, author)
    if data != expected and dumps(value) != expected:  # the same values in another spelling are accepted
        raise FormatError(f"{what}: expected {expected.decode().strip()}, got {value!r:.500}.")
    return policy, time, admitted, author


def _policy(value: Mapping[str, Any]) -> Policy:
    names = _names()
    fields = {names.get(key, key): value[key] for key in value if key != "schema"}
    metric, data = fields.pop("metric"), fields.pop("data")
    fields |= {"metric": metric["name"], "metric_version": metric["version"]}
    return Policy(**fields, data=None if data is None else Images(**data))
