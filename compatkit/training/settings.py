"""Settings of a run: their values, which go together, and which of them its manifest states."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from compatkit.errors import FormatError, UsageError
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import dumps, key_of, loads
from compatkit.foundation.limits import COUNT, FLAG, PATH, SEED, WHOLE, Number, OfType, OneOf
from compatkit.plugins.discovery import require
from compatkit.training.batches.decoded import Cache
from compatkit.training.batches.sources import IMAGE_STORAGE, ImagePlacement, ImageStorage
from compatkit.training.evaluating import EarlyStopping, On
from compatkit.training.execution import ExecutionOption
from compatkit.training.extra_views import VIEW_BATCHING_OPTIONS, ViewBatchingOption
from compatkit.training.optim import DECAYS, PAPERS, Schedule, check_options
from compatkit.training.precision import Choice, spelled

_share = Number(above=0, below=1, optional=True)
# How a manifest treats a setting; without metadata it states the value.
_BESIDE = {"manifest": "beside"}  # left out: it has no influence on the result
_HIDDEN = {"manifest": "hidden"}  # left out: the manifest's environment states what was chosen
_WHERE_ON = {
    "manifest": "where on"
}  # stated only where it differs from the default, so that other plans stay
_TO_STOP = {"manifest": "to stop"}  # stated only with early stopping, which depends on evaluations


def _plain(value: Any) -> Any:
    """Return options as JSON values, so that a plan from Python is that of a recipe; None for none."""
    try:
        return loads(dumps(dict(value)), what="they") if value else None
    except (FormatError, TypeError, ValueError) as error:
        raise UsageError(
            "'optimizer_options' must be a table of JSON values, such as {'betas': [0.9, 0.95]}; got "
            f"{value!r:.100}: {error}"
        ) from error


def _local(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    PATH(instance, attribute, value)
    if value is not None:
        local(value, f"'{attribute.name}'")


def logger_settings(loggers: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of each logger of a run; a text or path is its folder.

    Args:
        loggers: Settings or folder by name, or None for none.

    Raises:
        UnknownName: No logger of this name is installed.
        UsageError: A folder is missing or not on a local disk, or settings are not a table.
    """
    example = "such as {'tensorboard': 'runs/digits'}"
    if not isinstance(loggers, Mapping | None):
        raise UsageError(
            f"'loggers' must be a table from loggers to folders, {example}; got {loggers!r:.100}."
        )
    settings = {
        require("loggers", name): dict(value) if isinstance(value, Mapping) else {"folder": value}
        for name, value in (loggers or {}).items()
    }
    for name, values in settings.items():
        folder = values.get("folder")
        if not isinstance(folder, str | os.PathLike):
            raise UsageError(
                f"The logger {name!r} needs a folder, {example}; got {folder!r:.100}.", subject=name
            )
        local(folder, f"'loggers' ({name})")
    return settings


def _optimizer(instance: object, attribute: object, value: Any) -> None:
    if value in PAPERS:
        return  # without the import of timm
    from compatkit.adapters.optimizers import check

    check(value if isinstance(value, str) else repr(value))


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of a trainer; ``Trainer`` documents them.

    Raises:
        UsageError: A setting cannot be used, or some do not go together.
    """

    steps: int = attrs.field(validator=WHOLE)
    seed: int = attrs.field(default=0, validator=SEED)
    batch_size: int = attrs.field(default=64, validator=Number(least=2, whole=True))
    optimizer: str = attrs.field(default="adam", validator=_optimizer, metadata={"key": "optimiser"})
    lr: float = attrs.field(default=0.01, validator=Number(above=0))
    weight_decay: float = attrs.field(default=1e-7, validator=Number(least=0))
    schedule: Literal["step", "cosine", "constant"] | Schedule = "step"
    device: str = attrs.field(default="auto", metadata=_HIDDEN)
    validation: float | None = attrs.field(default=None, validator=_share, metadata=_WHERE_ON)
    checkpoint: str | os.PathLike[str] | None = attrs.field(default=None, validator=_local, metadata=_BESIDE)
    optimizer_options: Mapping[str, Any] | None = attrs.field(
        default=None, converter=_plain, metadata={**_WHERE_ON, "key": "optimiser_options"}
    )
    layer_decay: float | None = attrs.field(
        default=None, validator=Number(above=0, most=1, optional=True), metadata=_WHERE_ON
    )
    momentum: float = attrs.field(default=0.9, validator=Number(least=0))
    warmup: int = attrs.field(default=0, validator=WHOLE)
    accumulate: int = attrs.field(default=1, validator=COUNT, metadata=_WHERE_ON)
    clip_norm: float | None = attrs.field(
        default=None, validator=Number(above=0, infinite=True, optional=True), metadata=_WHERE_ON
    )
    ema: float | None = attrs.field(default=None, validator=_share, metadata=_WHERE_ON)
    ema_warmup: bool = attrs.field(default=False, validator=FLAG, metadata=_WHERE_ON)
    evaluate_every: int | None = attrs.field(
        default=None, validator=Number(least=1, whole=True, optional=True), metadata=_TO_STOP
    )
    evaluate_on: On = attrs.field(default="validation", validator=OneOf(get_args(On)), metadata=_TO_STOP)
    stop_early: EarlyStopping | None = attrs.field(
        default=None,
        validator=OfType((EarlyStopping, type(None)), "an EarlyStopping, or None"),
        metadata=_WHERE_ON,
    )
    checkpoint_every: int = attrs.field(default=500, validator=COUNT, metadata=_BESIDE)
    checkpoint_seconds: float | None = attrs.field(
        default=120.0, validator=Number(above=0, optional=True), metadata=_BESIDE
    )
    new_augment: bool = attrs.field(default=False, validator=FLAG, metadata=_BESIDE)
    log_every: int = attrs.field(default=50, validator=COUNT)
    loggers: Mapping[str, Mapping[str, Any]] = attrs.field(
        factory=dict, converter=logger_settings, metadata=_BESIDE
    )
    progress: bool = attrs.field(default=True, validator=FLAG, metadata=_BESIDE)
    precision: Choice = attrs.field(
        default="auto", converter=spelled, validator=OneOf(get_args(Choice)), metadata=_HIDDEN
    )
    channels_last: bool | None = attrs.field(
        default=None, validator=OfType((bool, type(None)), "True, False or None"), metadata=_HIDDEN
    )
    execution: ExecutionOption = attrs.field(
        default="auto", validator=OneOf(get_args(ExecutionOption)), metadata=_HIDDEN
    )
    deterministic: bool = attrs.field(default=False, validator=FLAG, metadata=_WHERE_ON)
    passes: ViewBatchingOption = attrs.field(
        default="auto", validator=OneOf(VIEW_BATCHING_OPTIONS), metadata=_HIDDEN
    )
    synchronize_statistics: bool = attrs.field(default=False, validator=FLAG, metadata=_WHERE_ON)
    image_storage: ImageStorage = attrs.field(
        default="auto", validator=OneOf(IMAGE_STORAGE), metadata=_HIDDEN
    )
    memory_share: float = attrs.field(default=0.5, validator=Number(least=0, most=1), metadata=_HIDDEN)
    workers: int | None = attrs.field(
        default=None, validator=Number(least=0, whole=True, optional=True), metadata=_BESIDE
    )
    cache: Cache = attrs.field(default="auto", validator=OneOf(get_args(Cache)), metadata=_BESIDE)

    def __attrs_post_init__(self) -> None:
        """Check that the settings go together."""
        _check(self)

    @property
    def decay(self) -> Schedule:
        """The schedule of the learning rate."""
        return self.schedule if isinstance(self.schedule, Schedule) else Schedule(self.schedule, self.warmup)

    @property
    def image_placement(self) -> ImagePlacement:
        """Where training images are kept."""
        return ImagePlacement(self.image_storage, self.memory_share, self.workers, self.cache, self.steps)

    def stated(self) -> dict[str, Any]:
        """Return the settings that the manifest of a run states, by the metadata of their fields."""
        stated = {}
        for field in attrs.fields(type(self)):
            value, rule = getattr(self, field.name), field.metadata.get("manifest")
            off = value in (field.default, math.inf)
            if rule is None or (rule == "where on" and not off) or (rule == "to stop" and self.stop_early):
                stated[field.name] = (
                    attrs.asdict(value, filter=_is_stated) if attrs.has(type(value)) else value
                )
        return stated


def plan_key(name: str) -> str:
    """Return the key of a setting in plans and manifests, whose digests must not change with our spelling."""
    return key_of(attrs.fields_dict(Settings)[name])


def _is_stated(field: attrs.Attribute[Any], value: Any) -> bool:
    return field.metadata.get("manifest") != "where on" or value != field.default


BESIDE = frozenset(
    field.name for field in attrs.fields(Settings) if field.metadata.get("manifest") == "beside"
)
"""Settings without influence on the result."""


def _check(settings: Settings) -> None:
    """Raise for settings that cannot work together, or would mislead.

    Raises:
        UsageError: Two settings do not go together; the message says which and what to change.
    """
    if not isinstance(settings.schedule, Schedule) and settings.schedule not in DECAYS:
        raise UsageError(
            f"'schedule' must be {', '.join(DECAYS)}, or a Schedule; got {settings.schedule!r:.60}."
        )
    if isinstance(settings.schedule, Schedule) and settings.warmup:
        raise UsageError("Give warmup inside the Schedule, or name the schedule by a word; not both.")
    _check_pieces(settings.batch_size, settings.accumulate)
    if settings.optimizer_options:
        check_options(settings.optimizer, settings.optimizer_options)
    if settings.ema_warmup and settings.ema is None:
        raise UsageError("ema_warmup=True raises the decay of moving averages; set ema, for example 0.999.")
    if (
        settings.evaluate_every is not None
        and settings.evaluate_on == "validation"
        and settings.validation is None
    ):
        raise UsageError(
            f"evaluate_every={settings.evaluate_every} has no images to evaluate on: hold out a share of the training "
            "images with validation=0.1, or set evaluate_on='test' or 'train'."
        )
    if settings.stop_early is not None:
        _check_stopping(settings)


def _check_pieces(batch_size: int, accumulate: int) -> None:
    if batch_size % accumulate:
        raise UsageError(
            f"accumulate={accumulate} works through a step's batch in {accumulate} pieces of the same size, which "
            f"{batch_size} images do not make. Set batch_size to a multiple of {accumulate}."
        )
    if batch_size // accumulate < 2:
        raise UsageError(
            f"accumulate={accumulate} leaves {batch_size // accumulate} image a piece, of which batch normalization "
            f"has no statistics; set accumulate to {batch_size // 2} or less, or a larger batch_size."
        )


def _check_stopping(settings: Settings) -> None:
    if settings.evaluate_on != "validation":
        raise UsageError(
            "stop_early looks at images held out of the training set, never at the test images (a run that is ended by "
            "its test images was chosen by them, and its figures on them are too good), nor at those trained on. Set "
            "validation=0.1 and evaluate_on='validation'."
        )
    if settings.validation is None or settings.evaluate_every is None:
        raise UsageError(
            "stop_early needs images to look at, and when: set validation, for example 0.1, and evaluate_every, for "
            "example 100 steps."
        )
