#!/usr/bin/env python3
"""Writes kubernetes.json.gz: the published schemas of Kubernetes' built-in kinds, for `server/schema`.

    generate.py DEFINITIONS.json INTERNAL.go K8S.IO kubernetes.json.gz

DEFINITIONS.json  kubernetes_validate/kubernetes-json-schema/v1.37.0-local/_definitions.json of PyPI kubernetes-validate
INTERNAL.go       applyconfigurations/internal/internal.go of Debian golang-k8s-client-go-dev
K8S.IO            usr/share/gocode/src/k8s.io of Debian golang-k8s-{api,apimachinery,apiextensions-apiserver,kube-aggregator}-dev, unpacked

The inputs are checked against the SHA-256 sums below; for a newer Kubernetes, update the sums here and the versions in NOTICE.
- DEFINITIONS.json is Kubernetes' OpenAPI v2 converted to JSON schema (nullable type lists, oneOf for quantities, enums for kind
  and apiVersion). The conversion is reversed.
- INTERNAL.go adds the defaults that are missing in DEFINITIONS.json.
- K8S.IO adds how Go decodes and prints structs: `x-go` lists [field, Go type, tag] in declaration order. The tag is `e`
  (omitempty), `z` (omitzero) or empty; a fourth element has the path of embedded structs, if any. Descriptions, required fields
  and the values of `+enum` types are also taken from the Go sources.
Output: OpenAPI v2 definitions with `default` and `x-go` of all types reachable from served kinds. The output is reproducible.
"""

import hashlib
import json
import os
import re
import sys

import yaml

import packed

SOURCES = {
    "definitions": ("PyPI kubernetes-validate 1.37.0", "e1cc369ddafebc822940791b134361062e1b754a393104857ede92a81f2aa2a2"),
    "types": ("Debian golang-k8s-{api,apimachinery,apiextensions-apiserver,kube-aggregator}-dev 0.36.4", "c292a267479959dfe27846517ef900fb2470a2d7d97318a434672e64a2fb6761"),
    "quantities": ("Debian golang-k8s-apimachinery-dev 0.36.4", "7108e839060b82ca0c3e7a1b02ee51a19a6f9332ed3766fb05d6445495dc8db7"),
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
# Fields of the Go types that the current definitions no longer have.
GONE = {
    ("io.k8s.api.core.v1.NodeAllocatableResourceClaimStatus", "resources"): {"type": "object", "additionalProperties": {"$ref": QUANTITY}},
}
# Defaults documented elsewhere.
ZEROS = [("io.k8s.api.autoscaling.v1.ScaleSpec", "replicas")]
TYPES = [f"api/{g}/{v}" for g, v in [
    ("admissionregistration", "v1"), ("apps", "v1"), ("authentication", "v1"), ("authorization", "v1"), ("autoscaling", "v1"),
    ("autoscaling", "v2"), ("batch", "v1"), ("certificates", "v1"), ("coordination", "v1"), ("core", "v1"), ("discovery", "v1"),
    ("events", "v1"), ("flowcontrol", "v1"), ("networking", "v1"), ("node", "v1"), ("policy", "v1"), ("rbac", "v1"),
    ("scheduling", "v1"), ("storage", "v1")]] + [
    "apimachinery/pkg/apis/meta/v1", "apiextensions-apiserver/pkg/apis/apiextensions/v1", "kube-aggregator/pkg/apis/apiregistration/v1"]


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


def texts(root):
    """{package: its types.go files}"""
    found = {}
    for package in TYPES:
        names = [f"{root}/{package}/{name}" for name in ("types.go", "types_jsonschema.go")]
        found[package] = "".join(open(name).read() for name in names if os.path.exists(name))
    checked(root, "".join(found.values()).encode(), "types")
    return found


def go_structs(sources):
    """({definition: [field]} of every struct, with embedded structs flattened; {definition: comment}).

    A field is a dict: `json` (its name), `go` (its type), `tag`, `comment` (lines), `via` (embedded structs, joined by dots).
    """
    structs, comments = {}, {}
    for package, text in sources.items():
        prefix = "io.k8s." + package.replace("/", ".")
        for comment, name, body in re.findall(r"((?:^//[^\n]*\n)*)^type (\w+) struct \{\n(.*?)^\}", text, re.M | re.S):
            comments[f"{prefix}.{name}"] = lines_of(comment)
            structs[f"{prefix}.{name}"] = fields = []
            said = ""
            for line in body.splitlines():
                if line.strip().startswith("//"):
                    said += line + "\n"
                    continue
                field = re.match(r'\s+(?:(\w+)\s+)?([\w.*\[\]]+)\s+`[^`]*json:"([^"]*)"', line)
                if field:
                    go, (json_name, *options) = field[2], field[3].split(",")
                    if not json_name:
                        fields.append({"json": None, "go": go, "home": prefix, "name": field[1] or go.rpartition(".")[2]})
                    elif json_name != "-":
                        tag = "z" if "omitzero" in options else "e" if "omitempty" in options else ""
                        go = qualify(go, prefix.rsplit(".", 1)[1])
                        fields.append({"json": json_name, "go": go, "tag": tag, "comment": lines_of(said), "via": ""})
                said = ""
    meta = "io.k8s.apimachinery.pkg.apis.meta.v1"

    def unfold(name):
        for field in structs.get(name, []):
            if field["json"] is not None:
                yield field
                continue
            alias, _, plain = field["go"].lstrip("*").rpartition(".")
            home = meta if alias == "metav1" else "io.k8s.api.core.v1" if alias in ("v1", "corev1") else field["home"]
            for inner in unfold(f"{home}.{plain}"):
                yield inner | {"via": f'{field["name"]}.{inner["via"]}'.rstrip(".")}

    return {name: list(unfold(name)) for name in structs}, comments


def lines_of(comment):
    """Returns the lines of a Go comment without comment markers and directives."""
    lines = [line.strip().removeprefix("//").rstrip() for line in comment.splitlines()]
    lines = [line.removeprefix(" ") for line in lines if not re.match(r"[a-z0-9]+:[a-z0-9]", line)]
    return [line for line, before in zip(lines, ["", *lines]) if line or before]


def description(lines):
    """Formats a comment as kube-openapi's generateDescription does."""
    out = ""
    for line in lines:
        if line == "---":
            break
        if not line:
            out = out[:-1] + "\n\n"
        elif line.lstrip(" ").startswith(("TODO", "+")):
            continue
        elif line.startswith((" ", "\t")):
            out = out[:-1] + "\n" + line + "\n"
        else:
            out += line + " "
    return out.strip()


def quantities(root):
    paths = [f"{root}/apimachinery/pkg/{path}" for path in ("api/resource/quantity.go", "util/intstr/intstr.go")]
    text = checked(root, "".join(open(path).read() for path in paths).encode(), "quantities")
    said = [lines_of(re.search(rf"((?:^//.*\n)+)^type {name} struct", text, re.M)[1]) for name in ("Quantity", "IntOrString")]
    quantity, int_or_string = ({"type": "string", "description": description(lines)} for lines in said)
    return quantity, int_or_string | {"format": "int-or-string"}


def is_required(field):
    marks = {mark for line in field["comment"] for mark in re.findall(r"^\s*\+(optional|required)\b", line)}
    return "required" in marks or not marks and field["tag"] != "e"


def enums_of(sources):
    """{(package, type): {value: comment}} of the string types marked `+enum`. Comments are without the names of the constants."""
    plain = {}
    for package, text in sources.items():
        for comment, name, go, call, value in re.findall(CONSTANT, text, re.M):
            plain[package, name] = (go or call, value, lines_of(comment))
    enums = {}
    for package, text in sources.items():
        for comment, name in re.findall(r"((?:^//.*\n)+)^type (\w+) string\b", text, re.M):
            if not re.search(r"^// ?\+enum\b", comment, re.M):
                continue
            values = enums[package, name] = {}
            for (home, constant), (go, value, lines) in plain.items():
                if home == package and go == name:
                    if not value.startswith('"'):
                        value = plain["api/core/v1", value.removeprefix("v1.")][1]
                    values[json.loads(value)] = re.sub(r"\s+", " ", " ".join(lines).strip().removeprefix(constant)).strip()
    return enums


# Comment, name, type, and either the value or the type to which it is converted.
CONSTANT = r'((?:^[ \t]*//.*\n)*)^[ \t]*(?:const )?(\w+)(?:[ \t]+(\w+))?[ \t]+= (?:(\w+)\()?("[^"]*"|v1\.\w+)'


def possible(values):
    return ["", "Possible enum values:"] + sorted(f" - `{json.dumps(value)}` {comment}".rstrip() for value, comment in values.items())


def qualify(go, package):
    """Returns the type name as Go prints it: types are qualified with the name of their package."""
    head, base = re.match(r"((?:\*|\[\]|map\[[\w.]+\])*)(.*)", go).groups()
    base = re.sub(r"^(metav1|corev1|apiv1|apiextensions|autoscalingv1)\.", "v1.", base)
    if base == "byte":
        base = "uint8"
    if "." not in base and base[:1].isupper():
        base = f"{package}.{base}"
    head = re.sub(r"map\[([A-Z]\w*)\]", lambda m: f"map[{package}.{m[1]}]", head)
    return head + base


def reverse(node):
    """Converts JSON schema back to OpenAPI."""
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


def as_go(node, name, fields, comment, enums):
    """Restricts a definition to the fields of its Go type, which is of an earlier minor version, and takes descriptions from there."""
    properties = node.get("properties", {})
    for field in set(properties) - {field["json"] for field in fields}:
        del properties[field]
    fields = [field for field in fields if field["json"] in properties]
    node["x-go"] = [[field["json"], field["go"], field["tag"]] + ([field["via"]] if field["via"] else []) for field in fields]
    node["description"] = description(comment)
    node["required"] = [field["json"] for field in fields if is_required(field)]
    package = name.rpartition(".")[0].removeprefix("io.k8s.").replace(".", "/")
    for field in fields:
        prop, go = properties[field["json"]], field["go"]
        plain = re.sub(r".*[*.\]]", "", go)
        # A type without a package is in the field's own package or in core.
        values = enums.get((package, plain)) or enums.get(("api/core/v1", plain)) or {}
        lines = field["comment"]
        kind = next((line.removeprefix("+listType=") for line in lines if line.startswith("+listType=")), None)
        if kind and prop.get("x-kubernetes-list-type") != kind:
            prop["x-kubernetes-list-type"] = kind
            for key in ("list-map-keys", "patch-merge-key", "patch-strategy"):
                prop.pop(f"x-kubernetes-{key}", None)
        if go in ("bool", "int32", "int64") and field["tag"] != "e":
            prop["default"] = False if go == "bool" else 0
        if values and go.startswith(("[]", "map[")):
            prop.get("items", prop.get("additionalProperties"))["enum"] = sorted(values)
        elif values:
            prop["enum"] = sorted(values)
            lines = lines + possible(values)
        prop["description"] = description(lines)
    for at in [node, *properties.values()]:
        for key in ("description", "required"):
            if key in at and not at[key]:
                del at[key]


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
    every[QUANTITY], every[INT_OR_STRING] = quantities(types)
    for (name, field), node in GONE.items():
        every[name]["properties"][field] = node
    for name, field in ZEROS:
        every[name]["properties"][field]["default"] = 0
    sources = texts(types)
    structs, comments = go_structs(sources)
    enums = enums_of(sources)
    for name, fields in structs.items():
        if name in every:
            as_go(every[name], name, fields, comments[name], enums)
    for (name, field), value in known.items():
        if field in every.get(name, {}).get("properties", {}):
            every[name]["properties"][field]["default"] = value

    kept, todo = {}, sorted(name for name in every if SERVED.match(name) and ("x-go" in every[name] or ".pkg." in name))
    while todo:
        name = todo.pop()
        if name not in kept:
            kept[name] = every[name]
            todo.extend(refs(every[name]))
    print(f"{len(kept)} definitions, {packed.write(output, kept)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
