#!/usr/bin/env python3
"""Writes kubernetes.json.gz: the published schemas of Kubernetes' built-in kinds, for `apiserver::schema`.

    generate.py DEFINITIONS.json INTERNAL.go K8S.IO kubernetes.json.gz

DEFINITIONS.json  kubernetes_validate/kubernetes-json-schema/v1.37.0-local/_definitions.json of PyPI kubernetes-validate
INTERNAL.go       applyconfigurations/internal/internal.go of Debian golang-k8s-client-go-dev
K8S.IO            usr/share/gocode/src/k8s.io of Debian golang-k8s-{api,apimachinery,apiextensions-apiserver}-dev, unpacked

Its `types_swagger_doc_generated.go` also gives the descriptions where the definitions' have changed since.
They are checked against the SHA-256 below; a newer Kubernetes means new numbers here and in NOTICE.
The first is Kubernetes' OpenAPI v2 turned into JSON schema (nullable type lists, oneOf for quantities, enums for kind and
apiVersion), which is turned back; the second adds the defaults the first has lost; the third says how Go reads and prints a
struct: `x-go` lists [field, Go type, tag] in the order of declaration, tag being `e` (omitempty), `z` (omitzero) or empty.
Output: OpenAPI v2 definitions plus `default` and `x-go`, only those that a served kind reaches, gzip without a time stamp so
that equal input gives equal bytes.
"""

import gzip
import hashlib
import json
import os
import re
import sys

import yaml

SOURCES = {
    "definitions": ("PyPI kubernetes-validate 1.37.0", "e1cc369ddafebc822940791b134361062e1b754a393104857ede92a81f2aa2a2"),
    "types": ("Debian golang-k8s-{api,apimachinery,apiextensions-apiserver}-dev 0.36.4", "d9e6d4802a363331ff2d195a865b79dd0388afe8c659a2084a13d52f712c5c54"),
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


TYPES = [f"api/{g}/{v}" for g, v in [
    ("admissionregistration", "v1"), ("apps", "v1"), ("authentication", "v1"), ("authorization", "v1"), ("autoscaling", "v1"),
    ("autoscaling", "v2"), ("batch", "v1"), ("certificates", "v1"), ("coordination", "v1"), ("core", "v1"), ("discovery", "v1"),
    ("events", "v1"), ("flowcontrol", "v1"), ("networking", "v1"), ("node", "v1"), ("policy", "v1"), ("rbac", "v1"),
    ("scheduling", "v1"), ("storage", "v1")]] + ["apimachinery/pkg/apis/meta/v1", "apiextensions-apiserver/pkg/apis/apiextensions/v1"]


def read(path, what):
    return checked(path, open(path, "rb").read(), what)


def checked(path, data, what):
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


def go_structs(root):
    """{definition: [[field, Go type, tag]]} of every struct, embedded ones unfolded."""
    texts = {}
    for package in TYPES:
        texts[package] = "".join(
            open(f"{root}/{package}/{name}").read() for name in ("types.go", "types_jsonschema.go") if os.path.exists(f"{root}/{package}/{name}"))
    checked(root, "".join(texts.values()).encode(), "types")
    structs = {}
    for package, text in texts.items():
        prefix = "io.k8s." + package.replace("/", ".")
        for name, body in re.findall(r"^type (\w+) struct \{\n(.*?)^\}", text, re.M | re.S):
            structs[f"{prefix}.{name}"] = fields = []
            for line in body.splitlines():
                field = re.match(r'\s+(?:(\w+)\s+)?([\w.*\[\]]+)\s+`[^`]*json:"([^"]*)"', line)
                if not field:
                    continue
                go, (json_name, *options) = field[2], field[3].split(",")
                if not json_name:
                    fields.append([None, go, prefix])
                elif json_name != "-":
                    tag = "z" if "omitzero" in options else "e" if "omitempty" in options else ""
                    fields.append([json_name, qualify(go, prefix.rsplit(".", 1)[1]), tag])
    meta = "io.k8s.apimachinery.pkg.apis.meta.v1"

    def unfold(name):
        for json_name, go, tag in structs.get(name, []):
            if json_name is not None:
                yield [json_name, go, tag]
                continue
            alias, _, plain = go.lstrip("*").rpartition(".")
            home = meta if alias == "metav1" else "io.k8s.api.core.v1" if alias in ("v1", "corev1") else tag
            yield from unfold(f"{home}.{plain}")

    return {name: list(unfold(name)) for name in structs}


def go_docs(root):
    """{(definition, field): description}; the field is empty for the definition itself."""
    docs = {}
    for package in TYPES:
        path = f"{root}/{package}/types_swagger_doc_generated.go"
        if not os.path.exists(path):
            continue
        prefix = "io.k8s." + package.replace("/", ".")
        for name, body in re.findall(r"^var map_(\w+) = map\[string\]string\{\n(.*?)^\}", open(path).read(), re.M | re.S):
            for field, text in re.findall(r'^\s*("(?:[^"\\]|\\.)*"):\s*("(?:[^"\\]|\\.)*"),', body, re.M):
                docs[f"{prefix}.{name}", json.loads(field)] = json.loads(text)
    return docs


def qualify(go, package):
    """Go's name of a type in messages: the package's name before what a package declares."""
    head, base = re.match(r"((?:\*|\[\]|map\[[\w.]+\])*)(.*)", go).groups()
    base = re.sub(r"^(metav1|corev1|apiextensions|autoscalingv1)\.", "v1.", base)
    if "." not in base and base[:1].isupper():
        base = f"{package}.{base}"
    head = re.sub(r"map\[([A-Z]\w*)\]", lambda m: f"map[{package}.{m[1]}]", head)
    return head + base


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


def main(definitions, internal, types, output):
    source = json.loads(read(definitions, "definitions"))["$defs"]
    known = defaults(read(internal, "internal"))
    every = {name: reverse(node) for name, node in source.items()}
    every[QUANTITY] = {"type": "string", "description": "A fixed-point number: digits with an optional decimal or binary suffix, such as 1500m, 2Gi or 1e3."}
    every[INT_OR_STRING] = {"type": "string", "format": "int-or-string", "description": "An integer or a string."}
    for name, fields in go_structs(types).items():
        if name in every:
            every[name]["x-go"] = [field for field in fields if field[0] in every[name].get("properties", {})]
            # The definitions are of a later minor than the Go types: serve what both know.
            known_fields = {field[0] for field in fields}
            for field in set(every[name].get("properties", {})) - known_fields:
                del every[name]["properties"][field]
    for (name, field), text in go_docs(types).items():
        node = every.get(name, {})
        node = node if not field else node.get("properties", {}).get(field)
        # Paragraphs are kept in the definitions alone, so only a change of words counts.
        if node and node.get("description", "").split() != text.split():
            node["description"] = text
    for (name, field), value in known.items():
        if field in every.get(name, {}).get("properties", {}):
            every[name]["properties"][field]["default"] = value

    kept, todo = {}, sorted(name for name in every if SERVED.match(name) and ("x-go" in every[name] or ".pkg." in name))
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
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
