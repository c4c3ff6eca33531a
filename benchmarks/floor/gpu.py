"""Rows of the floor about work on a GPU."""

from __future__ import annotations

from floor.row import Row


def _on_gpu(
    key: str, work: str, rival: str, goal: float, source: str, rounds: int = 7, /, **arguments: str | bool
) -> Row:
    return Row(key, work, rival, "x", goal, source, rounds, needs="cuda", arguments=arguments)


ROWS = (
    *(
        _on_gpu(
            f"gpu-step-{depth}-{mode}",
            f"a step of ResNet-{depth} on a GPU, batches of 512, bf16, {mode}",
            "hand-written loop on the same device, the same way",
            1.01,
            "gpu_steps:step",
            network=f"resnet{depth}_cifar",
            mode=mode,
        )
        for depth in (20, 56)
        for mode in ("eager", "graph", "compile+graph")
    ),
    *(
        _on_gpu(
            f"gpu-joint-{mode}",
            f"a step of two tasks with a ResNet-56 each on a GPU, {mode}",
            "two hand-written loops one after the other",
            1.02,
            "gpu_steps:joint",
            network="resnet56_cifar",
            mode=mode,
        )
        for mode in ("eager", "graph")
    ),
    *(
        _on_gpu(
            f"gpu-rotation-{mode}",
            f"a step of ResNet-20 with rotation prediction on a GPU, {mode}",
            "hand-written loop on the same device, the same way",
            1.03,
            "gpu_rotation:rotation",
            network="resnet20_cifar",
            mode=mode,
        )
        for mode in ("eager", "graph", "compile+graph")
    ),
    *(
        _on_gpu(
            f"gpu-one-pass-{mode}",
            f"a step of ResNet-20 with views normalized by themselves, one extractor pass, on a GPU, {mode}",
            "four extractor passes",
            goal,
            "gpu_rotation:one_pass",
            network="resnet20_cifar",
            mode=mode,
        )
        for mode, goal in (("eager", 1 / 1.5), ("compile+graph", 1 / 1.2))
    ),
    *(
        _on_gpu(
            f"gpu-cka-{rival.lower().replace(' ', '-').replace('_', '-')}",
            "CKA of 15 x 15 layers, 1,000 images, activations on a GPU",
            what,
            goal,
            "gpu_similarity:cka",
            rival=rival,
        )
        for rival, what, goal in (
            ("Grams once", "Grams once, by hand, on the same device", 1.0),
            ("torch_cka", "the loop of torch_cka on the same device", 0.2),
        )
    ),
    _on_gpu(
        "gpu-hessian-products",
        "four Hessian products of ResNet-20 on a GPU, 256 images",
        "double backward pass by hand",
        1.02,
        "gpu_hessian:products",
    ),
    _on_gpu(
        "gpu-hessian-top-20",
        "top 20 of the Hessian on a GPU",
        "power iteration, as in PyHessian, on the same device",
        0.2,
        "gpu_hessian:eigenvalues",
        3,
    ),
    *(
        _on_gpu(
            f"gpu-matrix-{policy}",
            f"matrix of 6 x 6 small parts, 10,000 images, on a GPU, {policy} statistics",
            "each extractor once, each head on kept features, by hand",
            1 / 0.9,
            "gpu_matrix:matrix",
            policy=policy,
        )
        for policy in ("running", "batch")
    ),
    *(
        _on_gpu(
            f"gpu-load-{'first' if first else 'later'}-{rival}",
            f"{'first' if first else 'later'} load of 94 MB to a GPU",
            what,
            goal,
            "gpu_loading:load",
            first=first,
            rival=rival,
        )
        for first, rival, what, goal in (
            (True, "timm", "sha256, timm on meta, load_file to the device, assign", 1.3),
            (False, "timm", "timm on meta, load_file to the device, assign", 1.5),
            (False, "bytes", "the file's bytes copied to the device", 2.0),
        )
    ),
)
