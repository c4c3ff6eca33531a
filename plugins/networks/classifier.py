"""Common base of all small networks: timm's model interface, without timm, and the initial weights of the papers."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT, WHOLE, OneOf


class Classifier(nn.Module):
    """An image classifier with timm's interface: ``forward_head(forward_features(x))``.

    A subclass sets its layers between ``__init__`` here and ``finish``, and writes ``forward_features``;
    the class layer is ``fc`` unless ``classifier_name`` says otherwise.

    Attributes:
        num_classes: Count of outputs; 0 for a network without class layer.
        num_features: Channels of the last feature map.
        head_hidden_size: Width of the vector that enters the class layer.
        feature_info: One entry a stage: ``num_chs``, ``reduction`` (image pixels a step), ``module``.
        pretrained_cfg: Input size, mean, std, interpolation, names of first and last layer.
        initial: How initial weights are drawn, a key of ``INITIAL``.
    """

    classifier_name: ClassVar[str] = "fc"
    first_conv: ClassVar[str] = "conv1"
    fixed_input_size: ClassVar[bool] = False
    output_fmt: ClassVar[str] = "NCHW"
    initial: str = "he"

    def __init__(self, num_classes: int, in_chans: int, drop_rate: float, img_size: tuple[int, int]) -> None:
        super().__init__()
        COUNT.check(type(self).__name__, in_chans=in_chans)
        WHOLE.check(type(self).__name__, num_classes=num_classes)
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.num_features = self.head_hidden_size = 0
        self.feature_info: list[dict[str, Any]] = []
        self.pretrained_cfg = {
            "architecture": "",
            "url": "",
            "num_classes": num_classes,
            "input_size": (in_chans, *img_size),
            "fixed_input_size": self.fixed_input_size,
            "pool_size": None,
            "crop_pct": 1.0,
            "interpolation": "bilinear",
            "mean": (0.5,) * in_chans,
            "std": (0.5,) * in_chans,
            "first_conv": self.first_conv,
            "classifier": self.classifier_name,
        }

    @property
    def default_cfg(self) -> dict[str, Any]:
        """The same as ``pretrained_cfg``, under timm's older name."""
        return self.pretrained_cfg

    def finish(self, channels: int, hidden: int | None = None) -> None:
        """Draw all initial weights and add the class layer for ``hidden`` (default: ``channels``) inputs.

        Args:
            channels: Channels of the last feature map.
            hidden: Length of the vector that enters the class layer, where that is not the pooled map.
        """
        self.num_features = channels
        self.head_hidden_size = channels if hidden is None else hidden
        # The body is drawn first, so that it does not depend on how many classes there are.
        draw_initial_weights(self, self.initial)
        self.head_drop = nn.Dropout(self.drop_rate)
        self.reset_classifier(self.num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the class layer."""
        return self.get_submodule(self.classifier_name)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the class layer by a fresh one; 0 classes leave the features as output.

        Args:
            num_classes: New count of classes.
            global_pool: For timm's interface; only the network's own pooling.

        Raises:
            UsageError: ``global_pool`` asks for another pooling than the network has.
        """
        if global_pool not in (None, "avg"):
            raise UsageError(
                f"{type(self).__name__} has one way to pool; global_pool may be None or 'avg', got {global_pool!r}."
            )
        self.num_classes = num_classes
        layer = nn.Linear(self.head_hidden_size, num_classes) if num_classes else nn.Identity()
        draw_class_layer(layer, self.initial)
        self.set_submodule(self.classifier_name, layer)

    def pool(self, x: Tensor) -> Tensor:
        """Features (N, C, H, W) to the vector (N, head_hidden_size) that enters the class layer: the mean over pixels.

        Networks that pool otherwise override this; the others have a layer ``global_pool``.
        """
        return self.get_submodule("global_pool")(x).flatten(1)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to the last feature map.

        Returns:
            ``(N, num_features, h, w)``.
        """
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Features to logits (N, num_classes), or to the vector before the class layer.

        Args:
            x: Output of ``forward_features``.
            pre_logits: Whether to stop before the class layer.

        Returns:
            ``(N, num_classes)``, or ``(N, head_hidden_size)`` before the class layer.
        """
        x = self.head_drop(self.pool(x))
        return x if pre_logits else self.get_classifier()(x)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to logits (N, num_classes)."""
        return self.forward_head(self.forward_features(x))


def _he(layer: nn.Module, *, rectified: bool = True) -> None:
    """Normal, variance ``2 / fan_in`` before ReLU (He et al. 2015, equation 10), else ``1 / fan_in``."""
    # torch reads the weight of a transposed convolution, (in, out, k, k), as that of a convolution from out to in.
    mode = "fan_out" if isinstance(layer, nn.ConvTranspose2d) else "fan_in"
    nn.init.kaiming_normal_(
        cast(Tensor, layer.weight), mode=mode, nonlinearity="relu" if rectified else "linear"
    )


def _glorot(layer: nn.Module, *, rectified: bool = True) -> None:
    """Uniform within ``sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio 2010, equation 16), whatever follows."""
    nn.init.xavier_uniform_(cast(Tensor, layer.weight))


INITIAL = {"he": _he, "glorot": _glorot}


def draw_initial_weights(network: nn.Module, initial: str = "he") -> None:
    """Draw the weights of all layers; zero biases, batch normalization at scale 1 and shift 0.

    Args:
        network: Changed in place.
        initial: A key of ``INITIAL``.

    Raises:
        UsageError: There is no such way to draw.
    """
    OneOf(INITIAL).check(type(network).__name__, initial=initial)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            INITIAL[initial](module)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def draw_class_layer(layer: nn.Module, initial: str = "he") -> None:
    """Draw a class layer, which no ReLU follows; zero bias.

    Args:
        layer: Changed in place; left alone unless it is linear.
        initial: A key of ``INITIAL``.
    """
    if isinstance(layer, nn.Linear):
        INITIAL[initial](layer, rectified=False)
        nn.init.zeros_(layer.bias)


def square(network: str, img_size: int | tuple[int, int] | list[int]) -> tuple[int, int]:
    """Return height and width from timm's ``img_size``: one number, or two.

    Args:
        network: Its name, for the message.
        img_size: Pixels.

    Raises:
        UsageError: Neither of them.
    """
    sizes = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if len(sizes) != 2:
        raise UsageError(f"{network}: img_size is one number or (height, width), got {img_size!r}.")
    COUNT.check(network, img_size=sizes[0])
    COUNT.check(network, img_size=sizes[1])
    return sizes[0], sizes[1]


def divided(network: str, img_size: int | tuple[int, int], by: int) -> tuple[int, int]:
    """Return height and width as ``square`` does, both of them multiples of ``by``.

    Raises:
        UsageError: They are not.
    """
    height, width = square(network, img_size)
    if height % by or width % by:
        raise UsageError(f"{network} takes images whose sides are multiples of {by}, got {height}x{width}.")
    return height, width


class WithoutClassLayer(Classifier):
    """A network with timm's interface that has no class layer, whatever the classes."""

    def get_classifier(self) -> nn.Module:
        """Return an identity: there is no class layer."""
        return nn.Identity()

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Remember the number; there is no class layer to replace."""
        self.num_classes = num_classes


def stage(module: str, channels: int, reduction: int) -> dict[str, Any]:
    """Return an entry of ``feature_info``.

    Args:
        module: Dotted path of the module that ends the stage.
        channels: Channels of its output.
        reduction: Pixels of the image per position of the output, along a side.
    """
    return {"num_chs": channels, "reduction": reduction, "module": module}
