"""Networks joined with the registry: load, publish, verify, recombine, bridge, export; policies; the Registry."""
