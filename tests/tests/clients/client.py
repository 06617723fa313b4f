"""Uses an API server with the Python client and checks each response.

    client.py KUBECONFIG NAMESPACE
"""

import sys

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException


def check(what, actual, expected):
    if actual != expected:
        sys.exit(f"{what}: {actual!r}, not {expected!r}")


def expect_error(what, status, reason, call):
    try:
        call()
    except ApiException as error:
        check(what, (error.status, f'"reason":"{reason}"' in error.body), (status, True))
        return
    sys.exit(f"{what} was not refused")


def check_config_maps(core, namespace):
    def config_map(name, data):
        metadata = client.V1ObjectMeta(name=name, labels={"of": "python"})
        return client.V1ConfigMap(metadata=metadata, data=data)

    for n in range(7):
        core.create_namespaced_config_map(namespace, config_map(f"py-{n}", {"n": str(n)}))
    expect_error("a second create", 409, "AlreadyExists", lambda: core.create_namespaced_config_map(namespace, config_map("py-0", {})))
    expect_error("a bad name", 422, "Invalid", lambda: core.create_namespaced_config_map(namespace, config_map("No Name", {})))
    expect_error("a missing object", 404, "NotFound", lambda: core.read_namespaced_config_map("none", namespace))

    live = core.read_namespaced_config_map("py-1", namespace)
    live.data["more"] = "x"
    replaced = core.replace_namespaced_config_map("py-1", namespace, live)
    check("the result of a replacement", replaced.data, {"n": "1", "more": "x"})
    expect_error("an old version", 409, "Conflict", lambda: core.replace_namespaced_config_map("py-1", namespace, live))
    patched = core.patch_namespaced_config_map("py-1", namespace, {"data": {"more": None, "n": "one"}})
    check("the result of a patch", patched.data, {"n": "one"})

    names, token = [], None
    while True:
        page = core.list_namespaced_config_map(namespace, limit=3, label_selector="of=python", _continue=token)
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    check("pages", names, [f"py-{n}" for n in range(7)])

    events = []
    since = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.patch_namespaced_config_map("py-2", namespace, {"data": {"n": "two"}})
    core.delete_namespaced_config_map("py-3", namespace)
    stream = watch.Watch()
    for event in stream.stream(core.list_namespaced_config_map, namespace, resource_version=since, timeout_seconds=30):
        events.append((event["type"], event["object"].metadata.name))
        if len(events) == 2:
            stream.stop()
    check("a watch", events, [("MODIFIED", "py-2"), ("DELETED", "py-3")])

    core.delete_collection_namespaced_config_map(namespace, label_selector="of=python")
    left = core.list_namespaced_config_map(namespace, label_selector="of=python").items
    check("objects after the deletion of a collection", left, [])


def check_deployments(apps, namespace):
    container = client.V1Container(name="main", image="nginx", ports=[client.V1ContainerPort(container_port=80)])
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels={"app": "py"}), spec=client.V1PodSpec(containers=[container])
    )
    spec = client.V1DeploymentSpec(selector=client.V1LabelSelector(match_labels={"app": "py"}), template=template)
    created = apps.create_namespaced_deployment(namespace, client.V1Deployment(metadata=client.V1ObjectMeta(name="py"), spec=spec))
    check("a default", (created.spec.replicas, created.spec.strategy.rolling_update.max_surge), (1, "25%"))
    side = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "busybox"}]}}}}
    patched = apps.patch_namespaced_deployment("py", namespace, side)
    names = sorted(container.name for container in patched.spec.template.spec.containers)
    check("a strategic merge", names, ["main", "side"])
    apps.patch_namespaced_deployment_scale("py", namespace, {"spec": {"replicas": 3}})
    check("a scale", apps.read_namespaced_deployment_scale("py", namespace).spec.replicas, 3)
    dry = apps.patch_namespaced_deployment("py", namespace, {"spec": {"replicas": 9}}, dry_run="All")
    check("a dry run", (dry.spec.replicas, apps.read_namespaced_deployment("py", namespace).spec.replicas), (9, 3))
    apps.delete_namespaced_deployment("py", namespace, propagation_policy="Background")


def check_custom_objects(api_client, namespace):
    group, plural = "clients.example.com", "pythings"
    schema = client.V1JSONSchemaProps(
        type="object",
        properties={
            "spec": client.V1JSONSchemaProps(
                type="object",
                properties={"size": client.V1JSONSchemaProps(type="integer", minimum=1, default=2)},
            )
        },
    )
    definition = client.V1CustomResourceDefinition(
        metadata=client.V1ObjectMeta(name=f"{plural}.{group}"),
        spec=client.V1CustomResourceDefinitionSpec(
            group=group,
            scope="Namespaced",
            names=client.V1CustomResourceDefinitionNames(plural=plural, singular="pything", kind="PyThing"),
            versions=[
                client.V1CustomResourceDefinitionVersion(
                    name="v1", served=True, storage=True, schema=client.V1CustomResourceValidation(open_apiv3_schema=schema)
                )
            ],
        ),
    )
    definitions = client.ApiextensionsV1Api(api_client)
    definitions.create_custom_resource_definition(definition)
    stream = watch.Watch()
    for event in stream.stream(
        definitions.list_custom_resource_definition,
        field_selector=f"metadata.name={plural}.{group}",
        timeout_seconds=30,
    ):
        conditions = event["object"].status.conditions if event["object"].status else None
        if any(condition.type == "Established" and condition.status == "True" for condition in conditions or []):
            stream.stop()
    things = client.CustomObjectsApi(api_client)
    thing = {"apiVersion": f"{group}/v1", "kind": "PyThing", "metadata": {"name": "a"}, "spec": {}}
    created = things.create_namespaced_custom_object(group, "v1", namespace, plural, thing)
    check("a default of a custom resource", created["spec"], {"size": 2})
    body = {"spec": {"size": 0}}
    expect_error("a value that the schema forbids", 422, "Invalid", lambda: things.patch_namespaced_custom_object(group, "v1", namespace, plural, "a", body))
    check("a list", len(things.list_namespaced_custom_object(group, "v1", namespace, plural)["items"]), 1)
    definitions.delete_custom_resource_definition(f"{plural}.{group}")


def main():
    config.load_kube_config(sys.argv[1])
    namespace = sys.argv[2]
    check("the version", client.VersionApi().get_code().major, "1")
    core = client.CoreV1Api()
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))
    check_config_maps(core, namespace)
    check_deployments(client.AppsV1Api(), namespace)
    check_custom_objects(client.ApiClient(), namespace)
    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=client.V1ResourceAttributes(verb="get", resource="pods"))
    )
    response = client.AuthorizationV1Api().create_self_subject_access_review(review)
    check("an access review", response.status.allowed, True)
    core.delete_namespace(namespace)
    print("ok")


main()
