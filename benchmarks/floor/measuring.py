"""Rows of the floor about measuring networks and pairs."""

from __future__ import annotations

from floor.row import Row

ROWS = (
    Row(
        "cka-grams-once",
        "CKA of 15 x 15 layers, 1,000 images, activations in memory, unbiased and biased",
        "Grams once, by hand, unbiased alone",
        "x",
        1.0,
        "similarity:cka",
        arguments={"rival": "Grams once"},
    ),
    Row(
        "cka-torch-cka",
        "CKA of 15 x 15 layers, 1,000 images, activations in memory",
        "the loop of torch_cka on one batch of all images, the same statistic",
        "x",
        0.2,
        "similarity:cka",
        rounds=3,
        arguments={"rival": "torch_cka"},
    ),
    Row(
        "hessian-top-20",
        "20 largest eigenvalues of the Hessian of a ResNet-20, 16 images, residuals below .01 of the largest",
        "power iteration with deflation until its own rule stops it, as in PyHessian",
        "x",
        0.2,
        "curvature:eigenvalues",
        rounds=1,
    ),
    *(
        Row(
            f"landscape-{'one-layer' if layer else 'all-layers'}",
            f"loss landscape of ResNet-20, {layer or 'all layers'} moving, 9 x 9 points, 128 images of 16 x 16",
            "a plain loop that copies weights into the network and passes the same pieces of the images",
            "x",
            goal,
            "curvature:landscape",
            rounds=5,
            why=""
            if layer
            else "nine tenths of the time of both is the convolutions, batch norm and ReLU of the passes.",
            arguments={"layer": layer},
        )
        for layer, goal in (("", 1.0), ("layer2.1.conv1", 0.5))
    ),
    *(
        Row(
            f"matrix-{policy}",
            f"matrix of 6 x 6 parts of ResNet-20 from a registry, 1,000 images of 16 x 16, {policy} statistics",
            "each extractor once, each head on kept features, by hand, all in memory",
            "x",
            1 / 0.9,
            "matrix:matrix",
            rounds=5,
            why="of 270 ms of the processor added to 1,450, loading the 12 parts takes 110, writing 36 results 100, "
            "half of it syncs of four files and folders each, copies of features and tallies 40, checks 5; on the "
            "clock, the results of a row wait 35 to 40 ms for the disk.",
            arguments={"policy": policy},
        )
        for policy in ("batch", "running")
    ),
    Row(
        "rank",
        "`rank` of six extractors of one data set with six normalizations, 1,000 images of 64 x 64, processor time",
        "by hand, in memory: each extractor once, scores of features and predictions once an extractor, "
        "`theory_transfer` once in all",
        "x",
        1.2,
        "ranking:rank",
        3,
    ),
    Row(
        "rank-theory",
        "`theory_transfer` for six normalizations of one data set, 1,000 images of 128 x 128, processor time",
        "once, by hand",
        "x",
        1.0,
        "ranking:theory_alone",
        3,
    ),
)
