"""Remote registries: on object stores, the Hugging Face Hub, and whatever plugins reach."""
