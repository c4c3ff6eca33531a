"""Plain values that every room needs: canonical JSON, display, limits, arguments, addresses, the cache."""
