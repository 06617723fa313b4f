#!/usr/bin/env python3
"""Writes internal.json.gz: the internal types of kube-apiserver, for error messages that print their values.

    internal.py K8S.IO internal.json.gz

K8S.IO  the folder with `kubernetes/pkg/apis` of Kubernetes 1.36 and, beside it, the `api` of generate.py

Internal types have no JSON names: messages print them with Go names and include zero values. Output: {"core.PodSpec": [[Go name,
Go type, API field]]} for all structs reachable from `ROOTS`. The Go name of an embedded struct is empty. An API field with the
prefix `^` is a field of the containing object. Versioned types, which have JSON names, are given by their definition (`io.k8s.…`).
Sources are checked against the SHA-256 below.
"""

import hashlib
import re
import sys

import packed

SHA256 = "68d3838dcedb2e5ef1a6209addd65aa5bab960c19278a0cabd43c710d5cdd1f3"
# Package → (its API version, its import name).
PACKAGES = {
    "admissionregistration": "v1", "apps": "v1", "autoscaling": "v2", "batch": "v1", "certificates": "v1", "core": "v1",
    "discovery": "v1", "flowcontrol": "v1", "networking": "v1", "node": "v1", "policy": "v1", "rbac": "v1", "scheduling": "v1",
    "storage": "v1",
}
ROOTS = [
    "apps.DaemonSetUpdateStrategy", "apps.DeploymentStrategy", "apps.StatefulSetUpdateStrategy",
    "autoscaling.HorizontalPodAutoscalerBehavior", "batch.PodFailurePolicy", "batch.SuccessPolicy", "certificates.CertificateSigningRequestCondition",
    "core.EphemeralContainer", "core.NodeSelectorTerm", "core.ObjectReference", "core.PersistentVolumeClaimSpec", "core.PersistentVolumeSource",
    "core.PodIP", "core.PodTemplateSpec", "core.ScopeSelector", "core.ServicePort", "core.Taint", "core.VolumeNodeAffinity",
    "flowcontrol.FlowDistinguisherMethod", "networking.IngressClassParametersReference", "policy.PodDisruptionBudgetSpec",
    "rbac.RoleRef", "storage.CSINodeDriver", "storage.VolumeAttachmentSpec",
]
API = {
    "metav1.ObjectMeta": "ObjectMeta", "metav1.LabelSelector": "LabelSelector", "metav1.Condition": "Condition",
    "metav1.ListMeta": "ListMeta", "metav1.TypeMeta": "TypeMeta", "metav1.OwnerReference": "OwnerReference",
}
SCALARS = {"string": "string", "bool": "bool", "int": "number", "int32": "number", "int64": "number", "float64": "number", "types.UID": "string"}
# Fields of the API's PodSpec that the internal types have in PodSecurityContext.
OF_POD = {"HostNetwork": "hostNetwork", "HostPID": "hostPID", "HostIPC": "hostIPC", "ShareProcessNamespace": "shareProcessNamespace", "HostUsers": "hostUsers"}
FIELD = re.compile(r"^\t(?:(\w+)\s+)?((?:\*|\[\]|map\[[\w.]+\])*[\w.]+)(?:\s+`.*`)?\s*(?://.*)?$")


def structs_of(text):
    return re.findall(r"^type (\w+) struct \{\n(.*?)^\}", text, re.M | re.S)


def json_names(text):
    """{struct: {Go name: JSON name}}"""
    return {name: dict(re.findall(r'^\t(\w+)\s+\S+\s+`[^`]*json:"(\w+)', body, re.M)) for name, body in structs_of(text)}


def resolve(go, package, named):
    """Returns the output name of a Go type."""
    head, base = re.match(r"((?:\*|\[\]|map\[[\w.]+\])*)(.*)", go).groups()
    head = re.sub(r"map\[[\w.]+\]", "map:", head)
    base = re.sub(r"^api\.", "core.", base)
    if base in API:
        return head + "io.k8s.apimachinery.pkg.apis.meta.v1." + API[base]
    if head.endswith("[]") and base in ("byte", "uint8"):
        return head[:-2] + "bytes"
    if base in SCALARS:
        return head + SCALARS[base]
    if "." in base and base.split(".")[0] not in PACKAGES:
        return head + {"metav1.Time": "time", "metav1.MicroTime": "time", "resource.Quantity": "quantity", "intstr.IntOrString": "intorstring"}.get(base, "any")
    full = base if "." in base else f"{package}.{base}"
    kind = named.get(full)
    return head + (full if kind == "struct" else resolve(kind, full.split(".")[0], named) if kind else "any")


def main(root, output):
    texts = {package: open(f"{root}/kubernetes/pkg/apis/{package}/types.go").read() for package in PACKAGES}
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()
    if digest != SHA256:
        sys.exit(f"{root}: sha256 {digest}, expected {SHA256}")
    named, bodies, published = {}, {}, {}
    for package, text in texts.items():
        for name, body in structs_of(text):
            named[f"{package}.{name}"], bodies[f"{package}.{name}"] = "struct", body
        for name, go in re.findall(r"^type (\w+) =? ?((?:\*|\[\]|map\[[\w.]+\])*[\w.]+)$", text, re.M):
            if go != "struct":
                named[f"{package}.{name}"] = go
        for name, fields in json_names(open(f"{root}/api/{package}/{PACKAGES[package]}/types.go").read()).items():
            published[f"{package}.{name}"] = fields
    known, todo = {}, list(ROOTS)
    while todo:
        name = todo.pop()
        if name in known:
            continue
        package, fields = name.split(".")[0], []
        for line in bodies[name].splitlines():
            found = FIELD.match(line)
            if not found or line.strip().startswith("//"):
                continue
            go_name, go = found.groups()
            resolved = resolve(go, package, named)
            if name == "core.PodSecurityContext" and go_name in OF_POD:
                path = "^" + OF_POD[go_name]
            elif go_name is None:
                path = "metadata" if go.endswith("ObjectMeta") else ""
            else:
                path = published.get(name, {}).get(go_name) or go_name[0].lower() + go_name[1:]
            # The internal type always has a security context.
            if name == "core.PodSpec" and go_name == "SecurityContext":
                resolved = resolved.lstrip("*")
            fields.append([go_name or "", resolved, path])
            inner = re.sub(r"^(?:\*|\[\]|map:)*", "", resolved)
            if inner in bodies:
                todo.append(inner)
        known[name] = fields
    print(f"{len(known)} structs, {packed.write(output, known)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
