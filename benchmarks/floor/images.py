"""Rows of the floor about reading images."""

from __future__ import annotations

from typing import Any

from floor.row import Row

IMAGE_PASSES: tuple[tuple[str, str, float, str, dict[str, Any]], ...] = (
    ("folder-jpeg", "resized crops", 1.0, "", {"jitter": False, "cache": "off"}),
    ("folder-jpeg-jitter", "resized crops and color jitter", 1.0, "", {"jitter": True, "cache": "off"}),
    ("cache-crops", "decoded once, resized crops", 1 / 3, "", {"jitter": False, "cache": "on"}),
    (
        "cache-crops-jitter",
        "decoded once, resized crops and color jitter",
        1 / 3,
        "workers need .74 ms of the processor an image: .2 for one pass of Pillow over the colors, .1 for the mean "
        "gray, .25 for torch's resize, the rest for draws and copies. With torchvision's jitter it would be 1.2.",
        {"jitter": True, "cache": "on"},
    ),
)


ROWS = (
    Row(
        "resident-images",
        "a pass over 4,096 images of 32 x 32 in memory, crop and flip, on one core",
        "torchvision's transforms in torch's DataLoader, without a worker or with one, whichever is faster",
        "x",
        0.05,
        "trainer_data:resident",
        rounds=5,
    ),
    *(
        Row(
            key,
            f"a pass over 1,024 photos of 500 x 375 pixels, {what}, two workers",
            "timm's create_loader, with or without its prefetcher, whichever is faster",
            "x",
            goal,
            "images:loading",
            why=why,
            arguments=arguments,
        )
        for key, what, goal, why, arguments in IMAGE_PASSES
    ),
)
