"""Renders, checks and packages Helm charts with Helm's own library (package helm-python-sdk, which .ci/tools installs).

As a program it reads cases (chart, release, values) as JSON from standard input and prints the result of each.
"""

import json
import os
import sys

try:
    import helm_python as helm
except ImportError:
    sys.exit("helm-python-sdk is missing: run .ci/tools, then use $CROWSNEST_PYTHON")

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
NAMESPACE = "crowsnest"


def render(path, release, values):
    """The text of each template by its path, without notes and empty ones."""
    with helm.Chart.load(path) as chart:
        files = chart.render(values, name=release, namespace=NAMESPACE)
    return {name: text for name, text in sorted(files.items()) if name.endswith(".yaml") and text.strip()}


def lint(path, values):
    """Messages of `helm lint --strict`."""
    messages = [message["error"] for message in helm.lint(path, values, strict=True)["messages"]]
    # These charts have no icon.
    return [message for message in messages if message != "icon is recommended"]


def package(path, folder):
    """Writes the chart's archive into the folder."""
    return helm.package(path, destination=folder)


def result(case):
    path = os.path.join(ROOT, case["chart"])
    try:
        return {"manifests": render(path, case["release"], case["values"]), "lint": lint(path, case["values"])}
    except helm.HelmError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    json.dump([result(case) for case in json.load(sys.stdin)], sys.stdout)
