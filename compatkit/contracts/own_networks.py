"""Names of compatkit's own networks that manifests, plans and recipes record as timm's.

These networks were once registered with timm. Stored manifests are not changed; ``actual_builder`` returns the builder
of their networks. Plans still name timm, so that their digests, and thus earlier runs, still match.
"""

from __future__ import annotations

OWN = "compatkit"
"""Name of the builder of compatkit's own networks."""
RECORDED_AS = "timm"
NETWORKS = frozenset(
    (
        *("resnet8_cifar", "resnet20_cifar", "resnet32_cifar", "resnet44_cifar", "resnet56_cifar"),
        *("resnet110_cifar", "resnet18_v2_cifar", "wide_resnet10_2_cifar", "wide_resnet16_4_cifar"),
        *("wide_resnet28_2_cifar", "wide_resnet28_4_cifar", "wide_resnet28_10_cifar"),
        *("wide_resnet28_16_cifar", "wide_resnet40_2_cifar", "wide_resnet58_2_cifar"),
        *("lenet", "simple_cnn", "vgg16_cifar", "two_layer_head"),
        *("mobilenetv2_025_cifar", "mobilenetv2_cifar"),
        *("fully_connected", "conv_chain"),
        *("vae_conv", "vae_dense", "vae_conv_classifier", "vae_dense_classifier"),
        *("super_resolution", "image_autoencoder", "info_gan", "image_discriminator"),
        "forecast_resnet",
    )
)
"""Networks that were registered with timm; later ones are recorded under their own builder."""


def actual_builder(recorded: str, model: str) -> str:
    """Return the builder that builds a network.

    Args:
        recorded: Builder that a manifest, a plan or a recipe names.
        model: Name of the network.
    """
    return OWN if recorded == RECORDED_AS and model in NETWORKS else recorded


def planned_builder(builder: str, model: str) -> str:
    """Return the builder that a plan names: the inverse of ``actual_builder``.

    Args:
        builder: Builder of the network.
        model: Name of the network.
    """
    return RECORDED_AS if builder == OWN and model in NETWORKS else builder
