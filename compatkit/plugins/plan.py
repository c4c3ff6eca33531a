"""The plugins of one run: find, create, check and order them, and resolve their hooks into plain tuples.

Each run registers its plugins, in order, with its own pluggy manager. ``RunPlugins.create`` resolves the manager's
hooks once; steps iterate over the tuples and do not call pluggy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import attrs
import pluggy

from compatkit.errors import FormatError, PluginError, type_of
from compatkit.foundation.codec import unstructure
from compatkit.foundation.display import aligned
from compatkit.hooks import PROJECT, Training
from compatkit.plugins.calls import Bound, adapt, bind
from compatkit.plugins.discovery import find, require
from compatkit.plugins.implementations import Implementation, arguments_of, implementations, refuse_class
from compatkit.plugins.isolation import Owner, suggestion
from compatkit.plugins.loading import Offer
from compatkit.plugins.selection import RegularizerConfig, check_unique_names, ordered, regularizer_config
from compatkit.plugins.settings import plain

KIND = "regularizers"
_STEP_EVENTS = (
    *("views", "joint_losses", "further_views", "sample_losses", "losses"),
    *("combine_gradients", "after_backward", "after_step"),
)
EVENTS = (
    *("task", "set_up", "pretrain", "sampler", *_STEP_EVENTS),
    *("after_epoch", "after_evaluation", "finish", "teardown"),
)
"""Events of a run, in their order; each is a field of RunPlugins, and ``compatkit_<event>`` is its hook."""
ONCE = ("task", "set_up", "pretrain", "finish", "teardown")
COSTS = {
    "joint_losses": "the batches and gradients of all tasks in memory for a round, and the passes that the hooks take",
    "combine_gradients": "a backward pass and a copy of all gradients for each loss of a step; steps are eager",
}
"""Costs of events that change how a step is carried out."""
HEADER = ("event", "order", "instance", "weight", "steps", "effect", "from")


@attrs.frozen(eq=False)
class Member:
    """One regularizer of a run: its use, the plugin's offer, and the object."""

    use: RegularizerConfig
    offer: Offer
    instance: object
    hooks: tuple[Implementation, ...]

    @property
    def owner(self) -> Owner:
        """The owner for messages: instance name and distribution."""
        return Owner(self.use.as_, self.offer.distribution, self.offer.version)

    def bound(self, hook: str, method: Callable[..., Any]) -> Bound:
        """Return the hook that ``method`` of the instance implements, ready to be called."""
        use, implementation = self.use, next(each for each in self.hooks if each.hook == hook)
        function = adapt(method, arguments_of(Training)[hook], implementation.argnames)
        mixed = hasattr(method, "compatkit_autocast")
        return bind(use.as_, use.weight, use.phase, implementation.effect, hook, function, mixed)


class _Hooks:
    """The hooks of one instance, for pluggy, which refuses plugins that compare equal, as attrs objects may."""

    def __init__(self, member: Member) -> None:
        for implementation in member.hooks:
            setattr(self, implementation.attribute, getattr(member.instance, implementation.attribute))


@attrs.frozen(eq=False)
class RunPlugins:
    """The regularizers of one run, in order; create with ``RunPlugins.create``.

    Attributes:
        members: Regularizers in the order of their calls.
        dropped: Names of instances of weight 0, which are not created.
        manager: The run's plugin manager, with each member's hooks under its instance name; not called in a step.
        task: Called before networks are built; the other tuples are named after their hooks.
    """

    members: tuple[Member, ...]
    dropped: tuple[str, ...]
    manager: pluggy.PluginManager
    task: tuple[Bound, ...]
    set_up: tuple[Bound, ...]
    pretrain: tuple[Bound, ...]
    sampler: tuple[Bound, ...]
    views: tuple[Bound, ...]
    joint_losses: tuple[Bound, ...]
    further_views: tuple[Bound, ...]
    sample_losses: tuple[Bound, ...]
    losses: tuple[Bound, ...]
    combine_gradients: tuple[Bound, ...]
    after_backward: tuple[Bound, ...]
    after_step: tuple[Bound, ...]
    after_epoch: tuple[Bound, ...]
    after_evaluation: tuple[Bound, ...]
    finish: tuple[Bound, ...]
    teardown: tuple[Bound, ...]

    @classmethod
    def create(
        cls,
        uses: Sequence[str | RegularizerConfig | Mapping[str, Any]],
        *,
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> RunPlugins:
        """Find, create, check, order and resolve the regularizers of a run.

        Args:
            uses: Names, ``use(...)`` or tables of a recipe; those of weight 0 are left out.
            factories: Factories of regularizers that are not installed, by name.

        Raises:
            UnknownName: A plugin is not installed.
            PluginError: A plugin is broken, two instances have one name, or the order has a cycle.
        """
        wanted = [
            regularizer_config(use)
            for use in ([uses] if isinstance(uses, (str, RegularizerConfig)) else uses)
        ]
        local = factories or {}
        for use in wanted:
            if use.name not in local:
                require(KIND, use.name)
        check_unique_names(wanted)
        active = [use for use in wanted if use.weight > 0]
        dropped = tuple(sorted(use.as_ for use in wanted if use.weight == 0))
        members = tuple(_member(use, local) for use in ordered(active, dropped))
        _refuse_shared(members)
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(Training)
        for member in reversed(members):  # pluggy calls the last one registered first
            manager.register(_Hooks(member), name=member.use.as_)
        events = (_resolve(manager, members, f"{PROJECT}_{event}") for event in EVENTS)
        return cls(members, dropped, manager, *events)

    def __len__(self) -> int:
        return len(self.members)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the state of each instance that has one: tensors and JSON values.

        Raises:
            PluginError: A state has other values, or the hook failed.
        """
        states: dict[str, dict[str, Any]] = {}
        owners = {member.use.as_: member.owner for member in self.members}
        for bound in _resolve(self.manager, self.members, "compatkit_state"):
            state = bound.call()
            _check_state(state, owners[bound.instance])
            states[bound.instance] = dict(state)
        return states

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the result of ``states`` in each instance.

        Raises:
            PluginError: States and instances differ, or the hook failed.
        """
        bounds = _resolve(self.manager, self.members, "compatkit_load_state")
        stateful = {bound.instance: bound for bound in bounds}
        for name in states.keys() - stateful.keys():
            raise PluginError(
                f"The checkpoint has a state of the plugin {name!r}, which this run does not have."
                f"{suggestion(name, stateful)} Use the plugins that it was written with.",
                plugin=name,
            )
        owners = {member.use.as_: member.owner for member in self.members}
        for name, bound in stateful.items():
            if name not in states:
                raise owners[name].error("the checkpoint has no state of it. Was it added since?")
            bound.call(dict(states[name]))

    def manifest(self) -> list[dict[str, Any]]:
        """Return the plugins of the run in order, as JSON values for the manifest.

        ``settings`` has ``weight``, ``start``, ``stop`` and every setting of the factory, defaults included.
        """
        lines: list[dict[str, Any]] = []
        for member in self.members:
            use, offer = member.use, member.offer
            settings = {"weight": use.weight, "start": use.phase.start, "stop": use.phase.stop}
            settings |= {word: list(getattr(use, word)) for word in ("before", "after") if getattr(use, word)}
            settings |= {setting.name: setting.default for setting in offer.settings if not setting.many}
            settings |= plain(use.settings)
            origin = {"distribution": offer.distribution, "version": offer.version}
            lines.append({"name": offer.key, "as": use.as_, **origin, "settings": settings})
        return lines

    def explain(self) -> str:
        """Return a table of the hooks called at each event, in their order."""
        origins = {member.use.as_: member.offer for member in self.members}
        rows: list[tuple[str, ...]] = []
        for event in EVENTS:
            for order, bound in enumerate(getattr(self, event), 1):
                offer, phase, weight = origins[bound.instance], bound.phase, f"{bound.weight:g}"
                steps = "once" if event in ONCE else f"{phase.start} to {phase.stop or 'end'}"
                origin = f"{offer.distribution} {offer.version}" if offer.distribution else "the caller"
                rows.append((event, str(order), bound.instance, weight, steps, bound.effect, origin))
        lines = aligned([HEADER, *rows]) if rows else ["No regularizers."]
        lines += [f"Cost of {event}: {cost}" for event, cost in COSTS.items() if getattr(self, event)]
        if self.dropped:
            lines.append(f"Left out (weight 0): {', '.join(self.dropped)}")
        return "\n".join(lines)


def _member(use: RegularizerConfig, local: Mapping[str, Callable[..., Any]]) -> Member:
    offer = Offer(KIND, use.name, local[use.name]) if use.name in local else find(KIND, use.name)
    instance = offer.make(use.settings)
    owner = Owner(use.as_, offer.distribution, offer.version)
    refuse_class(instance, owner, argument_name="its factory's result")
    hooks = implementations(instance, Training, owner)
    pair = {"compatkit_state", "compatkit_load_state"}
    lacking = pair - {implementation.hook for implementation in hooks}
    if len(lacking) == 1:
        (present,) = pair - lacking
        raise owner.error(f"{present} without {lacking.pop()}: a run could not resume. Write both.", present)
    return Member(use, offer, instance, hooks)


def _refuse_shared(members: Sequence[Member]) -> None:
    for left, right in combinations(members, 2):
        if left.instance is right.instance:
            message = f"its factory returned the same object as for {left.use.as_!r}. Return a new one in each call."
            raise right.owner.error(message)


def _resolve(manager: pluggy.PluginManager, members: Sequence[Member], hook: str) -> tuple[Bound, ...]:
    """Return the implementations of a hook, in the manager's calling order."""
    by_name = {member.use.as_: member for member in members}
    called = reversed(getattr(manager.hook, hook).get_hookimpls())
    return tuple(by_name[each.plugin_name].bound(hook, each.function) for each in called)


def _check_state(state: object, owner: Owner) -> None:
    """Raise for a state other than tensors at the top level and JSON values."""
    import torch

    hook = "compatkit_state"
    if not isinstance(state, Mapping):
        message = f"{hook} returned {type_of(state)}; return a mapping from names to tensors and JSON values."
        raise owner.error(message, hook)
    try:
        unstructure({name: value for name, value in state.items() if not isinstance(value, torch.Tensor)})
    except FormatError as error:
        raise owner.error(
            f"{hook} returned something that a checkpoint cannot store: {error} Return a mapping from names to tensors "
            "and JSON values.",
            hook,
        ) from error
