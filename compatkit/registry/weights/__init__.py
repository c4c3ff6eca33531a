"""Safetensors files: the strict check of headers, and tensors to bytes and back."""
