"""Model cards of repositories that hold a registry, and the files from which timm builds a network in them."""
