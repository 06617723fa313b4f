"""Renders the charts as Helm does, for the tests beside it and for deploy/manifests.

    render.py                     cases as JSON on standard input, what became of each on standard output
    render.py --manifests FOLDER  writes the plain manifests of deploy/manifests there

Helm itself is the library of the package helm-python-sdk, which .ci/tools installs.
"""

import json
import os
import re
import sys

import helm_python as helm

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
NAMESPACE = "crowsnest"
# A document begins where the last one ended.
LEADING = re.compile(r"^(\s*---\n)+")
# Who is at work is not Helm, where somebody applies files.
HELMS_LABELS = re.compile(r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: \S+)\n", re.MULTILINE)

SEVERAL = {
    "replicas": 3,
    "postgres": {"mode": "included"},
    "etcd": {"replicas": 3},
    "kubeApiserver": {"replicas": 2},
    "kubeControllerManager": {"replicas": 2},
}
EXTERNAL = {
    "replicas": 2,
    "controlPlane": {"mode": "external", "external": {"kubeconfigSecret": "control-plane"}},
    "postgres": {"mode": "external", "external": {"urlSecret": "database"}},
    "networkPolicies": {"aggregatedFrom": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]},
}
MANIFESTS = [
    ("crowsnest.yaml", "deploy/chart", "crowsnest", {}, "One of each, the cache in SQLite."),
    ("crowsnest-several.yaml", "deploy/chart", "crowsnest", SEVERAL, "Several of each, the cache in Postgres."),
    ("crowsnest-external.yaml", "deploy/chart", "crowsnest", EXTERNAL,
     "For a control plane and a Postgres that run elsewhere: Secrets control-plane (kubeconfig) and database (url)."),
    ("agent.yaml", "deploy/agent-chart", "crowsnest-agent", {"clusterName": "member"},
     "In a member that nobody can dial: say what it is called, and bring Secret karmada-kubeconfig."),
]


def rendered(chart, release, values):
    """Each template's text, but for the notes; and what Helm's linter says."""
    path = os.path.join(ROOT, chart)
    lint = helm.lint(path, values, strict=True)
    # Charts of ours have no picture.
    said = [message for message in lint["messages"] if message["error"] != "icon is recommended"]
    with helm.Chart.load(path) as loaded:
        files = loaded.render(values, name=release, namespace=NAMESPACE)
    manifests = {name: text for name, text in sorted(files.items()) if name.endswith(".yaml") and text.strip()}
    return manifests, [message["error"] for message in said]


def outcome(case):
    try:
        manifests, lint = rendered(case["chart"], case["release"], case["values"])
    except helm.HelmError as error:
        return {"error": str(error)}
    return {"manifests": manifests, "lint": lint}


def plain(chart, release, values, about):
    manifests, _ = rendered(chart, release, values)
    head = (
        f"# {about}\n# Rendered from {chart} by tests/tests/chart/render.py --manifests; not to be edited.\n"
        f"#   kubectl apply --server-side -n {NAMESPACE} -f FILE\n"
        "apiVersion: v1\nkind: Namespace\nmetadata:\n"
        f"  name: {NAMESPACE}\n  labels:\n    pod-security.kubernetes.io/enforce: restricted\n"
    )
    bodies = (text.strip("\n") for text in manifests.values())
    whole = head + "".join("---\n" + LEADING.sub("", body) + "\n" for body in bodies)
    return HELMS_LABELS.sub("", whole)


def main():
    if sys.argv[1:2] == ["--manifests"]:
        for name, *of in MANIFESTS:
            with open(os.path.join(sys.argv[2], name), "w", encoding="utf-8") as file:
                file.write(plain(*of))
        return
    json.dump([outcome(case) for case in json.load(sys.stdin)], sys.stdout)


main()
