"""Calling a hook in a step: the plugin is named in errors, and what it returns is checked without waiting."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from compatkit import effect, hookimpl
from compatkit.errors import DataError, IntegrityError, PluginError
from compatkit.hooks import Batch
from compatkit.plugins import RunPlugins, check_losses


def step(**fields: Any) -> Any:
    return SimpleNamespace(features=torch.ones(4, 3, requires_grad=True), **fields)


def run(**methods: Callable[..., Any]) -> RunPlugins:
    marked = {f"compatkit_{name}": hookimpl(function) for name, function in methods.items()}
    return RunPlugins.create(["mine"], factories={"mine": type("Mine", (), marked)})


def batch() -> Batch:
    return Batch(torch.zeros(4, 3, 2, 2), torch.zeros(4, dtype=torch.int64), torch.arange(4))


@pytest.mark.parametrize(
    "taken",
    [
        lambda self, step, batch: (step, batch),
        lambda self, batch, step: (step, batch),
    ],
)
def test_arguments_in_any_order_and_by_name(taken: Callable[..., Any]) -> None:
    bound = run(views=taken).views[0]
    assert bound.function("step", "batch") == ("step", "batch")
    assert bound.function("step", batch="batch") == ("step", "batch")
    assert bound.function(batch="batch", step="step") == ("step", "batch")


def test_fewer_arguments() -> None:
    plugins = run(views=lambda self, batch: batch, set_up=lambda self: 7)
    assert plugins.views[0].function("step", "batch") == "batch"
    assert plugins.views[0].function(step="step", batch="batch") == "batch"
    assert plugins.set_up[0].call("setup") == plugins.set_up[0].call(setup="setup") == 7


def test_bound_carries_the_effect() -> None:
    pure = effect("pure")(lambda self, step: {})
    assert run(losses=pure).losses[0].effect == "pure"
    assert run(losses=lambda self, step: {}).losses[0].effect == "host"


def test_pluggy_is_not_called_in_a_step() -> None:
    plugins = run(losses=lambda self, step: {"a": step.features.mean()})
    seen: list[str] = []
    plugins.manager.add_hookcall_monitoring(
        before=lambda name, methods, kwargs: seen.append(name), after=lambda *_: None
    )
    assert plugins.losses[0].call(step())["a"] == 1
    assert seen == []
    plugins.manager.hook.compatkit_losses(step=step())
    assert seen == ["compatkit_losses"]


class TestFailures:
    @pytest.mark.case("I")
    def test_exception_names_plugin_and_hook(self) -> None:
        with pytest.raises(
            PluginError, match="Plugin 'mine' failed in compatkit_after_step: ZeroDivisionError"
        ) as caught:
            run(after_step=lambda self: 1 / 0).after_step[0].call(step())
        assert (caught.value.plugin, caught.value.hook) == ("mine", "compatkit_after_step")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize(
        ("raised", "actual"), [(SystemExit(2), PluginError), (DataError("x"), PluginError)]
    )
    def test_leaving_and_usage_errors_name_the_plugin_too(self, raised: BaseException, actual: type) -> None:
        assert "Plugin 'mine'" in str(self._raise(raised, actual))

    def test_other_errors_stay_what_they_are(self) -> None:
        error = self._raise(IntegrityError("bytes"), IntegrityError)
        assert str(error) == "bytes Raised in compatkit_finish of plugin 'mine'."

    def test_interrupts_pass(self) -> None:
        self._raise(KeyboardInterrupt(), KeyboardInterrupt)

    def _raise(self, raised: BaseException, output: type) -> Any:
        def finish(self: Any) -> None:
            raise raised

        with pytest.raises(output) as caught:
            run(finish=finish).finish[0].call("setup")
        return caught.value


class TestLosses:
    @pytest.mark.case("I")
    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (lambda x: None, r"returned nothing \(None\), not a mapping"),
            (lambda x: x.mean(), "returned a Tensor, not a mapping"),
            (lambda x: {"a": 0.5}, r"gave a float as 'a'. Give a tensor; do not call .item\(\)"),
            (lambda x: {"a": x.mean(1)}, r"gave 'a' with shape \(4,\), not \(\)"),
            (lambda x: {"a": x.mean()[None]}, r"gave 'a' with shape \(1,\)"),
            (lambda x: {"a": x.sum().long()}, "gave 'a' as torch.int64"),
            (lambda x: {"a": x.mean().detach()}, "gave 'a' without a gradient"),
            (lambda x: {"a": x.mean().to("meta")}, "gave 'a' on meta, the step is on cpu"),
            (lambda x: {1: x.mean()}, "named a loss 1"),
            (lambda x: {"a/b": x.mean()}, "named a loss 'a/b'"),
        ],
    )
    def test_what_the_trainer_cannot_add(self, returned: Callable[[Tensor], Any], message: str) -> None:
        with pytest.raises(PluginError, match=f"Plugin 'mine': compatkit_losses {message}"):
            run(losses=lambda self, step: returned(step.features)).losses[0].call(step())

    def test_nothing_to_add_is_fine(self) -> None:
        assert run(losses=lambda self: {}).losses[0].call(step()) == {}

    def test_no_gradient_is_asked_for_where_there_is_none(self) -> None:
        with torch.no_grad():
            assert check_losses("mine", {"a": torch.ones(())}) == {"a": torch.ones(())}

    def test_values_are_not_read(self) -> None:
        class Unread(Tensor):
            """Fails where a value is asked for."""

            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if getattr(func, "__name__", "") in ("item", "__bool__", "__float__", "tolist", "cpu"):
                    raise AssertionError("a loss was read")
                return super().__torch_function__(func, types, args, kwargs or {})

        loss = torch.ones((), requires_grad=True).as_subclass(Unread)
        assert set(check_losses("mine", {"a": loss * 1}, device=torch.device("cpu"))) == {"a"}


def changed(**fields: Any) -> Callable[..., Batch]:
    """Return a hook that replaces tensors of the batch by what functions of them give."""
    return lambda self, batch: attrs.evolve(
        batch, **{name: function(getattr(batch, name)) for name, function in fields.items()}
    )


def of_classes(count: int) -> Any:
    return step(task=SimpleNamespace(labels=("x",) * count, supervised=True))


class TestViews:
    @pytest.mark.parametrize(
        "views",
        [
            changed(images=lambda tensor: tensor[..., :1]),
            changed(images=lambda tensor: torch.nn.functional.interpolate(tensor, scale_factor=2)),
            changed(images=lambda tensor: tensor[:, :1]),
            changed(images=lambda item: item[0]),
            changed(images=lambda tensor: tensor.double()),
            changed(images=lambda tensor: (tensor * 255).to(torch.uint8)),
            changed(images=lambda entry: entry.to("meta")),
            changed(images=lambda tensor: tensor.numpy()),
            changed(images=lambda tensor: tensor.repeat(2, 1, 1, 1)),
            changed(labels=lambda tensor: torch.full((len(tensor), 3), 1 / 3)),
            changed(labels=lambda tensor: tensor.float()),
            changed(labels=lambda tensor: tensor.int()),
            changed(labels=lambda tensor: tensor[:, None]),
            changed(labels=lambda tensor: tensor.tolist()),
            changed(labels=lambda tensor: tensor - 1),
            changed(labels=lambda tensor: tensor + 3),
            changed(index=lambda tensor: tensor[:2]),
            changed(**{name: lambda tensor: tensor[:0] for name in ("images", "labels", "index")}),
        ],
    )
    def test_what_no_contract_would_say(self, views: Callable[..., Batch]) -> None:
        with pytest.raises(PluginError) as caught:
            run(views=views).views[0].call(of_classes(3), batch())
        assert (caught.value.plugin, caught.value.hook) == ("mine", "compatkit_views")

    @pytest.mark.parametrize(
        ("views", "remedy"),
        [
            (changed(images=lambda tensor: tensor[..., :1]), "Task.size"),
            (changed(images=lambda entry: entry.double()), "given torch.float32"),
            (changed(images=lambda tensor: tensor.to("meta")), "given cpu"),
            (changed(labels=lambda item: item.int()), "given torch.int64"),
            (changed(labels=lambda tensor: torch.full((len(tensor),), 0.5)), "compatkit_losses"),
        ],
    )
    def test_each_cause_has_its_own_remedy(self, views: Callable[..., Batch], remedy: str) -> None:
        with pytest.raises(PluginError) as caught:
            run(views=views).views[0].call(of_classes(3), batch())
        assert remedy in str(caught.value)

    def test_fewer_or_more_images_with_their_labels_pass(self) -> None:
        half = changed(**{name: lambda item: item[:2] for name in ("images", "labels", "index")})
        assert len(run(views=half).views[0].call(of_classes(3), batch()).images) == 2
        other = changed(labels=lambda entry: entry + 2)
        assert run(views=other).views[0].call(of_classes(3), batch()).labels.tolist() == [2] * 4

    @pytest.mark.parametrize(
        "views",
        [
            lambda self, images: [images] * (1 if images.is_floating_point() else 2),
            lambda self, images: [images.double()],
            lambda self, images: [images.to("meta")],
        ],
    )
    def test_further_views_of_another_number_or_type(self, views: Callable[..., Any]) -> None:
        call = run(further_views=views).further_views[0].call
        with pytest.raises(PluginError) as caught:
            call(torch.zeros(1, 1, 2, 2, dtype=torch.int64))
            call(batch().images)
        assert (caught.value.plugin, caught.value.hook) == ("mine", "compatkit_further_views")

    def test_new_batch_is_passed_on(self) -> None:
        flip = run(views=lambda self, batch: attrs.evolve(batch, images=batch.images + 1))
        assert flip.views[0].call(step(), batch()).images.min() == 1
        inputs = batch()
        assert run(views=lambda self, batch: batch).views[0].call(step(), inputs) is inputs

    def test_writing_into_the_old_one_is_refused(self) -> None:
        def views(self: Any, batch: Batch) -> Batch:
            batch.images.add_(1)
            return batch

        with pytest.raises(PluginError, match=r"wrote into the batch that it was given. Return a new one"):
            run(views=views).views[0].call(step(), batch())

    def test_writing_is_seen_beside_a_tensor_that_counts_nothing(self) -> None:
        def views(self: Any, batch: Batch) -> Batch:
            batch.images.add_(1)
            return batch

        with torch.inference_mode():
            index = torch.arange(4)
        with pytest.raises(PluginError, match="wrote into the batch that it was given"):
            run(views=views).views[0].call(step(), attrs.evolve(batch(), index=index))

    def test_forgotten_return(self) -> None:
        with pytest.raises(PluginError, match=r"compatkit_views returned nothing \(None\), not a Batch"):
            run(views=lambda self: None).views[0].call(step(), batch())

    def test_images_without_labels(self) -> None:
        with pytest.raises(PluginError, match="returned 2 images with 4 labels"):
            run(views=lambda self, batch: attrs.evolve(batch, images=batch.images[:2])).views[0].call(
                step(), batch()
            )
