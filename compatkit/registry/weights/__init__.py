"""Safetensors files: strict check of headers, serialisation and digests."""
