"""The index: a disposable copy of what the files say, in SQLite and outside the root."""
