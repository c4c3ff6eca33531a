"""Safetensors files: strict check of headers, serialization and digests."""
