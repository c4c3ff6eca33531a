"""Copy components between registries, with everything they refer to; each blob is verified on arrival."""
