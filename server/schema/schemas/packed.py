"""Output format of the generators in this directory: JSON, compressed by gzip without timestamp for reproducible output."""

import gzip
import json


def write(output, entries):
    """Writes a map sorted by key and returns its uncompressed size in bytes."""
    text = json.dumps(entries, separators=(",", ":"), sort_keys=True).encode()
    with open(output, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(text)
    return len(text)
