"""What the generators of this folder write: JSON, gzip without a time stamp so that the same input gives the same bytes."""

import gzip
import json


def write(output, entries):
    """Writes a map, ordered by its keys, and returns the number of bytes before compression."""
    text = json.dumps(entries, separators=(",", ":"), sort_keys=True).encode()
    with open(output, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(text)
    return len(text)
