"""Signatures of manifests: keys, statements in DSSE envelopes, whom a user trusts, and where signatures are kept."""
