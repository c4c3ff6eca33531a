"""A catalogue of a registry as pages: what they show, written as a folder or served on loopback."""
