"""The plugins of one run: found, made, checked, ordered, and resolved once into plain tuples.

Each run has its own manager and holds only what it names. After ``RunPlugins.create`` pluggy is not called
again: the trainer walks tuples, and an event that no plugin implements is an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pluggy

from compatkit.errors import PluginError
from compatkit.hooks import PROJECT, Training
from compatkit.plugins.calls import Bound, adapt, bind
from compatkit.plugins.discovery import find, require
from compatkit.plugins.explanation import table
from compatkit.plugins.implementations import Implementation, arguments_of, implementations, refuse_class
from compatkit.plugins.loading import Offer
from compatkit.plugins.order import ordered, refuse_twins
from compatkit.plugins.owners import Owner, suggestion
from compatkit.plugins.settings import plain
from compatkit.plugins.states import check_state
from compatkit.plugins.uses import Use, as_use

KIND = "regularizers"
EVENTS = (
    "set_up",
    "pretrain",
    "views",
    "further_views",
    "losses",
    "after_backward",
    "after_step",
    "after_epoch",
    "finish",
)
"""Moments of a run, in their order; each is a tuple of RunPlugins, and ``compatkit_<event>`` a hook."""


@attrs.frozen(eq=False)
class Member:
    """One regularizer of a run: what was asked for, what offered it, and the object."""

    use: Use
    offer: Offer
    instance: object
    hooks: tuple[Implementation, ...]

    @property
    def owner(self) -> Owner:
        """Whose it is, for messages: the instance name, and the distribution."""
        return Owner(self.use.as_, self.offer.distribution, self.offer.version)


class _Hooks:
    """The hooks of one instance, for pluggy, which tells plugins apart with ``==``.

    Two attrs objects with the same settings are equal, and pluggy would refuse the second.
    """

    def __init__(self, member: Member) -> None:
        self.instance = member.instance
        for one in member.hooks:
            setattr(self, one.attribute, getattr(member.instance, one.attribute))


@attrs.frozen(eq=False)
class RunPlugins:
    """The regularizers of one run, in order; create with ``RunPlugins.create``.

    Attributes:
        members: In the order in which they are called.
        dropped: Instances of weight 0: named, but not made.
        manager: Of this run alone; its hooks are not called in a step.
        set_up: Before the first step; the other tuples as their hooks are named.
    """

    members: tuple[Member, ...]
    dropped: tuple[str, ...]
    manager: pluggy.PluginManager
    set_up: tuple[Bound, ...]
    pretrain: tuple[Bound, ...]
    views: tuple[Bound, ...]
    further_views: tuple[Bound, ...]
    losses: tuple[Bound, ...]
    after_backward: tuple[Bound, ...]
    after_step: tuple[Bound, ...]
    after_epoch: tuple[Bound, ...]
    finish: tuple[Bound, ...]

    @classmethod
    def create(
        cls,
        uses: Sequence[str | Use | Mapping[str, Any]],
        *,
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> RunPlugins:
        """Find, make, check, order and resolve the regularizers of a run.

        Args:
            uses: Names, ``use(...)`` or tables of a recipe; those of weight 0 are left out.
            factories: Regularizers that are not installed, by name: for notebooks and for tests.

        Raises:
            UnknownName: No plugin of a name is installed.
            PluginError: A plugin is broken, an instance name is taken twice, or the order is a circle.
        """
        wanted = [as_use(one) for one in ([uses] if isinstance(uses, (str, Use)) else uses)]
        local = factories or {}
        for one in wanted:
            if one.name not in local:
                require(KIND, one.name)
        refuse_twins(wanted)
        active = [one for one in wanted if one.weight > 0]
        dropped = tuple(sorted(one.as_ for one in wanted if one.weight == 0))
        members = [_member(one, local) for one in ordered(active, dropped)]
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(Training)
        for member in reversed(members):  # pluggy calls the last one registered first
            _refuse_shared(member, members)
            try:
                manager.register(_Hooks(member), name=member.use.as_)
            except (ValueError, pluggy.PluginValidationError) as error:
                raise member.owner.error(f"pluggy refuses it: {error}") from error
        return cls(tuple(members), dropped, manager, *(_resolve(members, event) for event in EVENTS))

    def __len__(self) -> int:
        return len(self.members)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return tensors and JSON values by instance, of those that keep a state of their own.

        Raises:
            PluginError: A state holds something else, or the hook failed.
        """
        kept: dict[str, dict[str, Any]] = {}
        for member in self.members:
            call = _method(member, "compatkit_state")
            if call is not None:
                kept[member.use.as_] = check_state(_guarded(member, "compatkit_state", call), member.owner)
        return kept

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Give each instance back what ``states`` returned.

        Raises:
            PluginError: States and instances do not belong together, or the hook failed.
        """
        keepers = {one.use.as_: one for one in self.members if _method(one, "compatkit_load_state")}
        for name in states:
            if name not in keepers:
                raise PluginError(
                    f"There is a state of the plugin {name!r}, which this run does not have."
                    f"{suggestion(name, keepers)} Use the plugins that the checkpoint was written with.",
                    plugin=name,
                )
        for name, member in keepers.items():
            if name not in states:
                raise member.owner.error("the checkpoint holds no state of it. Was it added since?")
            call = _method(member, "compatkit_load_state")
            if call is not None:
                _guarded(member, "compatkit_load_state", call, dict(states[name]))

    def manifest(self) -> list[dict[str, Any]]:
        """Return which plugins took part, in order, for the manifest: plain JSON values.

        ``settings`` holds ``weight``, ``start``, ``stop`` and every setting of the factory, defaults too.
        """
        lines: list[dict[str, Any]] = []
        for member in self.members:
            asked, offer = member.use, member.offer
            settings = {one.name: one.default for one in offer.settings if not one.many}
            said: dict[str, Any] = {
                "weight": asked.weight,
                "start": asked.phase.start,
                "stop": asked.phase.stop,
            }
            said |= {word: list(getattr(asked, word)) for word in ("before", "after") if getattr(asked, word)}
            lines.append(
                {
                    "name": offer.key,
                    "as": asked.as_,
                    "distribution": offer.distribution,
                    "version": offer.version,
                    "settings": said | settings | plain(asked.settings),
                }
            )
        return lines

    def explain(self) -> str:
        """Return a table: what is called at which moment, in which order, and by whom."""
        origins = {one.use.as_: _origin(one.offer) for one in self.members}
        return table({event: getattr(self, event) for event in EVENTS}, origins, self.dropped)


def _origin(offer: Offer) -> str:
    return f"{offer.distribution} {offer.version}" if offer.distribution else "the caller"


def _member(asked: Use, local: Mapping[str, Callable[..., Any]]) -> Member:
    offer = Offer(KIND, asked.name, local[asked.name]) if asked.name in local else find(KIND, asked.name)
    instance = offer.make(asked.settings)
    owner = Owner(asked.as_, offer.distribution, offer.version)
    refuse_class(instance, owner, place="what its factory returns")
    hooks = implementations(instance, Training, owner)
    there = {one.hook for one in hooks}
    for one, other in (
        ("compatkit_state", "compatkit_load_state"),
        ("compatkit_load_state", "compatkit_state"),
    ):
        if one in there and other not in there:
            raise owner.error(f"it has {one} without {other}, so a run could not resume. Write both.", one)
    return Member(asked, offer, instance, hooks)


def _refuse_shared(member: Member, members: Sequence[Member]) -> None:
    for other in members:
        if other is not member and other.instance is member.instance:
            raise member.owner.error(
                f"its factory returned the same object as for {other.use.as_!r}. Make a new one in each call."
            )


def _resolve(members: Sequence[Member], event: str) -> tuple[Bound, ...]:
    hook = f"compatkit_{event}"
    bounds: list[Bound] = []
    for member in members:
        for one in member.hooks:
            if one.hook == hook:
                full = arguments_of(Training)[hook]
                function = adapt(getattr(member.instance, one.attribute), full, one.arguments)
                asked = member.use
                bounds.append(bind(asked.as_, asked.weight, asked.phase, one.effect, hook, function))
    return tuple(bounds)


def _method(member: Member, hook: str) -> Callable[..., Any] | None:
    for one in member.hooks:
        if one.hook == hook:
            return adapt(getattr(member.instance, one.attribute), arguments_of(Training)[hook], one.arguments)
    return None


def _guarded(member: Member, hook: str, call: Callable[..., Any], *arguments: Any) -> Any:
    bound = bind(member.use.as_, member.use.weight, member.use.phase, "host", hook, call)
    return bound.call(*arguments)
