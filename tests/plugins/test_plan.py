"""The plugins of a run: traps of training hooks, order, weight 0, states, and what the manifest says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pluggy
import pytest
import torch

from compatkit import effect, hookimpl
from compatkit.errors import PluginError, UnknownName
from compatkit.plugins import RunPlugins, use


@attrs.define
class Counter:
    """Equal to any other of the same settings, as attrs objects are by default."""

    by: int = 1
    count: int = attrs.field(default=0, init=False)

    @hookimpl
    def compatkit_after_step(self) -> None:
        self.count += self.by

    @hookimpl
    def compatkit_state(self) -> dict[str, Any]:
        return {"count": self.count, "tensor": torch.tensor(self.count)}

    @hookimpl
    def compatkit_load_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def run(*uses: Any, **factories: Callable[..., Any]) -> RunPlugins:
    return RunPlugins.create(uses, factories={"counter": Counter, **factories})


def made(**methods: Any) -> Callable[[], Any]:
    return type("Mine", (), methods)


def refused(factory: Callable[..., Any]) -> str:
    with pytest.raises(PluginError) as caught:
        run("mine", mine=factory)
    assert str(caught.value).startswith("Plugin 'mine': ")
    assert caught.value.plugin == "mine"
    return str(caught.value)


@pytest.mark.case("I")
class TestTraps:
    def test_misspelt_hook(self) -> None:
        text = refused(made(compatkit_loses=hookimpl(lambda self, step: {})))
        assert "there is no hook 'compatkit_loses'. Did you mean 'compatkit_losses'?" in text

    def test_hook_without_its_prefix(self) -> None:
        text = refused(made(after_step=hookimpl(lambda self, step: None)))
        assert "there is no hook 'after_step'. Did you mean 'compatkit_after_step'?" in text

    def test_missing_marker(self) -> None:
        text = refused(made(compatkit_losses=lambda self, step: {}))
        assert "'compatkit_losses' is a method without a marker" in text

    def test_marker_of_another_project(self) -> None:
        theirs = pluggy.HookimplMarker("pytest")
        text = refused(made(compatkit_losses=theirs(lambda self, step: {})))
        assert "without a marker, so it would never be called" in text

    def test_marker_for_declaring_hooks(self) -> None:
        theirs = pluggy.HookspecMarker("compatkit")
        assert "without a marker" in refused(made(compatkit_losses=theirs(lambda self, step: {})))

    def test_class_in_place_of_an_instance(self) -> None:
        assert "is the class 'Counter', not an instance. Give Counter(...)" in refused(lambda: Counter)

    def test_argument_with_a_default(self) -> None:
        text = refused(made(compatkit_losses=hookimpl(lambda self, step, scale=1: {})))
        assert "argument 'scale' of 'compatkit_losses' has a default, so it would never be passed" in text

    def test_argument_that_the_hook_does_not_have(self) -> None:
        text = refused(made(compatkit_views=hookimpl(lambda self, batches: batches)))
        assert "has no argument 'batches'. Did you mean 'batch'?" in text
        assert "compatkit_views(step, batch)" in text

    @pytest.mark.parametrize(
        "function", [lambda self, *step: {}, lambda self, **step: {}, lambda self, *, step: {}]
    )
    def test_arguments_that_are_never_passed(self, function: Any) -> None:
        assert "only positional arguments are passed" in refused(made(compatkit_losses=hookimpl(function)))

    @pytest.mark.parametrize("options", [{"wrapper": True}, {"hookwrapper": True}])
    def test_wrapper(self, options: dict[str, bool]) -> None:
        def wraps(self: Any, step: Any) -> Any:
            return (yield)

        marked = hookimpl(**options)(wraps)
        assert f"'compatkit_losses' is marked with {next(iter(options))}" in refused(
            made(compatkit_losses=marked)
        )

    @pytest.mark.parametrize("option", ["tryfirst", "trylast"])
    def test_order_of_its_own(self, option: str) -> None:
        marked = hookimpl(**{option: True})(lambda self, step: {})
        assert "give before= or after= where a run lists them" in refused(made(compatkit_losses=marked))

    def test_generator(self) -> None:
        def losses(self: Any, step: Any) -> Any:
            yield {}

        assert "is a generator or a coroutine. Use a plain def" in refused(
            made(compatkit_losses=hookimpl(losses))
        )

    def test_no_hooks(self) -> None:
        assert "it implements no hook. Write one of compatkit_task, compatkit_set_up" in refused(made())
        assert "it implements no hook" in refused(lambda: None)

    def test_property(self) -> None:
        text = refused(made(compatkit_losses=property(lambda self: 1)))
        assert "'compatkit_losses' is a property without a marker" in text

    def test_registration_hook_on_the_object(self) -> None:
        text = refused(made(compatkit_metrics=hookimpl(lambda self, register: None)))
        assert "belongs to the module of the entry point" in text

    def test_state_that_cannot_be_loaded(self) -> None:
        text = refused(made(compatkit_state=hookimpl(lambda self: {})))
        assert "compatkit_state without compatkit_load_state" in text

    def test_method_of_another_name_for_a_hook(self) -> None:
        renamed = hookimpl(specname="compatkit_losses")(lambda self, step: {})
        plugins = RunPlugins.create(["mine"], factories={"mine": made(other=renamed)})
        assert plugins.losses[0].call(None) == {}

    def test_two_methods_for_one_hook(self) -> None:
        renamed = hookimpl(specname="compatkit_losses")(lambda self, step: {})
        text = refused(made(other=renamed, compatkit_losses=hookimpl(lambda self, step: {})))
        assert "both implement 'compatkit_losses'" in text

    def test_one_object_for_two_instances(self) -> None:
        first = Counter()
        with pytest.raises(PluginError, match="returned the same object as for"):
            run("mine", use("mine", as_="again"), mine=lambda: first)

    def test_other_attributes_are_not_read(self) -> None:
        def explode(self: Any) -> None:
            raise RuntimeError("read")

        assert (
            len(run("mine", mine=made(head=property(explode), compatkit_losses=hookimpl(lambda self: {}))))
            == 1
        )


class TestOrder:
    def test_by_name_and_not_by_the_order_of_naming(self) -> None:
        plugins = run(use("counter", as_="b"), use("counter", as_="c"), use("counter", as_="a"))
        assert [bound.instance for bound in plugins.after_step] == ["a", "b", "c"]
        assert plugins.losses == ()

    def test_before_and_after_win_over_names(self) -> None:
        plugins = run(
            use("counter", as_="a", after="c"),
            use("counter", as_="b"),
            use("counter", as_="d", before=["b"]),
            use("counter", as_="c"),
        )
        assert [bound.instance for bound in plugins.after_step] == ["c", "a", "d", "b"]

    def test_a_circle_is_named(self) -> None:
        with pytest.raises(PluginError, match=r"a cycle: (a before b before a|b before a before b)"):
            run(use("counter", as_="a", before="b"), use("counter", as_="b", before="a"))

    def test_unknown_neighbor(self) -> None:
        with pytest.raises(
            PluginError, match=r"names 'b0', which this run does not have\. Did you mean 'b1'"
        ):
            run(use("counter", as_="a", before="b0"), use("counter", as_="b1"))

    def test_neighbor_of_weight_0_may_be_named(self) -> None:
        assert len(run(use("counter", as_="a", before="b"), use("counter", as_="b", weight=0))) == 1

    def test_two_instances_of_one_name(self) -> None:
        with pytest.raises(PluginError, match=r"called 'counter'.*use\('counter', as_='counter_2'\)"):
            run("counter", "counter")


class TestWeightZero:
    def test_is_neither_imported_nor_made(self, install: Callable[..., None]) -> None:
        install("demo", {"regularizers.mine": "zero_mine"}, {"zero_mine": "raise RuntimeError('imported')"})
        plugins = run(use("mine", weight=0), "counter")
        assert [member.use.as_ for member in plugins.members] == ["counter"]
        assert plugins.dropped == ("mine",)
        assert [line["as"] for line in plugins.manifest()] == ["counter"]
        assert "Left out (weight 0): mine" in plugins.explain()

    def test_must_still_exist(self) -> None:
        with pytest.raises(UnknownName, match=r"no plugin regularizers\.absent"):
            run(use("absent", weight=0))


class TestStates:
    def test_round_trip(self) -> None:
        plugins = run("counter", use("counter", as_="fives", by=5))
        for bound in plugins.after_step:
            bound.call(None)
            bound.call(step=None)
        states = plugins.states()
        assert {name: state["count"] for name, state in states.items()} == {"counter": 2, "fives": 10}
        again = run("counter", use("counter", as_="fives", by=5))
        again.load_states(states)
        assert again.states()["fives"]["count"] == 10

    @pytest.mark.case("I")
    def test_plugin_missing_on_resume(self) -> None:
        states = run("counter", use("counter", as_="other")).states()
        with pytest.raises(PluginError, match="a state of the plugin 'other', which this run does not have"):
            run("counter").load_states(states)
        with pytest.raises(PluginError, match="'counter': the checkpoint has no state of it"):
            run("counter").load_states({})

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            (None, "returned a NoneType; return a mapping"),
            ({"a": object()}, "returned something that a checkpoint cannot store: .*object"),
            ({"a": {"b": [1, {2}]}}, r"a\.b\[1\]: expected a JSON value, got set"),
            ({"a": [torch.zeros(1)]}, r"a\[0\]: expected a JSON value, got Tensor"),
            ({"a": float("nan")}, "a: JSON has no nan"),
            ({1: 2}, "keys must be strings, got 1"),
        ],
    )
    def test_what_a_checkpoint_cannot_hold(self, state: Any, message: str) -> None:
        mine = made(
            compatkit_state=hookimpl(lambda self: state),
            compatkit_load_state=hookimpl(lambda self, state: None),
        )
        with pytest.raises(PluginError, match=message):
            run("mine", mine=mine).states()

    @pytest.mark.case("I")
    def test_failing_hook_names_the_plugin(self) -> None:
        with pytest.raises(PluginError, match="Plugin 'counter' failed in compatkit_load_state: KeyError"):
            run("counter").load_states({"counter": {}})


class TestWhatTookPart:
    def test_manifest_holds_given_and_default_settings(self, module: Callable[[str], None]) -> None:
        module(
            """
            @hookimpl
            def compatkit_regularizers(register): register("mine", Mine)

            class Mine:
                def __init__(self, rate=0.5, layers=("a",), limit=float("inf")): ...
                @hookimpl
                def compatkit_losses(self, step): return {}
            """
        )
        plugins = RunPlugins.create([use("mine", weight=2, as_="m", start=3, stop=9, rate=0.25)])
        assert plugins.manifest() == [
            {
                "name": "regularizers.mine",
                "as": "m",
                "distribution": "demo",
                "version": "1.0",
                "settings": {
                    "weight": 2.0,
                    "start": 3,
                    "stop": 9,
                    "rate": 0.25,
                    "layers": ["a"],
                    "limit": "inf",
                },
            }
        ]
        json.dumps(plugins.manifest(), allow_nan=False)

    def test_explain_is_a_table_in_order(self) -> None:
        pure = made(compatkit_losses=hookimpl(effect("pure")(lambda self, step: {})))
        text = run(use("mine", weight=0.5, start=2, stop=4), "counter", mine=pure).explain()
        assert [line.split() for line in text.splitlines()] == [
            ["event", "order", "instance", "weight", "steps", "effect", "from"],
            ["losses", "1", "mine", "0.5", "2", "to", "4", "pure", "the", "caller"],
            ["after_step", "1", "counter", "1", "0", "to", "end", "host", "the", "caller"],
        ]
        assert run().explain() == "No regularizers."

    def test_each_run_has_a_manager_of_its_own(self) -> None:
        first, other = run("counter"), run(use("counter", as_="second"))
        assert first.manager is not other.manager
        assert [name for name, _ in first.manager.list_name_plugin()] == ["counter"]
