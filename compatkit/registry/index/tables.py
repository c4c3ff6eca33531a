"""The tables of the index: manifests by digest, which never change, and versions that refer to them."""

FILE = "index.sqlite"
TIMEOUT_SECONDS = 30.0
"""Time to wait for another process that is writing."""
TABLES = ("about", "names", "versions", "manifests", "terms", "classes")
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
-- state: of the folders of a name; NULL where it has to be read again each time
CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, state INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versions (
    name TEXT, major INTEGER, minor INTEGER, patch INTEGER, manifest INTEGER, withdrawn INTEGER, latest INTEGER,
    error TEXT, PRIMARY KEY (name, major, minor, patch)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS manifests (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, error TEXT, kind TEXT, builder TEXT, model TEXT, cut TEXT,
    parameters INTEGER, bytes INTEGER, title TEXT, license TEXT, classes INTEGER, lists TEXT, words TEXT
);
CREATE TABLE IF NOT EXISTS terms (
    field TEXT, value TEXT, manifest INTEGER, PRIMARY KEY (field, value, manifest)
) WITHOUT ROWID;
-- most components share a few lists of classes, which may be long
CREATE TABLE IF NOT EXISTS classes (name TEXT, list TEXT, PRIMARY KEY (name, list)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS versions_of ON versions (manifest);
CREATE INDEX IF NOT EXISTS kinds ON manifests (kind, model)
"""
