"""Plain values that every room needs: canonical JSON, display, arguments, addresses, file systems, the cache."""
