"""Pages of a catalogue: templates, style, scripts, and data as scripts."""
