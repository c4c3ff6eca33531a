"""Components of other registries, copied with all that they refer to and verified on arrival."""
