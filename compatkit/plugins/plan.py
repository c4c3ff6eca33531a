"""The plugins of one run: found, made, checked, ordered, and resolved once into plain tuples.

Each run has its own manager, with the plugins that it names and no others. After ``RunPlugins.create`` pluggy is not
called again: the trainer iterates over tuples, and an event that no plugin implements is an empty one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs
import pluggy

from compatkit.errors import PluginError
from compatkit.foundation.display import aligned
from compatkit.hooks import PROJECT, Training
from compatkit.plugins.calls import Bound, adapt, bind
from compatkit.plugins.discovery import find, require
from compatkit.plugins.implementations import Implementation, arguments_of, implementations, refuse_class
from compatkit.plugins.isolation import Owner, suggestion
from compatkit.plugins.loading import Offer
from compatkit.plugins.settings import plain
from compatkit.plugins.uses import Use, as_use, ordered, refuse_twins

KIND = "regularizers"
EVENTS = (
    "task",
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
"""Events of a run, in their order; each is a tuple of RunPlugins, and ``compatkit_<event>`` a hook."""
HEADER = ("event", "order", "instance", "weight", "steps", "effect", "from")


@attrs.frozen(eq=False)
class Member:
    """One regularizer of a run: how the run uses it, the offer that it came from, and the object."""

    use: Use
    offer: Offer
    instance: object
    hooks: tuple[Implementation, ...]

    @property
    def owner(self) -> Owner:
        """The owner for messages: instance name and distribution."""
        return Owner(self.use.as_, self.offer.distribution, self.offer.version)

    def bound(self, hook: str) -> Bound | None:
        """Return a hook ready to be called, None where the instance does not implement it."""
        for one in self.hooks:
            if one.hook == hook:
                full = arguments_of(Training)[hook]
                method = getattr(self.instance, one.attribute)
                function, mixed = adapt(method, full, one.arguments), hasattr(method, "compatkit_autocast")
                asked = self.use
                return bind(asked.as_, asked.weight, asked.phase, one.effect, hook, function, mixed)
        return None


class _Hooks:
    """The hooks of one instance, for pluggy, which compares plugins by ``==``.

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
        task: Before networks are built; the other tuples as their hooks are named.
    """

    members: tuple[Member, ...]
    dropped: tuple[str, ...]
    manager: pluggy.PluginManager
    task: tuple[Bound, ...]
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
            manager.register(_Hooks(member), name=member.use.as_)
        return cls(tuple(members), dropped, manager, *(_resolve(members, event) for event in EVENTS))

    def __len__(self) -> int:
        return len(self.members)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return tensors and JSON values of each instance that has a state of its own.

        Raises:
            PluginError: A state holds something else, or the hook failed.
        """
        kept: dict[str, dict[str, Any]] = {}
        for member in self.members:
            if (bound := member.bound("compatkit_state")) is not None:
                state = bound.call()
                _check_state(state, member.owner)
                kept[member.use.as_] = dict(state)
        return kept

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore in each instance the result of ``states``.

        Raises:
            PluginError: States and instances do not belong together, or the hook failed.
        """
        found = {one.use.as_: one.bound("compatkit_load_state") for one in self.members}
        keepers = {name: bound for name, bound in found.items() if bound is not None}
        for name in states.keys() - keepers.keys():
            raise PluginError(
                f"There is a state of the plugin {name!r}, which this run does not have."
                f"{suggestion(name, keepers)} Use the plugins that the checkpoint was written with.",
                plugin=name,
            )
        for name, bound in keepers.items():
            if name not in states:
                owner = next(one.owner for one in self.members if one.use.as_ == name)
                raise owner.error("the checkpoint holds no state of it. Was it added since?")
            bound.call(dict(states[name]))

    def manifest(self) -> list[dict[str, Any]]:
        """Return which plugins took part, in order, for the manifest: plain JSON values.

        ``settings`` holds ``weight``, ``start``, ``stop`` and every setting of the factory, defaults too.
        """
        lines: list[dict[str, Any]] = []
        for member in self.members:
            asked, offer = member.use, member.offer
            settings = {"weight": asked.weight, "start": asked.phase.start, "stop": asked.phase.stop}
            settings |= {
                word: list(getattr(asked, word)) for word in ("before", "after") if getattr(asked, word)
            }
            settings |= {one.name: one.default for one in offer.settings if not one.many}
            settings |= plain(asked.settings)
            origin = {"distribution": offer.distribution, "version": offer.version}
            lines.append({"name": offer.key, "as": asked.as_, **origin, "settings": settings})
        return lines

    def explain(self) -> str:
        """Return a table of the hooks called at each event, in their order."""
        origins = {one.use.as_: one.offer for one in self.members}
        rows: list[tuple[str, ...]] = []
        for event in EVENTS:
            for place, one in enumerate(getattr(self, event), 1):
                offer, stop = origins[one.instance], "end" if one.phase.stop is None else one.phase.stop
                steps = (
                    "once"
                    if event in ("task", "set_up", "pretrain", "finish")
                    else f"{one.phase.start} to {stop}"
                )
                origin = f"{offer.distribution} {offer.version}" if offer.distribution else "the caller"
                rows.append((event, str(place), one.instance, f"{one.weight:g}", steps, one.effect, origin))
        lines = aligned([HEADER, *rows]) if rows else ["No regularizers."]
        if self.dropped:
            lines.append(f"Left out (weight 0): {', '.join(self.dropped)}")
        return "\n".join(lines)


def _member(asked: Use, local: Mapping[str, Callable[..., Any]]) -> Member:
    offer = Offer(KIND, asked.name, local[asked.name]) if asked.name in local else find(KIND, asked.name)
    instance = offer.make(asked.settings)
    owner = Owner(asked.as_, offer.distribution, offer.version)
    refuse_class(instance, owner, place="what its factory returns")
    hooks = implementations(instance, Training, owner)
    pair = ("compatkit_state", "compatkit_load_state")
    kept = [one.hook for one in hooks if one.hook in pair]
    if len(kept) == 1:
        other = pair[kept[0] == pair[0]]
        raise owner.error(
            f"it has {kept[0]} without {other}, so a run could not resume. Write both.", kept[0]
        )
    return Member(asked, offer, instance, hooks)


def _refuse_shared(member: Member, members: Sequence[Member]) -> None:
    for other in members:
        if other is not member and other.instance is member.instance:
            raise member.owner.error(
                f"its factory returned the same object as for {other.use.as_!r}. Make a new one in each call."
            )


def _resolve(members: Sequence[Member], event: str) -> tuple[Bound, ...]:
    bounds = (member.bound(f"compatkit_{event}") for member in members)
    return tuple(one for one in bounds if one is not None)


def _check_state(value: object, owner: Owner, path: str | None = None) -> None:
    """Raise for a state that no checkpoint can hold: tensors at the top level, and JSON values."""
    hook = "compatkit_state"
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise owner.error(f"{hook} has the key {key!r} at {path or 'its top'}; keys are texts.", hook)
            if path is not None or not _is_tensor(one):
                _check_state(one, owner, key if path is None else f"{path}.{key}")
    elif path is None:
        raise owner.error(
            f"{hook} returned a {type(value).__name__}; return a mapping from names to tensors and JSON values.",
            hook,
        )
    elif isinstance(value, list | tuple):
        for index, one in enumerate(cast("list[object]", value)):
            _check_state(one, owner, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise owner.error(
            f"{hook} holds {value} at {path}; JSON has no such number. Keep it in a tensor.", hook
        )
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise owner.error(
            f"{hook} holds a value of type {type(value).__name__} at {path}; a checkpoint takes tensors at the top "
            "and JSON values (texts, numbers, True, False, None, lists, mappings).",
            hook,
        )


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
