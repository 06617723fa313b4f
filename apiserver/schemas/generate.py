#!/usr/bin/env python3
"""Writes kubernetes.json.gz: the published schemas of Kubernetes' built-in kinds, for `apiserver::schema`.

    generate.py DEFINITIONS.json INTERNAL.go kubernetes.json.gz

DEFINITIONS.json  kubernetes_validate/kubernetes-json-schema/v1.37.0-local/_definitions.json of PyPI kubernetes-validate
INTERNAL.go       applyconfigurations/internal/internal.go of Debian golang-k8s-client-go-dev

Both are checked against the SHA-256 below; a newer Kubernetes means new numbers here and in NOTICE.
The first is Kubernetes' OpenAPI v2 turned into JSON schema (nullable type lists, oneOf for quantities, enums for kind and
apiVersion), which is turned back; the second adds the defaults the first has lost. Output: OpenAPI v2 definitions plus
`default`, only those that a served kind reaches, gzip without a time stamp so that equal input gives equal bytes.
"""

import gzip
import hashlib
import json
import re
import sys

import yaml

SOURCES = {
    "definitions": ("PyPI kubernetes-validate 1.37.0", "e1cc369ddafebc822940791b134361062e1b754a393104857ede92a81f2aa2a2"),
    "internal": ("Debian golang-k8s-client-go-dev 0.36.4-1", "2efef1a9d512a78eb8a5317d1e18ba1848a66985f2a48766653f6c08d97ac19d"),
}
# Groups whose v1 (and autoscaling/v2) kinds are served.
SERVED = re.compile(
    r"^io\.k8s\.api\.(admissionregistration|apps|authentication|authorization|batch|certificates|coordination|core|discovery"
    r"|events|flowcontrol|networking|node|policy|rbac|scheduling|storage|autoscaling)\.(v1|v2)\."
    r"|^io\.k8s\.(apiextensions-apiserver|kube-aggregator)\.pkg\.apis\.[a-z]+\.v1\."
    r"|^io\.k8s\.apimachinery\.pkg\.(apis\.meta\.v1|version|runtime|util|api)\."
)
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"


def read(path, what):
    data = open(path, "rb").read()
    digest = hashlib.sha256(data).hexdigest()
    if digest != SOURCES[what][1]:
        sys.exit(f"{path}: sha256 {digest}, expected {SOURCES[what][1]} ({SOURCES[what][0]})")
    return data.decode()


def defaults(go):
    text = go[go.index("typed.YAMLObject(`") + len("typed.YAMLObject(`") : go.rindex("`)")]
    found = {}
    for named in yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["types"]:
        for field in named.get("map", {}).get("fields", []) or []:
            if "default" in field:
                found[named["name"], field["name"]] = field["default"]
    return found


def reverse(node):
    """JSON schema back to OpenAPI."""
    out = {}
    for key, value in node.items():
        if key == "type" and isinstance(value, list):
            value = next(t for t in value if t != "null")
        elif key == "properties":
            value = {name: reverse(prop) for name, prop in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            value = reverse(value)
        elif key == "$ref":
            value = value.rsplit("/", 1)[1]
        elif key == "enum" or key.startswith("$"):
            continue
        out[key] = value
    return out


def refs(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def main(definitions, internal, output):
    source = json.loads(read(definitions, "definitions"))["$defs"]
    known = defaults(read(internal, "internal"))
    every = {name: reverse(node) for name, node in source.items()}
    every[QUANTITY] = {"type": "string", "description": "A fixed-point number: digits with an optional decimal or binary suffix, such as 1500m, 2Gi or 1e3."}
    every[INT_OR_STRING] = {"type": "string", "format": "int-or-string", "description": "An integer or a string."}
    for (name, field), value in known.items():
        if field in every.get(name, {}).get("properties", {}):
            every[name]["properties"][field]["default"] = value

    kept, todo = {}, sorted(name for name in every if SERVED.match(name))
    while todo:
        name = todo.pop()
        if name not in kept:
            kept[name] = every[name]
            todo.extend(refs(every[name]))
    text = json.dumps(dict(sorted(kept.items())), separators=(",", ":"), sort_keys=True).encode()
    with open(output, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(text)
    print(f"{len(kept)} definitions, {len(text)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
