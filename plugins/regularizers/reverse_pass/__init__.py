"""Reverse pass (RR): every layer should reconstruct its input from its output with its own transposed weights.

Paper: "Reviving Autoencoder Pretraining", Sec. 2 and App. A.2, A.3.
Equations: the sum over layers m of lambda_m ||d_m - d'_m||^2, with d'_m = M_m' (d_{m+1} - b_m) from the layer's output
    (``local``) or from d'_{m+1}, from the last layer back to the first (``full``; ``first`` compares only images).
Reduction: mean over batch and elements for each layer, then the sum over layers; the paper sums throughout. The
    authors' weight 1e-6 (half the sum over 100 images of 784 pixels from 0 to 255) is 2.5e3 here for pixels up to 1.
Weight: the gradient grows with the number of layers and soon exceeds that of the task. The history records the ratio as
    ``reverse_pass/gradient_ratio``; ``balance`` controls it.
Cost: about that of the reversed layers for ``local``; less with estimates (``sampling.py``).
Limits: ``full`` and ``first`` need chains; in networks with shortcuts only ``local`` works. The loss grows with
    depth, so its weight has to be watched. Classifiers of CIFAR-10 and of textures gained nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs
from torch import Tensor

from compatkit import SetUp, Step, TaskState, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number, OneOf
from compatkit.hooks import Register

from .local import Records, local_loss
from .sampling import drawn_layers, first_images
from .selection import Selection, factors, select_globs
from .undoing import STATISTICS, Statistics

if TYPE_CHECKING:
    from .full import Walk

compatkit_api = 1
VARIANTS = ("local", "full", "first")


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``reverse_pass``."""
    register("reverse_pass", reverse_pass)


def reverse_pass(
    variant: Literal["local", "full", "first"] = "local",
    layers: Sequence[str] | None = None,
    layer_weights: Mapping[str, float] | None = None,
    activation: bool = False,
    bn_reverse: Literal["batch", "forward_batch", "running"] = "batch",
    output_activation: str | None = None,
    detach_target: bool = False,
    sample_images: float = 1.0,
    sample_layers: float = 1.0,
    reduction: Literal["mean"] = "mean",
    balance: Literal["weight", "gradient"] = "weight",
) -> ReversePass:
    """Return the regularizer; settings are described at ``ReversePass``.

    With sampled layers its hook has the effect ``host``, as it draws in every step.

    Raises:
        UsageError: Settings are invalid or inconsistent.
    """
    settings = dict(locals())
    return SampledReversePass(**settings) if sample_layers != 1 else ReversePass(**settings)


class ReverseMethod(Protocol):
    """Method that reverses the layers of one task."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the modules whose records ``loss`` needs."""
        ...

    def loss(
        self, records: Records, images: Tensor, factors: Mapping[str, float], *, detach_target: bool = False
    ) -> Tensor | None:
        """Return the scalar loss, or None if it would be 0.

        Args:
            records: Inputs and outputs of the modules in ``names``.
            images: Input of the network, ``(batch, ...)``.
            factors: lambda_m by layer.
            detach_target: Whether d_m receives no gradient.
        """
        ...


def _globs(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    globs = (value,) if isinstance(value, str) else value
    if (
        not isinstance(globs, Sequence)
        or not globs
        or not all(isinstance(glob, str) and glob for glob in globs)
    ):
        raise UsageError(
            f'layers must be a list of path patterns, such as ["layer2.*"], or None for all; got {value!r}.'
        )
    return tuple(globs)


@attrs.define(eq=False, kw_only=True)
class ReversePass:
    """Penalizes the error with which layers reconstruct their inputs.

    Attributes:
        variant: ``"local"`` treats each layer separately, in any network. ``"full"`` goes back through a chain of
            layers from its output; ``"first"`` does so but compares only the images.
        layers: Path patterns; a leading ``!`` excludes. None for all dense layers and convolutions, for ``local``
            except the class layer and gates on pooled features.
        layer_weights: lambda_m by pattern; the last matching pattern counts, 1 without a match.
        activation: For ``local``: start after the layer's activation and go back through normalization and activation
            of the preceding layer, instead of starting at the output of the layer itself.
        bn_reverse: Statistics of batch normalization in the reverse pass: of the reversed values, of the forward pass,
            or the stored ones, which it never updates.
        output_activation: Activation applied to reconstructed images, such as ``"relu"`` for non-negative pixels.
        detach_target: Whether d_m receives no gradient; in the paper it does receive one.
        sample_images: Share of the batch used in each step, its first images: an unbiased estimate, as batches are in
            random order.
        sample_layers: Share of the layers drawn in each step, weighted by its inverse: an unbiased estimate. With less
            than one layer on average, some steps draw none. Layers that depend on each other (``full``, ``first``,
            ``activation``) are drawn together, in that share of the steps.
        reduction: ``"mean"``: over batch and elements for each layer, then the sum over layers.
        balance: Meaning of the plugin's weight: ``"weight"``, a factor of the loss; ``"gradient"``, the norm of the
            loss's gradient as a share of the task's, over the network's weights, in every step.

    Raises:
        UsageError: Settings are invalid or inconsistent.
    """

    variant: str = attrs.field(default="local", validator=OneOf(VARIANTS))
    layers: tuple[str, ...] | None = attrs.field(default=None, converter=_globs)
    layer_weights: Mapping[str, float] | None = None
    activation: bool = False
    bn_reverse: Statistics = attrs.field(default="batch", validator=OneOf(STATISTICS))
    output_activation: str | None = None
    detach_target: bool = False
    sample_images: float = attrs.field(default=1.0, validator=Number(above=0, most=1))
    sample_layers: float = attrs.field(default=1.0, validator=Number(above=0, most=1))
    reduction: str = attrs.field(default="mean", validator=OneOf(("mean",)))
    balance: str = attrs.field(default="weight", validator=OneOf(("weight", "gradient")))
    selections: dict[str, Selection] = attrs.field(factory=dict, init=False)
    _methods: dict[str, tuple[ReverseMethod, dict[str, float]]] = attrs.field(factory=dict, init=False)
    _factors: dict[str, float] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Check that settings are consistent."""
        self._walk()
        _check_variant(self)
        if not isinstance(self.layer_weights, Mapping | None):
            raise UsageError(
                f'layer_weights must map patterns to factors, such as {{"layer2.*": 0.5}}; got {self.layer_weights!r}.'
            )
        for glob, weight in (self.layer_weights or {}).items():
            if not isinstance(glob, str):
                raise UsageError(f"layer_weights: expected a pattern such as 'layer2.*', got {glob!r}.")
            Number(least=0).check("layer_weights", **{glob: weight})

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Choose the layers of every task.

        Raises:
            UsageError: A layer has no transpose, no layer is left to reverse, or the variant needs the head of a task
                that has no labels or no head of its own; one without weights, such as that of a generator, it does not.
        """
        setup.compare_gradients(balance=self.balance == "gradient")
        for task in setup.tasks.values():
            recorded, weighted = self._whole(task) if self.variant != "local" else self._local(task)
            setup.record_layers(task, recorded)
            chosen = self.selections.get(task.name)
            left_out = dict(chosen.left_out) if chosen is not None else {}
            setup.tell({task.name: {"layers": dict(weighted), "left_out": left_out}})

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the sum over layers of the reconstruction errors."""
        loss = self._walked(step) if self._methods else self._estimate(step, step.layers)
        return {} if loss is None else {"loss": loss}

    def _walked(self, step: Step) -> Tensor | None:
        """Return the loss of a variant that walks from layer to layer."""
        method, weighted = self._methods[step.task.name]
        return method.loss(step.layers, step.batch.images, weighted, detach_target=self.detach_target)

    def _estimate(self, step: Step, records: Records) -> Tensor | None:
        """Return the loss from the records of all images, or of a sample."""
        if self.sample_images < 1:
            records = first_images(records, len(step.batch.images), self.sample_images)
        return local_loss(records, self._factors, detach_target=self.detach_target)

    def _local(self, task: TaskState) -> tuple[Sequence[str], Mapping[str, float]]:
        """Choose the layers of a task; return the modules to record, and the layers' factors."""
        selection = self.selections[task.name] = Selection.of(task, self.layers)
        weighted = factors(selection.layers, self.layer_weights)
        if not self.activation:
            self._factors |= weighted
            return selection.layers, weighted
        from .activated import Activated

        method = Activated.of(task, selection.layers, self._walk())
        self._methods[task.name] = method, weighted
        return method.names, weighted

    def _whole(self, task: TaskState) -> tuple[Sequence[str], Mapping[str, float]]:
        """Find the chain of a task; return the same. Excluded layers are still passed through."""
        from .full import Whole

        if not task.runs_head and next(task.head.parameters(), None) is not None:
            lacks = "head of its own" if task.supervised else "labels"
            raise UsageError(
                f"reverse_pass: variant={self.variant!r} starts at the output of the head, but the head of task "
                f"{task.name!r}, which has no {lacks}, does not run. Use variant='local', which reverses each layer of "
                "the extractor separately."
            )
        method = Whole.of(task, self._walk())
        wanted = (
            method.layers[:1]
            if self.variant == "first"
            else select_globs(method.layers, self.layers, task.name)
        )
        weighted = factors(wanted, self.layer_weights)
        self._methods[task.name] = method, weighted
        return method.names, weighted

    def _walk(self) -> Walk:
        from .full import Walk

        return Walk(self.bn_reverse, self.output_activation)


class SampledReversePass(ReversePass):
    """The reverse pass with layers drawn in each step."""

    @hookimpl
    @effect("host")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return an unbiased estimate of the loss; 0 if no layer is drawn."""
        draw = step.rng("reverse_pass", "layers")
        if self._methods:
            drawn = drawn_layers(["all"], self.sample_layers, draw)
            loss = self._walked(step) if drawn else None
        else:
            names = [name for name in step.layers if self._factors[name] != 0]
            chosen = drawn_layers(names, self.sample_layers, draw)
            loss = self._estimate(step, {name: step.layers[name] for name in chosen})
        if loss is None:
            return (
                {} if step.logits is None else {"loss": 0 * step.logits.sum()}
            )  # keeps means of losses unbiased
        return {"loss": loss / self.sample_layers}


def _check_variant(plugin: ReversePass) -> None:
    """Raise for settings that the variant would ignore."""
    if plugin.variant != "local" and plugin.activation:
        raise UsageError(
            f"activation applies only to variant='local'; {plugin.variant!r} always includes activations."
        )
    if plugin.variant == "first" and plugin.layers is not None:
        raise UsageError(
            "layers has no effect with variant='first', which compares only images; leave it out."
        )
    linear = plugin.variant == "local" and not plugin.activation
    if linear and (plugin.bn_reverse != "batch" or plugin.output_activation is not None):
        raise UsageError(
            "bn_reverse and output_activation have no effect with variant='local' without activation, which reverses "
            "only the linear part of each layer; set activation=True, or use variant='full'."
        )
    if plugin.balance == "gradient" and (plugin.sample_images != 1 or plugin.sample_layers != 1):
        raise UsageError(
            "balance='gradient' scales each step's loss to the task's gradient, so a sample would not estimate the "
            "whole; leave sample_images and sample_layers at 1."
        )
    if not linear and plugin.sample_images != 1:
        raise UsageError(
            "sample_images requires variant='local' without activation, where images are independent; got "
            f"variant={plugin.variant!r}, activation={plugin.activation!r}."
        )
