"""Networks with awkward seams, offered through the table of builders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """First and second layer, pooling, class layer; subclasses bend it."""

    def __init__(self, in_chans: int = 3, num_classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_chans, 6, 3, padding=1)
        self.act = nn.ReLU()
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, num_classes)
        self.pretrained_cfg = {"input_size": (in_chans, 8, 8), "classifier": "fc"}

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.middle(x).mean((2, 3)))

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x)))


class Skips(Tiny):
    """The first output is used again after the second layer."""

    def middle(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.second(first) + first


class Image(Tiny):
    """The image itself is used again after the second layer."""

    def __init__(self, in_chans: int = 1, num_classes: int = 4) -> None:
        super().__init__(in_chans, num_classes)

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + x


class Sizes(Tiny):
    """A size read from the image is used late."""

    def middle(self, x: Tensor) -> Tensor:
        height = x.shape[2]
        return self.second(self.first(x)) / height


class Twice(Tiny):
    """The second layer runs twice."""

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.second(self.first(x)))


class Tuples(Tiny):
    """The first layer gives two tensors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.both = Both()

    def middle(self, x: Tensor) -> Tensor:
        a, b = self.both(self.first(x))
        return self.second(a + b)


class Both(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, 2 * x


class Tied(Tiny):
    """One scale on both sides."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.ones(1))

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.first(x * self.scale)) * self.scale


class Branches(Tiny):
    """Branches on data."""

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) if float(x.sum()) > 0 else self.first(x)


class InPlace(Tiny):
    """The layer after the first works in place, visibly or inside a block."""

    def __init__(self, hidden: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.act = nn.Sequential(nn.ReLU(inplace=True)) if hidden else nn.ReLU(inplace=True)


class Drops(Tiny):
    """Functional dropout in a traced module, direct parameters and buffers, unused and constant state."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = nn.BatchNorm2d(6)
        self.early = nn.Parameter(torch.full((6, 1, 1), 1.5))
        self.late = nn.Parameter(torch.full((6, 1, 1), 0.5))
        self.register_buffer("kept", torch.full((1,), 2.0))
        self.register_buffer("ramp", torch.linspace(0, 1, 6).reshape(6, 1, 1), persistent=False)
        self.unused = nn.Linear(2, 2)

    def middle(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(self.first(x) * self.early, 0.3, self.training)
        x = self.norm(x)
        x = self.second(self.act(x)) * self.late + self.kept + self.ramp
        return nn.functional.dropout(x + torch.tensor([0.25]), 0.3, self.training)


class Tokens(Tiny):
    """Height and width, taken before the second layer, are needed to make a map of its tokens again."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mix = nn.Linear(6, 6)

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        height, width = x.shape[2], x.shape[3]
        x = self.mix(x.flatten(2).transpose(1, 2))
        return self.second(x.transpose(1, 2).reshape(x.shape[0], 6, height, width))


class Rotary(Tiny):
    """An embedding made from the image's size and a buffer is added on both sides."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.register_buffer("period", torch.tensor([3.0]), persistent=False)

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        wave = torch.sin(torch.arange(x.shape[3]) / self.period)
        return self.second(x + wave) + wave


class Unpacks(Tiny):
    """A size is unpacked with a star, and code branches on it."""

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        size = x.shape[2:]
        if size[0] > 4:
            x = x * 2
        return self.second(x.flatten(2)[:, :, : size[0] * size[1]].reshape(x.shape[0], 6, *size))


class Many(Tiny):
    """Nine tensors cross."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.copies = Copies()

    def middle(self, x: Tensor) -> Tensor:
        return self.second(sum(self.copies(self.first(x))))  # type: ignore[arg-type]


class Copies(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x * index for index in range(9)]


class Bias(Tiny):
    """What one module makes of its own parameters is used on both sides."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bias = Parameters()

    def middle(self, x: Tensor) -> Tensor:
        bias = self.bias()
        return self.second(self.first(x) + bias) + bias


class Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(0, 1, 6).reshape(6, 1, 1))

    def forward(self) -> Tensor:
        return self.values.sin()


class Changed(Tiny):
    """The second layer takes a list and changes it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pair = Both()
        self.stage = Stage()

    def middle(self, x: Tensor) -> Tensor:
        a, b = self.stage(list(self.pair(self.first(x))))
        return self.second(a) + b


class Stage(nn.Module):
    def forward(self, values: list[Tensor]) -> list[Tensor]:
        values[0] = values[0] + values[1]
        return values


class Steps(Tiny):
    """A number moves with every 64 pixels only."""

    def middle(self, x: Tensor) -> Tensor:
        factor = x.shape[2] // 64 + 1
        return self.second(self.first(x)) * factor


class Pads(Tiny):
    """Pads to a multiple of 8, and crops again."""

    def middle(self, x: Tensor) -> Tensor:
        pad = -x.shape[2] % 8
        x = self.second(self.first(nn.functional.pad(x, (0, 0, 0, pad))))
        return x[:, :, : x.shape[2] - pad]


class Temperature(Tiny):
    """A parameter is read as a number."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x))) / float(self.temperature)


class Switched(Tiny):
    """A buffer switches a branch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.register_buffer("ready", torch.tensor(0))

    def middle(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        return x + 5 if self.ready else x


class LayerDrop(Tiny):
    """A layer is left out by chance in train mode."""

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(x)
        if self.training and torch.rand(1).item() < 0.1:
            y = torch.zeros_like(y)
        return x + y


class Detached(Tiny):
    """The first layer gets no gradient."""

    def middle(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x)
        return self.second(x)


class Remembers(Tiny):
    """Keeps what it saw, and what it made once."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.last: Any = None
        self.cache: Any = None

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.last = x
        if self.cache is None:
            self.cache = x.new_ones(1)
        return self.second(x)


class Counts(Tiny):
    """Counts its passes in a buffer before the cut."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.register_buffer("seen", torch.tensor(0))

    def middle(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(1)
        return self.second(self.first(x))


class Stubborn(Tiny):
    """Keeps a normalization in eval mode."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = nn.BatchNorm2d(6)

    def train(self, mode: bool = True) -> Stubborn:
        super().train(mode)
        self.norm.eval()
        return self

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)))


NETWORKS: dict[str, type[Tiny]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Tiny, Skips, Image, Sizes, Twice, Tuples, Tied, Branches, InPlace, Drops),
        *(Tokens, Rotary, Unpacks, Many, Bias, Changed, Steps, Pads, Temperature, Switched),
        *(LayerDrop, Detached, Remembers, Counts, Stubborn),
    )
}


def create(model: str, **kwargs: Any) -> nn.Module:
    return NETWORKS[model](**kwargs)
