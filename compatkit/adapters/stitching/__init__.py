"""The modules between an extractor and a head: projections, reshaping, entry layers of another width."""
