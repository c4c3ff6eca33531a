"""Remote registries: on object stores, the Hugging Face Hub, and other places that plugins offer."""
