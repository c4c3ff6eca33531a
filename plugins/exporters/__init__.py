"""Exporters: files of other formats that hold a network."""
