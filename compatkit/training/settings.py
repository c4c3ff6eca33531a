"""Settings of a run: values, checks across settings, and their form in the manifest."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from compatkit.errors import FormatError, UsageError, type_of
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import dumps, loads
from compatkit.foundation.credentials import remember
from compatkit.foundation.json_fields import key_of
from compatkit.foundation.limits import COUNT, FLAG, PATH, SEED, WHOLE, Number, OfType, OneOf
from compatkit.hooks import RunInfo
from compatkit.plugins.discovery import require
from compatkit.training.batches.decoded import Cache
from compatkit.training.batches.sources import IMAGE_STORAGE, ImagePlacement, ImageStorage
from compatkit.training.evaluating import EarlyStopping, On
from compatkit.training.execution import ExecutionOption
from compatkit.training.extra_views import VIEW_BATCHING_OPTIONS, ViewBatchingOption
from compatkit.training.optim import DECAYS, PAPERS, Schedule, check_options
from compatkit.training.precision import Choice, spelled

_SHARE = Number(above=0, below=1, optional=True)
OPTIONAL_COUNT = Number(least=1, whole=True, optional=True)
# Form of a setting in the manifest; without metadata, the manifest has the value.
_LEFT_OUT = {"manifest": "beside"}  # left out: it has no influence on the result
_HIDDEN = {"manifest": "hidden"}  # left out: the manifest's environment has the choice
# Left out if it has its default, so that digests of older plans do not change.
_UNLESS_DEFAULT = {"manifest": "where on"}
_WITH_STOPPING = {"manifest": "to stop"}  # left out without early stopping, which depends on evaluations


def _json_options(value: Any) -> Any:
    """Return options as JSON values, so that plans from Python and from recipes are equal; None if empty."""
    try:
        return loads(dumps(dict(value)), what="they") if value else None
    except (FormatError, TypeError, ValueError) as error:
        raise UsageError(
            f"'optimizer_options' must be a table of JSON values, such as {{'betas': [0.9, 0.95]}}; {error}"
        ) from error


def _local(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    PATH(instance, attribute, value)
    if value is not None:
        local(value, f"'{attribute.name}'")


def logger_settings(loggers: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of each logger of a run, and have their secrets removed from messages.

    Args:
        loggers: Folder, or settings, by the logger's name; or names and tables with a name; None for no loggers.

    Raises:
        UnknownName: No logger of this name is installed.
        UsageError: A folder is not on a local disk, settings are not a table, or a logger is named twice.
    """
    example = "such as {'tensorboard': 'runs/digits'} or ['csv', {'name': 'wandb', 'project': 'digits'}]"
    if not isinstance(loggers, Mapping | list | tuple | None):
        raise UsageError(
            f"'loggers' must name loggers, {example}; got {type_of(loggers)}.", subject="loggers"
        )
    settings: dict[str, dict[str, Any]] = {}
    for name, values in _named(loggers or {}, example):
        if require("loggers", name) in settings:
            raise UsageError(f"'loggers' has {name!r} twice; give one table with all settings.", subject=name)
        remember("", values)
        if "folder" in values:
            folder = values["folder"]
            if not isinstance(folder, str | os.PathLike):
                raise UsageError(
                    f"Logger {name!r} needs a folder, {example}; got {type_of(folder)}.", subject=name
                )
            local(folder, f"'loggers' ({name})")
        settings[name] = values
    return settings


def _named(loggers: Mapping[str, Any] | Sequence[Any], example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and settings of each logger."""
    if isinstance(loggers, Mapping):
        for name, value in loggers.items():
            yield name, dict(value) if isinstance(value, Mapping) else {"folder": value}
        return
    for entry in loggers:
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            raise UsageError(
                f"Each of 'loggers' is a name or a table with a name, {example}; got {type_of(entry)}.",
                subject="loggers",
            )
        yield table["name"], {key: value for key, value in table.items() if key != "name"}


def _optimizer(instance: object, attribute: object, value: Any) -> None:
    if value in PAPERS:
        return  # avoids importing timm
    from compatkit.adapters.optimizers import check

    check(value if isinstance(value, str) else repr(value))


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of a trainer; ``Trainer`` documents them.

    Raises:
        UsageError: A setting is invalid, or settings cannot be combined.
    """

    steps: int = attrs.field(validator=WHOLE)
    seed: int = attrs.field(default=0, validator=SEED)
    batch_size: int = attrs.field(default=64, validator=Number(least=2, whole=True))
    optimizer: str = attrs.field(default="adam", validator=_optimizer, metadata={"key": "optimiser"})
    lr: float = attrs.field(default=0.01, validator=Number(above=0))
    weight_decay: float = attrs.field(default=1e-7, validator=Number(least=0))
    schedule: Literal["step", "cosine", "constant"] | Schedule = "step"
    device: str = attrs.field(default="auto", metadata=_HIDDEN)
    validation: float | None = attrs.field(default=None, validator=_SHARE, metadata=_UNLESS_DEFAULT)
    checkpoint: str | os.PathLike[str] | None = attrs.field(
        default=None, validator=_local, metadata=_LEFT_OUT
    )
    optimizer_options: Mapping[str, Any] | None = attrs.field(
        default=None, converter=_json_options, metadata={**_UNLESS_DEFAULT, "key": "optimiser_options"}
    )
    layer_decay: float | None = attrs.field(
        default=None, validator=Number(above=0, most=1, optional=True), metadata=_UNLESS_DEFAULT
    )
    momentum: float = attrs.field(default=0.9, validator=Number(least=0))
    warmup: int = attrs.field(default=0, validator=WHOLE)
    accumulate: int = attrs.field(default=1, validator=COUNT, metadata=_UNLESS_DEFAULT)
    clip_norm: float | None = attrs.field(
        default=None, validator=Number(above=0, infinite=True, optional=True), metadata=_UNLESS_DEFAULT
    )
    ema: float | None = attrs.field(default=None, validator=_SHARE, metadata=_UNLESS_DEFAULT)
    ema_warmup: bool = attrs.field(default=False, validator=FLAG, metadata=_UNLESS_DEFAULT)
    evaluate_every: int | None = attrs.field(default=None, validator=OPTIONAL_COUNT, metadata=_WITH_STOPPING)
    evaluate_on: On = attrs.field(
        default="validation", validator=OneOf(get_args(On)), metadata=_WITH_STOPPING
    )
    stop_early: EarlyStopping | None = attrs.field(
        default=None,
        validator=OfType((EarlyStopping, type(None)), "an EarlyStopping, or None"),
        metadata=_UNLESS_DEFAULT,
    )
    checkpoint_every: int = attrs.field(default=500, validator=COUNT, metadata=_LEFT_OUT)
    checkpoint_seconds: float | None = attrs.field(
        default=120.0, validator=Number(above=0, optional=True), metadata=_LEFT_OUT
    )
    new_augment: bool = attrs.field(default=False, validator=FLAG, metadata=_LEFT_OUT)
    log_every: int = attrs.field(default=50, validator=COUNT)
    loggers: Mapping[str, Mapping[str, Any]] = attrs.field(
        factory=dict, converter=logger_settings, metadata=_LEFT_OUT, repr=False
    )
    run_name: str | None = attrs.field(
        default=None, validator=OfType((str, type(None)), "a text, or None"), metadata=_LEFT_OUT
    )
    progress: bool = attrs.field(default=True, validator=FLAG, metadata=_LEFT_OUT)
    precision: Choice = attrs.field(
        default="auto", converter=spelled, validator=OneOf(get_args(Choice)), metadata=_HIDDEN
    )
    channels_last: bool | None = attrs.field(
        default=None, validator=OfType((bool, type(None)), "True, False or None"), metadata=_HIDDEN
    )
    execution: ExecutionOption = attrs.field(
        default="auto", validator=OneOf(get_args(ExecutionOption)), metadata=_HIDDEN
    )
    deterministic: bool = attrs.field(default=False, validator=FLAG, metadata=_UNLESS_DEFAULT)
    passes: ViewBatchingOption = attrs.field(
        default="auto", validator=OneOf(VIEW_BATCHING_OPTIONS), metadata=_HIDDEN
    )
    synchronize_statistics: bool = attrs.field(default=False, validator=FLAG, metadata=_UNLESS_DEFAULT)
    image_storage: ImageStorage = attrs.field(
        default="auto", validator=OneOf(IMAGE_STORAGE), metadata=_HIDDEN
    )
    memory_share: float = attrs.field(default=0.5, validator=Number(least=0, most=1), metadata=_HIDDEN)
    workers: int | None = attrs.field(
        default=None, validator=Number(least=0, whole=True, optional=True), metadata=_LEFT_OUT
    )
    cache: Cache = attrs.field(default="auto", validator=OneOf(get_args(Cache)), metadata=_LEFT_OUT)

    def __attrs_post_init__(self) -> None:
        """Check the settings that depend on each other."""
        for conflict, message in _conflicts(self):
            if conflict:
                raise UsageError(message)
        if self.optimizer_options:
            check_options(self.optimizer, self.optimizer_options)

    @property
    def decay(self) -> Schedule:
        """Schedule of the learning rate."""
        return self.schedule if isinstance(self.schedule, Schedule) else Schedule(self.schedule, self.warmup)

    @property
    def image_placement(self) -> ImagePlacement:
        """Storage and decoding of training images."""
        return ImagePlacement(self.image_storage, self.memory_share, self.workers, self.cache, self.steps)

    def info(self, device: str, *, dry: bool) -> RunInfo:
        """Return what plugins and loggers are told of the run.

        Args:
            device: Chosen device.
            dry: Whether nothing will be trained.
        """
        checkpoint = None if self.checkpoint is None else Path(self.checkpoint).absolute()
        return RunInfo(
            name=self.run_name or (checkpoint and checkpoint.stem),
            folder=checkpoint and checkpoint.parent,
            dry=dry,
            device=device,
            **{name: getattr(self, name) for name in _TOLD},
        )

    def stated(self) -> dict[str, Any]:
        """Return the settings for the manifest of a run, by the metadata of their fields."""
        stated = {}
        for field in attrs.fields(type(self)):
            value, rule = getattr(self, field.name), field.metadata.get("manifest")
            off = value in (field.default, math.inf)
            if rule is None or (rule == "where on" and not off) or (rule == "to stop" and self.stop_early):
                has_fields = attrs.has(type(value))
                stated[field.name] = attrs.asdict(value, filter=_is_stated) if has_fields else value
        return stated


_TOLD = ("seed", "steps", "batch_size", "accumulate", "evaluate_every", "ema")


def plan_key(name: str) -> str:
    """Return the key of a setting in plans and manifests, which never changes, so that digests stay equal."""
    return key_of(attrs.fields_dict(Settings)[name])


def _is_stated(field: attrs.Attribute[Any], value: Any) -> bool:
    return field.metadata.get("manifest") != "where on" or value != field.default


WITHOUT_INFLUENCE = frozenset(
    field.name for field in attrs.fields(Settings) if field.metadata.get("manifest") == "beside"
)
"""Settings without influence on the result."""


def _conflicts(settings: Settings) -> Iterator[tuple[object, str]]:
    """Yield whether settings conflict or would mislead, and the message for it."""
    schedule, accumulate, size = settings.schedule, settings.accumulate, settings.batch_size
    yield (
        not isinstance(schedule, Schedule) and schedule not in DECAYS,
        f"'schedule' must be {', '.join(DECAYS)}, or a Schedule; got {schedule!r:.60}.",
    )
    yield (
        isinstance(schedule, Schedule) and settings.warmup,
        "'warmup' is given next to a Schedule; set Schedule(warmup=...) instead.",
    )
    yield (
        size % accumulate,
        f"batch_size={size} cannot be divided into accumulate={accumulate} micro-batches of equal size. "
        f"Set batch_size to a multiple of {accumulate}.",
    )
    yield (
        size // accumulate < 2,
        f"accumulate={accumulate} leaves {size // accumulate} image per micro-batch, too few for batch normalization. "
        f"Set accumulate to {size // 2} or less, or a larger batch_size.",
    )
    yield settings.ema_warmup and settings.ema is None, "ema_warmup=True needs ema, for example ema=0.999."
    yield (
        settings.evaluate_every is not None
        and settings.evaluate_on == "validation"
        and settings.validation is None,
        f"evaluate_every={settings.evaluate_every} has no images to evaluate on. Hold some out with validation=0.1, "
        "or set evaluate_on='test' or 'train'.",
    )
    yield (
        settings.stop_early and settings.evaluate_on != "validation",
        "stop_early works on held-out training images only: a run that test images end was chosen by them, and its "
        "figures on them are too good. Set validation=0.1 and evaluate_on='validation'.",
    )
    yield (
        settings.stop_early and None in (settings.validation, settings.evaluate_every),
        "stop_early needs validation, for example 0.1, and evaluate_every, for example 100 steps.",
    )
