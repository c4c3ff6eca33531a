"""Hooks behind one guard: what each sees, and whose an error is."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from small import data_set

import compatkit as ck
from compatkit.errors import IntegrityError, PluginError
from compatkit.hooks import Batch, effect
from compatkit.plugins import RunPlugins
from compatkit.plugins.calls import after_chain, views_chain


def plugins(**hooks: Any) -> RunPlugins:
    """Return a run's plugins, each with one hook; ``first=views(...)``."""
    return RunPlugins.create(list(hooks), factories=dict(hooks))


def views(function: Any) -> Any:
    """Return the factory of a plugin whose views are ``function`` of a batch."""

    class Plugin:
        @ck.hookimpl
        def compatkit_views(self, batch: Batch) -> Any:
            return function(batch)

    return Plugin


def after(function: Any) -> Any:
    """Return the factory of a plugin that calls ``function`` after a step."""

    class Plugin:
        @ck.hookimpl
        def compatkit_after_step(self) -> None:
            function()

    return Plugin


def batch() -> Batch:
    return Batch(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64), torch.arange(4))


def same(batch: Batch) -> Batch:
    return batch


def more(batch: Batch) -> Batch:
    return attrs.evolve(batch, images=batch.images + 1)


def writes(batch: Batch) -> Batch:
    batch.images.add_(1)
    return batch


def fails() -> None:
    raise ValueError("no such layer")


class TestViews:
    def test_each_sees_what_the_one_before_gave(self) -> None:
        bound = plugins(a=views(more), b=views(same), c=views(more)).views
        assert views_chain(bound)(None, batch()).images.unique().tolist() == [2]

    def test_idle_ones_give_the_very_batch(self) -> None:
        inputs = batch()
        assert views_chain(plugins(a=views(same), b=views(same)).views)(None, inputs) is inputs

    @pytest.mark.parametrize(
        ("hooks", "names"),
        [
            ({"a": writes}, "Plugin 'a': "),
            ({"a": same, "b": writes, "c": same}, "Plugin 'b': "),
            ({"a": more, "b": writes}, "Plugin 'b': "),
            ({"a": same, "b": writes, "c": more, "d": same}, "Plugin 'b': "),
        ],
    )
    def test_the_writer_is_named(self, hooks: dict[str, Any], names: str) -> None:
        bound = plugins(**{name: views(each) for name, each in hooks.items()}).views
        with pytest.raises(PluginError, match=names + "compatkit_views wrote into the batch") as caught:
            views_chain(bound)(None, batch())
        assert caught.value.plugin == names.split("'")[1]

    def test_pure_ones_and_others_are_called_in_their_order_in_every_step(self) -> None:
        seen: list[str] = []

        def noting(name: str, kind: Any) -> Any:
            class Plugin:
                @ck.hookimpl
                @effect(kind)
                def compatkit_views(self, batch: Batch) -> Batch:
                    seen.append(name)
                    return batch

            return Plugin

        kinds = {"a": "pure", "b": "pure", "c": "device", "d": "pure"}
        task = ck.Task("digits", data_set("digits", count=32), "resnet8_cifar", "layer2", size=16)
        factories = {name: noting(name, kind) for name, kind in kinds.items()}
        trainer = ck.Trainer(steps=3, batch_size=8, progress=False)
        trainer.fit([task], list(kinds), factories=factories)
        assert seen == ["a", "b", "c", "d"] * 3

    def test_no_batch(self) -> None:
        with pytest.raises(PluginError, match="Plugin 'b': compatkit_views returned nothing"):
            views_chain(plugins(a=views(same), b=views(lambda inputs: None)).views)(None, batch())

    def test_what_fails_is_named(self) -> None:
        with pytest.raises(
            PluginError, match="Plugin 'b' failed in compatkit_views: ValueError: no such layer"
        ):
            views_chain(plugins(a=views(same), b=views(lambda inputs: fails())).views)(None, batch())


class TestAfter:
    def test_called_in_turn(self) -> None:
        seen: list[str] = []
        hooks = {name: after(lambda name=name: seen.append(name)) for name in "abc"}
        (call,) = after_chain(plugins(**hooks).after_step, "compatkit_after_step")
        call(None)
        assert seen == ["a", "b", "c"]

    def test_nobody(self) -> None:
        assert after_chain((), "compatkit_after_step") == ()

    def test_what_fails_is_named_and_those_behind_it_are_not_called(self) -> None:
        seen: list[str] = []
        bound = plugins(a=after(lambda: seen.append("a")), b=after(fails), c=after(lambda: seen.append("c")))
        (call,) = after_chain(bound.after_step, "compatkit_after_step")
        with pytest.raises(PluginError, match="Plugin 'b' failed in compatkit_after_step: ValueError"):
            call(None)
        assert seen == ["a"]

    def test_an_error_of_ours_stays_of_its_kind(self) -> None:
        def lost() -> None:
            raise IntegrityError("the images are gone")

        (call,) = after_chain(plugins(a=after(lost)).after_step, "compatkit_after_step")
        with pytest.raises(IntegrityError, match="the images are gone") as caught:
            call(None)
        assert str(caught.value).endswith("Raised in compatkit_after_step of plugin 'a'.")
