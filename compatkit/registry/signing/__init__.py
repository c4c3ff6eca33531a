"""Signatures of manifests: keys, statements in DSSE envelopes, trusted keys, and signature files."""
