"""What joins networks and the store: load, publish, verify, recombine, bridge, export; policies; the Registry."""
