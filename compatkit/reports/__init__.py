"""Reports: a measured matrix as terminal table, Markdown, CSV, JSON, heat map and HTML page."""
