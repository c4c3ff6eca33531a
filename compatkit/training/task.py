"""A task: a network, where it is cut, and the data set it is trained on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from numbers import Integral
from os import PathLike
from typing import Any

import attrs
from torch import Tensor

from compatkit.adapters.augmentation import MOVING, PRESETS, check_arguments
from compatkit.adapters.builders import builder_for, check_model
from compatkit.contracts.contract import HEADS, LARGEST_WIDTH
from compatkit.data.dataset import DataSet
from compatkit.data.validation import LARGEST_SIDE
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
            f"Task.rest expects a table of model, cut, builder and kwargs, such as {{'model': 'mobilenetv2_cifar', "
            f"'cut': 'blocks.9'}}; got {value!r:.100}."
        )


AUGMENTATIONS = ("crop", "flip")
"""Augmentations that move pixels, which may be combined."""
LARGEST_VALUE = 1e6
"""Largest normalized value of a pixel: a mean and a standard deviation that give larger ones are on another scale."""
WRITTEN = "written"
"""Key of an attribute's metadata: the types in which it may be written, where it is converted to another."""
AUTO_AUGMENT = re.compile(r"(rand|augmix|original|originalr|v0|v0r|3a)(-[\w.-]*)?")
"""Settings that timm's ``create_transform`` takes as ``auto_augment``."""
KINDS = {"extractor": ("extractor",), "head": HEADS}
"""Kinds of components that a task may start from, by side."""


Augment = tuple[str, ...] | Mapping[str, Any] | Callable[[Any], Any]


def _segment(instance: object, attribute: object, value: str) -> None:
    check_segment(value, what="task name")
    check_segment(f"{value}.extractor", what=f"task name {value!r:.100}: the name of a part of it,")


def _images(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, DataSet):
        example = f"ck.data.load({value!r:.60})" if isinstance(value, str) else "ck.data.load(NAME or folder)"
        raise UsageError(
            f"Task.data expects a data set, such as {example} gives; got {value!r:.60}.", subject="data"
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
            hint = _hint(name, known) if name not in known else " A preset stands alone."
            raise UsageError(
                f"Task.augment takes {' and '.join(AUGMENTATIONS)}, or one of {', '.join(presets)}; arguments of "
                f"timm's create_transform as a table; or a transform of Pillow images. Got {typed!r:.100}.{hint}",
                subject=name,
            )
    return MOVING.get(str(names[0]), tuple(map(str, names))) if names else ()


def _hint(name: object, known: Iterable[str]) -> str:
    """Return what may have been meant by an augmentation that is not known."""
    if isinstance(name, str) and AUTO_AUGMENT.fullmatch(name):
        return f' As an argument of timm: augment = {{ auto_augment = "{name}" }}, in Python a dict.'
    return suggest(name, known)


def _size(value: Any) -> tuple[int, int] | None:
    """Return height and width; one number stands for both."""
    if value is None:
        return None
    sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or not all(
        isinstance(side, Integral) and side is not True and 0 < int(side) <= LARGEST_SIDE for side in sides
    ):
        raise UsageError(
            f"Task.size expects (height, width) in pixels, at most {LARGEST_SIDE} each, or one number for both; got "
            f"{value!r:.100}.",
            subject=value,
        )
    return int(sides[0]), int(sides[1])


def _model(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refuse a network in place of its name, with the way to name it."""
    if hasattr(value, "state_dict"):
        raise UsageError(
            f"'model' is the name of a network, got {type_of(value)} itself: its parts are rebuilt from a name and "
            "arguments, in other processes and by other people. Register a builder (compatkit_builders in "
            "docs/plugins.md), and name it: builder='mine'.",
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
                f"Task.loader of task {instance.name!r} names a plugin's loader, alone or in a table of 'name' and "
                f"settings; got {value!r:.100}."
            )
        require("loaders", name)
    elif not isinstance(value, Iterable) or isinstance(value, Iterator):
        raise UsageError(
            f"Task.loader of task {instance.name!r} expects a DataLoader, or something else that can be iterated once "
            f"a pass; got {type(value).__name__}."
        )
    if instance.augment:
        raise UsageError(
            f"Task {instance.name!r} has a loader, whose images are not augmented here. Leave out "
            f"augment={instance.augment!r}, and let the loader's data set crop and flip."
        )


def _kept(instance: Task, attribute: object, value: bool) -> None:
    if value and not isinstance(instance.weights, Mapping):
        raise UsageError(
            f"Task {instance.name!r}: keep_class_layer takes over the class layer of a state dict, such as Fit.weights "
            f"gives; weights are {instance.weights!r:.80}. Leave it out, or give a state dict."
        )


def _normalization(value: object) -> Mapping[str, tuple[float, ...]] | None:
    if value is None:
        return None
    expected = "Task.normalize expects {'mean': ..., 'std': ...}, each a number or a list of one a channel"
    if not isinstance(value, Mapping) or value.keys() != {"mean", "std"}:
        raise UsageError(f"{expected}; got {value!r:.100}.")
    stated: dict[str, tuple[float, ...]] = {}
    for name, values in value.items():
        numbers = tuple(values) if isinstance(values, list | tuple) else (values,)
        if not numbers or not all(map(Number().takes, numbers)):
            raise UsageError(f"{expected}; {name} is {values!r:.100}.")
        stated[str(name)] = tuple(float(number) for number in numbers)
    if len(stated["mean"]) != len(stated["std"]) or not all(deviation > 0 for deviation in stated["std"]):
        raise UsageError(
            f"{expected}, the standard deviations above 0; got {stated['mean']} and {stated['std']}."
        )
    pairs = zip(stated["mean"], stated["std"], strict=True)
    if not all(abs(pixel - mean) / std < LARGEST_VALUE for mean, std in pairs for pixel in (0, 1)):
        raise UsageError(
            f"{expected}, which bring pixels to numbers below {LARGEST_VALUE:g}; got {stated['mean']} and "
            f"{stated['std']}."
        )
    return stated


@checks_arguments
@attrs.frozen(eq=False)
class Task:
    """One network to train.

    The first ten arguments, ``name`` to ``normalize``, are those that most tasks state. The others belong to:

    - the batches: ``loader`` to ``cutmix``
    - the initial weights: ``keep_class_layer`` to ``head``
    - the architecture, where several networks share features: ``width`` to ``own_head``
    - what is trained: ``supervised`` to ``recompute_activations``

    Attributes:
        name: Used in component names (``<prefix>/<name>.extractor``): one lower-case segment.
        data: Training and test images with class names.
        model: Model name, for example ``"resnet20_cifar"`` or any timm model.
        cut: Module after which it is cut, such as ``"layer2"``, or ``"forward_features"``.
        builder: Who builds it: ``"timm"``, ``"torchvision"``, or a plugin, such as compatkit's own small networks; by
            default the one that has a model of this name.
        kwargs: Further keyword arguments of the model, as JSON values.
        size: Height and width in pixels (one number for both); the model's own by default.
        weights: Initial weights: None (random), ``"pretrained"`` (timm's), the path of a safetensors file or of a
            folder with ``model.safetensors``, ``"local-dir:FOLDER"`` or ``"hf-hub:OWNER/NAME"`` as in timm, or a state
            dict. Where a ``config.json`` lies beside the file, network and images are as it says. The class layer is
            drawn again.
        augment: Any of ``"crop"`` (pad 4, random crop) and ``"flip"`` (horizontal): a list, or ``"crop,flip"``. Or a
            preset: ``"cifar"`` (both), ``"imagenet"`` (timm's resized crops, flips and color jitter),
            ``"imagenet-strong"`` (these with RandAugment and random erasing), ``"none"``. Or arguments of timm's
            ``create_transform`` as a table, or a transform of torchvision that takes a Pillow image.
        normalize: ``{"mean": ..., "std": ...}`` on the scale 0 to 1, each a number or one a channel, in place of
            those of the training images (or of the pretrained weights): ``{"mean": 0, "std": 1 / 255}`` gives the
            network 0 to 255, ``{"mean": 0.5, "std": 0.5}`` gives it -1 to 1.
        loader: Source of the training batches in place of ``data.train``, for streams and own augmentation: a
            ``torch.utils.data.DataLoader``, or another iterable of (images, labels) that can be iterated once a pass.
            Class names, channels, size and normalization are still those of ``data``. Or the name of a plugin's
            loader, which is given the training images that are not held out; in a table of ``name`` and its settings.
        smoothing: Share of each label that is spread over all classes, from 0 to below 1.
        mixup: Parameter of the beta distribution by which images and labels of a batch are mixed in pairs, usually .1
            to 1; 0 mixes none. By timm's formulas, drawn for each step.
        cutmix: The same for rectangles that are taken over from the other image; with both, each step takes one of
            them. A regularizer's losses are of the images themselves, which then pass beside the mixed ones.
        keep_class_layer: Keep the class layer of a state dict too, to continue with the same classes.
        extractor: Component whose weights, statistics and preprocessing the network starts from; ``registry.task``
            makes such tasks. Model and cut are then the component's.
        head: Component whose weights and statistics the head starts from, classes in its order; None draws a head anew.
        width: Channels of the features, to be shared by several architectures: the extractor ends with a 1x1
            convolution (with bias) to so many, and a head of another width begins with one from so many. None keeps
            the network's own.
        rest: Network whose rest after its own cut is the head, in place of the rest of ``model``; the
            extractor's last layer is then a 1x1 convolution to ``width``, or to this network's own width there. A
            ``Rest``, or a table of its attributes.
        own_head: Whether the network has a head of its own. Where not, its extractor learns through shared heads alone
            (``dcc``), which have the shape of the head that it would have, and no head is published.
        supervised: Whether the head learns the classes. Where not, ``data`` loses its labels here and now, the head
            is not trained, and the extractor learns through regularizers alone.
        freeze_extractor: Whether the extractor that it starts from is not trained; its statistics do not change either,
            see ``frozen_statistics`` of ``Trainer.fit``.
        freeze_stages: How many stages from the image on are not trained, by timm's coarse ``group_matcher`` of the
            uncut network, the stem counted; their batch normalization uses stored statistics, which do not change.
        recompute_activations: Whether blocks of the network keep no activations, and compute them again in the
            backward pass: less memory for more time, with the same results (timm's ``set_grad_checkpointing``).

    Raises:
        UnknownName: No such builder or model; the message has the nearest name.
        PluginError: The plugin of the builder is broken or blocked.
        UsageError: An augmentation is unknown, or a loader is given and is to be augmented, or cannot be iterated
            more than once; the normalization is none, or a class layer is to be kept that is not given; components
            that are no extractor and head, or given beside ``weights`` or a normalization; a task without labels that
            has no components, or a loader.
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
    keep_class_layer: bool = attrs.field(default=False, validator=_kept, kw_only=True)
    extractor: Component | None = attrs.field(default=None, kw_only=True, repr=str)
    head: Component | None = attrs.field(default=None, kw_only=True, repr=str)
    width: int | None = attrs.field(
        default=None, validator=Number(least=1, most=LARGEST_WIDTH, whole=True, optional=True), kw_only=True
    )
    rest: Rest | Mapping[str, Any] | None = attrs.field(default=None, converter=Rest.of, kw_only=True)
    own_head: bool = attrs.field(default=True, validator=FLAG, kw_only=True)
    supervised: bool = attrs.field(default=True, validator=FLAG, kw_only=True)
    freeze_extractor: bool = attrs.field(default=False, validator=FLAG, kw_only=True)
    freeze_stages: int = attrs.field(default=0, validator=WHOLE, kw_only=True)
    recompute_activations: bool = attrs.field(default=False, validator=FLAG, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Find the builder, check the start of the network, and drop the labels of a task that does not learn them."""
        object.__setattr__(self, "builder", builder_for(self.model, self.builder))
        check_model(self.builder, self.model)
        for side in ("extractor", "head"):
            part = getattr(self, side)
            kind = getattr(part, "kind", type(part).__name__)
            if part is not None and kind not in KINDS[side]:
                raise UsageError(
                    f"Task.{side} of task {self.name!r} expects a component of kind {side}, as registry.task loads it; "
                    f"got {kind}."
                )
        for wrong, why in self._conflicts():
            if wrong:
                raise UsageError(f"Task {self.name!r} {why}")
        changed = [name for name in ("smoothing", "mixup", "cutmix") if getattr(self, name)]
        if changed and not (self.supervised and self.own_head):
            raise UsageError(
                f"Task {self.name!r} has no head of its own that learns labels, so that {changed[0]} has nothing to "
                "change. Leave it out.",
                subject=changed[0],
            )
        if not self.supervised:
            bare = (self.data.train.unlabeled(), self.data.test.unlabeled())
            object.__setattr__(self, "data", DataSet(self.data.name, *bare))

    def _conflicts(self) -> Iterator[tuple[object, str]]:
        """Yield what may not go together, and what is said of a task where it does not."""
        begun, started = self.extractor is not None, self.head is not None
        yield started and not begun, "starts from a head; give the extractor that it starts from too."
        for word in ("weights", "normalize"):
            yield (
                begun and getattr(self, word) is not None,
                f"starts from components, which bring weights and normalization of their own. Leave out {word}=, or "
                "the components.",
            )
        yield (
            begun and self.width is not None,
            "starts from an extractor, whose width is its own. Leave out width=.",
        )
        yield (
            started and (self.rest is not None or not self.own_head),
            "starts from a head. Leave out rest= and own_head=, or the head.",
        )
        yield (
            self.rest is not None and isinstance(self.weights, Mapping),
            "has weights of a whole network, and a head that is the rest of another. Give the weights as a file, which "
            "the extractor is taken from, or start from components (registry.task).",
        )
        yield (
            self.freeze_extractor and not (begun and self.supervised),
            "has freeze_extractor=True: it needs an extractor that was trained (registry.task), and labels that its "
            "head learns.",
        )
        yield (
            self.freeze_extractor and (self.freeze_stages or self.recompute_activations),
            "has freeze_extractor=True: no stage of its extractor is trained, and no activation kept. Leave out "
            "freeze_stages and recompute_activations.",
        )
        yield (
            not (self.supervised or self.own_head),
            "has neither labels nor a head of its own. Leave out own_head=.",
        )
        yield (
            not self.supervised and (not begun or not started or self.loader is not None),
            "has supervised=False: its head learns nothing, so that it starts from an extractor and a head that were "
            "trained (registry.task), and its images are those of data, not a loader's.",
        )

    @property
    def moves_pixels(self) -> bool:
        """Whether augmentation only moves pixels, so that it can be part of a gather on the device."""
        return isinstance(self.augment, tuple) and set(self.augment) <= set(AUGMENTATIONS)

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return bool(self.mixup or self.cutmix)
