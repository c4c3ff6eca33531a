"""A task: a network, where it is cut, and the data set it is trained on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from os import PathLike
from typing import Any

import attrs
from torch import Tensor

from compatkit.adapters.augmentation import MOVING, PRESETS, check_arguments
from compatkit.adapters.builders import builder_for, check_model
from compatkit.contracts.contract import MAX_WIDTH
from compatkit.contracts.image_size import image_size
from compatkit.contracts.kinds import HEADS
from compatkit.data.dataset import DataSet
from compatkit.errors import UsageError, suggest, type_of
from compatkit.evaluation.component import Component
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import FLAG, TEXT, WHOLE, Number, OfType
from compatkit.plugins.discovery import require
from compatkit.registry.names import check_segment


@attrs.frozen
class Rest:
    """The part of a network after a cut, as the architecture of a head for extractors of other architectures.

    Attributes:
        model: Model name, for example ``"mobilenetv2_cifar"``.
        cut: Module after which it is cut; layers before are dropped.
        builder: Builder of the model; None for the one that has a model of this name.
        kwargs: Further keyword arguments of the model, as JSON values.
    """

    model: str = attrs.field(validator=TEXT, metadata={"key": "backbone"})
    cut: str = attrs.field(validator=TEXT, metadata={"key": "split"})
    builder: str = attrs.field(default=None, validator=attrs.validators.optional(TEXT))
    kwargs: Mapping[str, Any] = attrs.field(factory=dict, validator=OfType(Mapping, "a mapping of arguments"))

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "builder", builder_for(self.model, self.builder))
        check_model(self.builder, self.model)

    @classmethod
    def of(cls, value: object) -> Rest | None:
        """Return a Rest from a Rest or a table of its attributes; None for None.

        Raises:
            UsageError: It is neither.
        """
        if value is None or isinstance(value, Rest):
            return value
        if isinstance(value, Mapping):
            with suppress(TypeError):
                return cls(**value)
        raise UsageError(
            "Task.rest expects a table of model, cut, builder and kwargs, such as {'model': 'mobilenetv2_cifar', "
            f"'cut': 'blocks.9'}}; got {value!r:.100}."
        )


AUGMENTATIONS = ("crop", "flip")
"""Augmentations that move pixels, which may be combined."""
LARGEST_VALUE = 1e6
"""Upper bound of normalized pixels; larger ones mean that mean and std are on another scale."""
WRITTEN = "written"
"""Key of an attribute's metadata: the types that recipes may give, where the attribute is converted to another."""
AUTO_AUGMENT = re.compile(r"(rand|augmix|original|originalr|v0|v0r|3a)(-[\w.-]*)?")
"""Values that timm's ``create_transform`` accepts as ``auto_augment``."""
KINDS = {"extractor": ("extractor",), "head": HEADS}
"""Kinds of components that a task may start from, by side."""


Augment = tuple[str, ...] | Mapping[str, Any] | Callable[[Any], Any]


def _segment(instance: object, attribute: object, value: str) -> None:
    check_segment(value, what="task name")
    check_segment(f"{value}.extractor", what=f"task name {value!r:.100}, as part of a component name,")


def _images(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, DataSet):
        example = f"ck.data.load({value!r:.60})" if isinstance(value, str) else "ck.data.load(NAME or folder)"
        raise UsageError(
            f"Task.data expects a data set, such as {example}; got {value!r:.60}.", subject="data"
        )


def _augment(value: object) -> Augment:
    typed = value
    if isinstance(value, str):
        value = tuple(filter(None, map(str.strip, value.split(","))))
    if isinstance(value, Mapping):
        check_arguments(value)
        return dict(value)
    if callable(value):
        return value
    names = tuple(value) if isinstance(value, Iterable) else (value,)
    presets = (*MOVING, *PRESETS)
    known = (*AUGMENTATIONS, *presets)
    for name in names:
        if name not in known or (name in presets and len(names) > 1):
            hint = _hint(name, known) if name not in known else " A preset cannot be combined."
            raise UsageError(
                f"Task.augment expects {' and '.join(AUGMENTATIONS)}, or one of {', '.join(presets)}; arguments of "
                f"timm's create_transform as a table; or a transform of Pillow images. Got {typed!r:.100}.{hint}",
                subject=name,
            )
    return MOVING.get(str(names[0]), tuple(map(str, names))) if names else ()


def _hint(name: object, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown augmentation."""
    if isinstance(name, str) and AUTO_AUGMENT.fullmatch(name):
        return f' As an argument of timm: augment = {{ auto_augment = "{name}" }}, in Python a dict.'
    return suggest(name, known)


def _size(value: Any) -> tuple[int, int] | None:
    return None if value is None else image_size(value, "Task.size")


def _model(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Raise for a network given in place of its name, with the way to name it."""
    if hasattr(value, "state_dict"):
        raise UsageError(
            f"'model' must be the name of a network; got {type_of(value)}. Parts are rebuilt from a name and "
            "arguments: register a builder (hook compatkit_builders) and name it, builder='mine'.",
            subject="model",
        )
    TEXT(instance, attribute, value)


def _loader(instance: Task, attribute: object, value: object) -> None:
    if value is None:
        return
    if isinstance(value, str | Mapping):
        name = value if isinstance(value, str) else value.get("name")
        if not isinstance(name, str):
            raise UsageError(
                f"Task.loader of task {instance.name!r} must be a plugin's name, or a table of 'name' and settings; "
                f"got {value!r:.100}."
            )
        require("loaders", name)
    elif not isinstance(value, Iterable) or isinstance(value, Iterator):
        raise UsageError(
            f"Task.loader of task {instance.name!r} must be a DataLoader, or another iterable that can be iterated "
            f"again for each pass; got {type(value).__name__}."
        )
    if instance.augment:
        raise UsageError(
            f"Task {instance.name!r} has a loader, whose images are not augmented. Leave augment={instance.augment!r} "
            "out, and augment in the loader's data set."
        )


def _keep_class_layer(instance: Task, attribute: object, value: bool) -> None:
    if value and not isinstance(instance.weights, Mapping):
        raise UsageError(
            f"Task {instance.name!r}: keep_class_layer needs weights as a state dict, such as Fit.weights returns; got "
            f"{instance.weights!r:.80}."
        )


def _normalization(value: object) -> Mapping[str, tuple[float, ...]] | None:
    if value is None:
        return None
    expected = "Task.normalize expects {'mean': ..., 'std': ...}, each a number or one number per channel"
    if not isinstance(value, Mapping) or value.keys() != {"mean", "std"}:
        raise UsageError(f"{expected}; got {value!r:.100}.")
    statistics: dict[str, tuple[float, ...]] = {}
    for name, values in value.items():
        numbers = tuple(values) if isinstance(values, list | tuple) else (values,)
        if not numbers or not all(map(Number().takes, numbers)):
            raise UsageError(f"{expected}; {name} is {values!r:.100}.")
        statistics[str(name)] = tuple(float(number) for number in numbers)
    means, stds = statistics["mean"], statistics["std"]
    if len(means) != len(stds) or not all(std > 0 for std in stds):
        raise UsageError(f"{expected}, with std above 0; got {means} and {stds}.")
    pairs = zip(means, stds, strict=True)
    if not all(abs(pixel - mean) / std < LARGEST_VALUE for mean, std in pairs for pixel in (0, 1)):
        raise UsageError(
            f"{expected}, such that normalized pixels are below {LARGEST_VALUE:g}; got {means} and {stds}."
        )
    return statistics


@checks_arguments
@attrs.frozen(eq=False)
class Task:
    """One network to train.

    The first ten arguments, ``name`` to ``normalize``, are those that most tasks set. The others belong to:

    - batches: ``loader`` to ``cutmix``
    - initial weights: ``keep_class_layer`` to ``head``
    - architecture, where several networks share features: ``width`` to ``own_head``
    - training: ``supervised`` to ``recompute_activations``

    Attributes:
        name: Used in component names (``<prefix>/<name>.extractor``): one lower-case segment.
        data: Training and test images with class names.
        model: Model name, for example ``"resnet20_cifar"`` or any timm model.
        cut: Module after which it is cut, such as ``"layer2"``, or ``"forward_features"``.
        builder: Builder of the model: ``"timm"``, ``"torchvision"``, or a plugin, such as compatkit's own small
            networks; by default the one that has a model of this name.
        kwargs: Further keyword arguments of the model, as JSON values.
        size: Height and width in pixels (one number for both); the model's own by default.
        weights: Initial weights: None (random), ``"pretrained"`` (timm's), the path of a safetensors file or of a
            folder with ``model.safetensors``, ``"local-dir:FOLDER"`` or ``"hf-hub:OWNER/NAME"`` as in timm, or a state
            dict. A ``config.json`` next to the file decides network and images. The class layer is drawn again.
        augment: Any of ``"crop"`` (pad 4, random crop) and ``"flip"`` (horizontal): a list, or ``"crop,flip"``. Or a
            preset: ``"cifar"`` (both), ``"imagenet"`` (timm's resized crops, flips and color jitter),
            ``"imagenet-strong"`` (these with RandAugment and random erasing), ``"none"``. Or arguments of timm's
            ``create_transform`` as a table, or a transform of torchvision that takes a Pillow image.
        normalize: ``{"mean": ..., "std": ...}`` on the scale 0 to 1, each a number or one a channel, in place of
            those of the training images (or of the pretrained weights): ``{"mean": 0, "std": 1 / 255}`` gives the
            network 0 to 255, ``{"mean": 0.5, "std": 0.5}`` gives it -1 to 1.
        loader: Source of the training batches in place of ``data.train``, for streams and own augmentation: a
            ``torch.utils.data.DataLoader``, or another iterable of (images, labels) that can be iterated again for each
            pass. Class names, channels, size and normalization are still those of ``data``. Or the name of a plugin's
            loader, which gets the training images that are not held out, or a table of ``name`` and settings.
        smoothing: Share of each label that is spread over all classes, from 0 to below 1.
        mixup: Parameter of the beta distribution by which images and labels of a batch are mixed in pairs, usually .1
            to 1; 0 mixes none. By timm's formulas, drawn for each step.
        cutmix: The same for rectangles that are copied from the other image; with both, each step takes one of them.
            Losses of regularizers are computed from the images themselves, in a pass besides that of the mixed ones.
        keep_class_layer: Keep the class layer of a state dict too, to continue with the same classes.
        extractor: Component whose weights, statistics and preprocessing the network starts from; ``registry.task``
            makes such tasks. Model and cut are then the component's.
        head: Component whose weights and statistics the head starts from, classes in its order; None draws a new head.
        width: Channels of the features, to be shared by several architectures: the extractor ends with a 1x1
            convolution (with bias) to so many, and a head of another width begins with one from so many. None keeps
            the network's own.
        rest: Network whose part after its own cut is the head, in place of that of ``model``; the extractor's last
            layer is then a 1x1 convolution to ``width``, or to this network's own width there. A ``Rest``, or a table
            of its attributes.
        own_head: Whether the network has a head of its own. If not, its extractor learns through shared heads alone
            (``dcc``), which have the shape of the head that it would have, and no head is published.
        supervised: Whether the head learns the classes. If not, the labels of ``data`` are dropped, the head is not
            trained, and the extractor learns through regularizers alone.
        freeze_extractor: Whether the extractor that it starts from is not trained; its statistics do not change either,
            see ``frozen_statistics`` of ``Trainer.fit``.
        freeze_stages: Number of stages, counted from the image with the stem, that are not trained, by timm's coarse
            ``group_matcher`` of the uncut network; their batch normalization uses stored statistics.
        recompute_activations: Whether blocks of the network store no activations, and compute them again in the
            backward pass: less memory for more time, with the same results (timm's ``set_grad_checkpointing``).

    Raises:
        UnknownName: No such builder or model; the message has the nearest name.
        PluginError: The plugin of the builder is broken or blocked.
        UsageError: A value is invalid, or some do not go together; the message says which and what to change.
    """

    name: str = attrs.field(validator=_segment)
    data: DataSet = attrs.field(validator=_images)
    model: str = attrs.field(validator=_model, metadata={"key": "backbone"})
    cut: str = attrs.field(validator=TEXT, metadata={"key": "split"})
    builder: str = attrs.field(default=None, validator=attrs.validators.optional(TEXT), kw_only=True)
    kwargs: Mapping[str, Any] = attrs.field(
        factory=dict, validator=OfType(Mapping, "a mapping of arguments"), kw_only=True
    )
    size: tuple[int, int] | None = attrs.field(
        default=None, kw_only=True, converter=_size, metadata={WRITTEN: int | tuple[int, int]}
    )
    weights: str | PathLike[str] | Mapping[str, Tensor] | None = attrs.field(
        default=None,
        validator=OfType((str, PathLike, Mapping, type(None)), "a file, tensors by name, or None"),
        kw_only=True,
        repr=lambda weights: f"<{len(weights)} tensors>" if isinstance(weights, Mapping) else repr(weights),
    )
    augment: Augment = attrs.field(
        default=(),
        converter=_augment,
        kw_only=True,
        metadata={WRITTEN: str | tuple[str, ...] | Mapping[str, Any]},
    )
    normalize: Mapping[str, Any] | None = attrs.field(
        default=None, converter=_normalization, kw_only=True, metadata={"key": "normalisation"}
    )
    loader: str | Mapping[str, Any] | Iterable[Any] | None = attrs.field(
        default=None, validator=_loader, kw_only=True, metadata={WRITTEN: str | Mapping[str, Any]}
    )
    smoothing: float = attrs.field(default=0.0, validator=Number(least=0, below=1), kw_only=True)
    mixup: float = attrs.field(default=0.0, validator=Number(least=0), kw_only=True)
    cutmix: float = attrs.field(default=0.0, validator=Number(least=0), kw_only=True)
    keep_class_layer: bool = attrs.field(default=False, validator=_keep_class_layer, kw_only=True)
    extractor: Component | None = attrs.field(default=None, kw_only=True, repr=str)
    head: Component | None = attrs.field(default=None, kw_only=True, repr=str)
    width: int | None = attrs.field(
        default=None, validator=Number(least=1, most=MAX_WIDTH, whole=True, optional=True), kw_only=True
    )
    rest: Rest | Mapping[str, Any] | None = attrs.field(default=None, converter=Rest.of, kw_only=True)
    own_head: bool = attrs.field(default=True, validator=FLAG, kw_only=True)
    supervised: bool = attrs.field(default=True, validator=FLAG, kw_only=True)
    freeze_extractor: bool = attrs.field(default=False, validator=FLAG, kw_only=True)
    freeze_stages: int = attrs.field(default=0, validator=WHOLE, kw_only=True)
    recompute_activations: bool = attrs.field(default=False, validator=FLAG, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Find the builder, check the start of the network, and drop the labels of an unsupervised task."""
        object.__setattr__(self, "builder", builder_for(self.model, self.builder))
        check_model(self.builder, self.model)
        for side in ("extractor", "head"):
            part = getattr(self, side)
            kind = getattr(part, "kind", type(part).__name__)
            if part is not None and kind not in KINDS[side]:
                raise UsageError(
                    f"Task.{side} of task {self.name!r} expects a component of kind {side}, as registry.task loads "
                    f"it; got {kind}."
                )
        for wrong, why in self._conflicts():
            if wrong:
                raise UsageError(f"Task {self.name!r} {why}")
        changed = [name for name in ("smoothing", "mixup", "cutmix") if getattr(self, name)]
        if changed and not (self.supervised and self.own_head):
            raise UsageError(
                f"Task {self.name!r} has no head of its own that learns labels; {changed[0]} needs one. Leave it out.",
                subject=changed[0],
            )
        if not self.supervised:
            bare = (self.data.train.unlabeled(), self.data.test.unlabeled())
            object.__setattr__(self, "data", DataSet(self.data.name, *bare))

    def _conflicts(self) -> Iterator[tuple[object, str]]:
        """Yield whether settings conflict, and the message for it."""
        has_extractor, has_head = self.extractor is not None, self.head is not None
        yield (
            has_head and not has_extractor,
            "starts from a head; give the extractor that it starts from too.",
        )
        for name in ("weights", "normalize"):
            conflict = has_extractor and getattr(self, name) is not None
            yield (
                conflict,
                f"starts from components, which have their own weights and normalization. Leave {name}= out.",
            )
        yield (
            has_extractor and self.width is not None,
            "starts from an extractor with its own width. Leave width= out.",
        )
        yield (
            has_head and (self.rest is not None or not self.own_head),
            "starts from a head. Leave rest= and own_head= out, or the head.",
        )
        yield (
            self.rest is not None and isinstance(self.weights, Mapping),
            "has weights of a complete network, but rest= takes the head from another. Give the weights as a file, or "
            "start from components (registry.task).",
        )
        yield (
            self.freeze_extractor and not (has_extractor and self.supervised),
            "has freeze_extractor=True, which needs a trained extractor (registry.task) and labels.",
        )
        yield (
            self.freeze_extractor and (self.freeze_stages or self.recompute_activations),
            "has freeze_extractor=True. Leave freeze_stages and recompute_activations out.",
        )
        yield (
            not (self.supervised or self.own_head),
            "has neither labels nor a head of its own. Leave own_head= out.",
        )
        yield (
            not self.supervised and (not has_extractor or not has_head or self.loader is not None),
            "has supervised=False, which needs a trained extractor and head (registry.task), and no loader.",
        )

    @property
    def moves_pixels(self) -> bool:
        """Whether augmentation only moves pixels, so that it can be part of a gather on the device."""
        return isinstance(self.augment, tuple) and set(self.augment) <= set(AUGMENTATIONS)

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return bool(self.mixup or self.cutmix)
