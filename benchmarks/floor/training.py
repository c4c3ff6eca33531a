"""Rows of the floor about training."""

from __future__ import annotations

from floor.row import Row

ROWS = (
    *(
        Row(
            f"tiny-step-{where}{'' if kind == 'SGD' else f'-{kind.lower()}'}",
            f"{work}, three idle plugins, {kind}",
            "bare loop with the same data, and torch's optimizer",
            "us",
            goal,
            f"trainer_overhead:{where}_step",
            arguments={"kind": kind.lower()},
        )
        for kind in ("SGD", "Adam")
        for where, work, goal in (
            ("fit", "a step of a tiny network through `fit`, everything included", 15),
            ("loop", "the same step in the trainer's loop alone", 8),
        )
    ),
    Row(
        "tiny-step-loop-functional",
        "the same step in the trainer's loop alone, three idle plugins, SGD",
        "the bare loop with SGD's functional form in place of the optimizer",
        "us",
        8,
        "trainer_overhead:functional_loop_step",
        why="26 to 39 us on a shared machine, 12 to 16 % of a step. The same batches, seeds, hooks, guards and results "
        "in one function written out for this case add 3: the rest is some 25 calls of loop, objective and source, "
        "about 1 us each, as Python's code is out of the processor's caches after torch has run. Written out, the step "
        "would stand twice.",
    ),
    Row(
        "joint-step",
        "a step of two tasks with a ResNet-20 each, resident images, crop and flip, in the default number format",
        "two hand-written steps, the same",
        "x",
        1.02,
        "trainer_steps:joint",
    ),
    Row(
        "first-touch",
        "`ck.Trainer`, first touch",
        "imports of torch and numpy",
        "x",
        1.2,
        "first_touch:trainer",
    ),
    *(
        Row(
            f"empty-fit-{'later' if known else 'first'}",
            f"a fit of no steps of timm's ResNet-18, in a new process, network {'checked before' if known else 'new'}",
            "`timm.create_model` in a new process",
            "x",
            1.2,
            "first_touch:empty_fit",
            5,
            arguments={"known": known},
        )
        for known in (False, True)
    ),
    *(
        Row(
            f"reverse-autocast{suffix}",
            f"a bf16 step of {what} with the reverse pass",
            "the reverse pass by hand, under one autocast",
            "x",
            1.03,
            "reverse_pass:autocast_ratios",
            arguments={"name": name},
        )
        for suffix, what, name in (
            ("", "ResNet-20, batches of 16 at 32 pixels", "resnet20_cifar"),
            ("-cnn", "a small convolutional network, batches of 32 at 32 pixels", "simple_cnn"),
            ("-vit", "a ViT of six blocks, batches of 8 at 64 pixels", "vit_tiny_patch16_224"),
        )
    ),
    Row(
        "precision-linear",
        "a step in the default number format, fully connected network of 8 x 16, batches of 64",
        "the same in float32",
        "x",
        1.02,
        "precision:linear_auto",
    ),
    Row(
        "precision-lenet",
        "the same, LeNet at 32 pixels",
        "float32",
        "x",
        1.02,
        "precision:lenet_auto",
    ),
    Row(
        "precision-resnet20",
        "the same, ResNet-20 at 32 pixels",
        "float32",
        "x",
        1.02,
        "precision:resnet_auto",
    ),
    Row(
        "precision-resnet20-bf16",
        "the same",
        "bf16",
        "x",
        1.02,
        "precision:resnet_bf16",
    ),
    Row(
        "precision-resnet20-contiguous",
        "the same",
        "float32 in torch's default memory layout",
        "x",
        1.0,
        "precision:resnet_contiguous",
    ),
)
