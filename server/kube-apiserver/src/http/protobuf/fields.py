#!/usr/bin/env python3
"""Writes fields.txt: the field numbers of Kubernetes' protobuf messages, for `mod.rs`.

    fields.py K8S.IO > fields.txt

K8S.IO  folder with the Go modules k8s.io/{api,apimachinery,apiextensions-apiserver,kube-aggregator} v0.36.1 in `api`, `apimachinery`, …

JSON names and field numbers are the `json` and `protobuf` tags of the Go structs. Types with custom JSON marshalling (JSON,
JSONSchemaPropsOr…, Quantity, Time, …) have no JSON names; `mod.rs` handles them. The packages are those of `generate.py`.
"""

import os
import re
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../schema/schemas"))
from generate import TYPES

STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.M | re.S)
FIELD = re.compile(r'^\s+(?:\w+\s+)?([\w.*\[\]]+)\s+`(?=[^`]*protobuf:"\w+,(\d+),)[^`]*json:"([^",]*)', re.M)


def messages(package, root):
    """(message, {number: entry}) of each struct of a package."""
    folder = os.path.join(root, package)
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".go") or name.endswith("_test.go") or name.startswith(("generated", "zz_generated")):
            continue
        for message, body in STRUCT.findall(open(os.path.join(folder, name)).read()):
            fields = {}
            for go, number, json_name in FIELD.findall(body):
                inlined = go.lstrip("*").rpartition(".")[2]
                fields[int(number)] = json_name if json_name else f"+{inlined}"
            if fields and "-" not in fields.values():
                yield message, fields


def main(root):
    for package in sorted(TYPES, key=lambda package: f"io.k8s.{package}"):
        print(f"[io.k8s.{package.replace('/', '.')}]")
        for message, fields in sorted(messages(package, root)):
            print(message, *(fields.get(number, "-") for number in range(1, max(fields) + 1)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
