//! The references of each kind.

use super::kubernetes::VOLUME_SECRETS;
use super::*;
use rstest::rstest;
use serde_json::{Value, json};

/// References as `kind.group namespace/name`, in order.
fn format_referenced_objects(api_version: &str, kind: &str, object: &Value) -> Vec<String> {
    let group = group_of(api_version);
    let found = referenced_objects(find_references(&[KUBERNETES, EXTENSIONS], group, kind, object));
    let bytes = object.to_string();
    assert_eq!(
        referenced_objects(find_references(&[KUBERNETES, EXTENSIONS], group, kind, bytes.as_bytes())),
        found,
        "the JSON text and the value have the same references"
    );
    found.iter().map(ToString::to_string).collect()
}

fn pod_spec() -> Value {
    json!({
        "nodeName": "n1", "serviceAccountName": "web", "priorityClassName": "high", "runtimeClassName": "gvisor",
        "imagePullSecrets": [{"name": "pull"}],
        "resourceClaims": [{"name": "a", "resourceClaimName": "gpu"}, {"name": "b", "resourceClaimTemplateName": "gpus"}],
        "containers": [{"name": "c", "env": [{"name": "A", "value": "b"},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "k"}}},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}]}],
        "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "all"}}, {"secretRef": {"name": "all"}}]}],
        "schedulingGroup": {"podGroupName": "gang"},
        "volumes": [{"name": "z", "ephemeral": {"volumeClaimTemplate": {"spec": {
            "storageClassName": "scratch", "volumeAttributesClassName": "gold", "volumeName": "pv-1",
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "old"}, "dataSourceRef": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s", "namespace": "b"}}}}},
            {"name": "a", "configMap": {"name": "files"}}, {"name": "b", "secret": {"secretName": "files"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "d", "projected": {"sources": [{"configMap": {"name": "p"}}, {"secret": {"name": "p"}},
                {"clusterTrustBundle": {"name": "roots"}}, {"serviceAccountToken": {"path": "t"}}]}},
            {"name": "e", "csi": {"driver": "d.example.com", "nodePublishSecretRef": {"name": "csi"}}},
            {"name": "f", "rbd": {"secretRef": {"name": "rbd"}}}, {"name": "g", "scaleIO": {"secretRef": {"name": "io"}}},
            {"name": "h", "azureFile": {"secretName": "azure"}}, {"name": "i", "emptyDir": {}}],
    })
}

/// References of [`pod_spec`] in namespace `a`.
const POD_REFERENCES: &[&str] = &[
    "ConfigMap a/all",
    "ConfigMap a/env",
    "ConfigMap a/files",
    "ConfigMap a/p",
    "Node n1",
    "PersistentVolume pv-1",
    "PersistentVolumeClaim a/data",
    "PersistentVolumeClaim a/old",
    "Secret a/all",
    "Secret a/azure",
    "Secret a/csi",
    "Secret a/env",
    "Secret a/files",
    "Secret a/io",
    "Secret a/p",
    "Secret a/pull",
    "Secret a/rbd",
    "ServiceAccount a/web",
    "ClusterTrustBundle.certificates.k8s.io roots",
    "RuntimeClass.node.k8s.io gvisor",
    "ResourceClaim.resource.k8s.io a/gpu",
    "ResourceClaimTemplate.resource.k8s.io a/gpus",
    "PodGroup.scheduling.k8s.io a/gang",
    "PriorityClass.scheduling.k8s.io high",
    "VolumeSnapshot.snapshot.storage.k8s.io b/s",
    "CSIDriver.storage.k8s.io d.example.com",
    "StorageClass.storage.k8s.io scratch",
    "VolumeAttributesClass.storage.k8s.io gold",
];

#[rstest]
#[case::pod("v1", "Pod", json!({"spec": pod_spec()}))]
#[case::deployment("apps/v1", "Deployment", json!({"spec": {"template": {"spec": pod_spec()}}}))]
#[case::controller("v1", "ReplicationController", json!({"spec": {"template": {"spec": pod_spec()}}}))]
#[case::cron_job("batch/v1", "CronJob", json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": pod_spec()}}}}}))]
#[case::template("v1", "PodTemplate", json!({"template": {"spec": pod_spec()}}))]
#[case::rollout("argoproj.io/v1alpha1", "Rollout", json!({"spec": {"template": {"spec": pod_spec()}}}))]
fn pods_and_their_templates_have_equal_references(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] mut object: Value,
) {
    object["metadata"] = json!({"name": "x", "namespace": "a"});
    assert_eq!(format_referenced_objects(api_version, kind, &object), POD_REFERENCES);
}

#[rstest]
#[case::allocated_claim("v1", "Pod", json!({"status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "web-b-x"}]}}),
    &["ResourceClaim.resource.k8s.io a/web-b-x"])]
#[case::extended_resources("v1", "Pod", json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "web-gpu-x"}}}),
    &["ResourceClaim.resource.k8s.io a/web-gpu-x"])]
#[case::node_allocatable_resources("v1", "Pod", json!({"status": {"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "cpus"}]}}),
    &["ResourceClaim.resource.k8s.io a/cpus"])]
#[case::claim_templates("apps/v1", "StatefulSet", json!({"spec": {"volumeClaimTemplates": [{"spec": {
    "storageClassName": "fast", "volumeAttributesClassName": "gold", "dataSource": {"kind": "PersistentVolumeClaim", "name": "old"},
    "volumeName": "pv-1", "dataSourceRef": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}}}]}}),
    &["PersistentVolume pv-1", "PersistentVolumeClaim a/old", "VolumeSnapshot.snapshot.storage.k8s.io a/s", "StorageClass.storage.k8s.io fast",
        "VolumeAttributesClass.storage.k8s.io gold"])]
#[case::changing_claim("v1", "PersistentVolumeClaim", json!({"status": {"currentVolumeAttributesClassName": "silver",
    "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold"}}}),
    &["VolumeAttributesClass.storage.k8s.io gold", "VolumeAttributesClass.storage.k8s.io silver"])]
#[case::pod_group("scheduling.k8s.io/v1alpha2", "PodGroup", json!({"spec": {"priorityClassName": "high",
    "podGroupTemplateRef": {"workload": {"workloadName": "train", "podGroupTemplateName": "workers"}},
    "resourceClaims": [{"resourceClaimName": "gpu"}, {"resourceClaimTemplateName": "gpus"}]},
    "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "gpus-x"}]}}),
    &["ResourceClaim.resource.k8s.io a/gpu", "ResourceClaim.resource.k8s.io a/gpus-x", "ResourceClaimTemplate.resource.k8s.io a/gpus",
        "PriorityClass.scheduling.k8s.io high", "Workload.scheduling.k8s.io a/train"])]
#[case::workload("scheduling.k8s.io/v1alpha2", "Workload", json!({"spec": {
    "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
    "podGroupTemplates": [{"priorityClassName": "high", "resourceClaims": [{"resourceClaimName": "gpu"}, {"resourceClaimTemplateName": "gpus"}]}]}}),
    &["Job.batch a/train", "ResourceClaim.resource.k8s.io a/gpu", "ResourceClaimTemplate.resource.k8s.io a/gpus",
        "PriorityClass.scheduling.k8s.io high"])]
#[case::pod_certificate("certificates.k8s.io/v1beta1", "PodCertificateRequest",
    json!({"spec": {"podName": "web-0", "nodeName": "n1", "serviceAccountName": "web"}}), &["Node n1", "Pod a/web-0", "ServiceAccount a/web"])]
#[case::lease_candidate("coordination.k8s.io/v1beta1", "LeaseCandidate", json!({"spec": {"leaseName": "scheduler"}}),
    &["Lease.coordination.k8s.io a/scheduler"])]
#[case::stateful_set("apps/v1", "StatefulSet", json!({"spec": {"serviceName": "db"}}), &["Service a/db"])]
#[case::autoscaler("autoscaling/v2", "HorizontalPodAutoscaler", json!({"spec": {
    "scaleTargetRef": {"apiVersion": "platform.example.com/v1", "kind": "Deployment", "name": "web"},
    "metrics": [{"object": {"describedObject": {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "front"}}}]}}),
    &["Ingress.networking.k8s.io a/front", "Deployment.platform.example.com web", "Deployment.platform.example.com a/web"])]
#[case::autoscaler_of_a_built_in_kind("autoscaling/v1", "HorizontalPodAutoscaler",
    json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}}}), &["Deployment.apps a/web"])]
#[case::ingress("networking.k8s.io/v1", "Ingress", json!({"spec": {"ingressClassName": "nginx",
    "defaultBackend": {"resource": {"apiGroup": "k8s.example.com", "kind": "Bucket", "name": "static"}},
    "rules": [{"host": "a"}, {"http": {"paths": [{"backend": {"service": {"name": "web"}}}]}}], "tls": [{"secretName": "tls"}, {}]}}),
    &["Secret a/tls", "Service a/web", "Bucket.k8s.example.com static", "Bucket.k8s.example.com a/static",
        "IngressClass.networking.k8s.io nginx"])]
#[case::ingress_with_nulls("networking.k8s.io/v1", "Ingress",
    json!({"spec": {"rules": null, "tls": [{"secretName": null}, {"secretName": "tls"}]}}), &["Secret a/tls"])]
#[case::of_another_shape("networking.k8s.io/v1", "Ingress", json!({"spec": "none"}), &[])]
#[case::of_another_group("x.io/v1", "Ingress", json!({"spec": {"tls": [{"secretName": "tls"}]}}), &[])]
#[case::claim("v1", "PersistentVolumeClaim", json!({"spec": {"volumeName": "pv-1", "storageClassName": "fast",
    "dataSource": {"kind": "PersistentVolumeClaim", "name": "old"},
    "dataSourceRef": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s", "namespace": "b"}}}),
    &["PersistentVolume pv-1", "PersistentVolumeClaim a/old", "VolumeSnapshot.snapshot.storage.k8s.io b/s",
        "StorageClass.storage.k8s.io fast"])]
#[case::endpoint_slice("discovery.k8s.io/v1", "EndpointSlice", json!({"endpoints": [{"nodeName": "n",
    "targetRef": {"kind": "Pod", "name": "web-0", "namespace": "a"}}, {"targetRef": {"kind": "Node", "name": "n1"}}, {}]}),
    &["Node n1", "Pod a/web-0"])]
#[case::role_binding("rbac.authorization.k8s.io/v1", "RoleBinding", json!({
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "edit"},
    "subjects": [{"kind": "User", "name": "ann"}, {"kind": "ServiceAccount", "name": "own"},
        {"kind": "ServiceAccount", "name": "other", "namespace": "b"}]}),
    &["ServiceAccount a/own", "ServiceAccount b/other", "Role.rbac.authorization.k8s.io a/edit"])]
#[case::cluster_role("rbac.authorization.k8s.io/v1", "RoleBinding",
    json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}}),
    &["ClusterRole.rbac.authorization.k8s.io view"])]
#[case::account("v1", "ServiceAccount", json!({"secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "p"}]}),
    &["Secret a/p", "Secret a/s"])]
#[case::resource_claim("resource.k8s.io/v1", "ResourceClaim", json!({"spec": {"devices": {"requests": [
    {"exactly": {"deviceClassName": "gpu"}}, {"firstAvailable": [{"deviceClassName": "tpu"}]}]}},
    "status": {"reservedFor": [{"resource": "pods", "name": "web-0"}, {"resource": "others", "name": "x"},
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train"}]}}),
    &["Pod a/web-0", "DeviceClass.resource.k8s.io gpu", "DeviceClass.resource.k8s.io tpu", "PodGroup.scheduling.k8s.io a/train"])]
#[case::route("gateway.networking.k8s.io/v1", "HTTPRoute", json!({"spec": {"parentRefs": [{"name": "edge", "namespace": "infra"},
    {"group": "", "kind": "Service", "name": "mesh"}], "rules": [{"backendRefs": [{"name": "web", "port": 80},
        {"group": "x.io", "kind": "Bucket", "name": "b", "namespace": "c"}], "filters": [{"requestMirror": {"backendRef": {"name": "copy"}}}]}]}}),
    &["Service a/copy", "Service a/mesh", "Service a/web", "Gateway.gateway.networking.k8s.io infra/edge", "Bucket.x.io c/b"])]
#[case::gateway("gateway.networking.k8s.io/v1", "Gateway", json!({"spec": {"gatewayClassName": "envoy",
    "listeners": [{"tls": {"certificateRefs": [{"name": "tls"}, {"name": "shared", "namespace": "certs"}]}}]}}),
    &["Secret a/tls", "Secret certs/shared", "GatewayClass.gateway.networking.k8s.io envoy"])]
#[case::gateway_tls("gateway.networking.k8s.io/v1", "Gateway", json!({"spec": {"tls": {
    "backend": {"clientCertificateRef": {"name": "client"}},
    "frontend": {"default": {"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}},
        "perPort": [{"port": 443, "tls": {"validation": {"caCertificateRefs": [{"name": "port-ca"}]}}}]}}}}),
    &["ConfigMap a/ca", "ConfigMap a/port-ca", "Secret a/client"])]
#[case::listener_set("gateway.networking.k8s.io/v1", "ListenerSet", json!({"spec": {"parentRef": {"name": "edge"},
    "listeners": [{"tls": {"certificateRefs": [{"name": "tls"}]}}]}}),
    &["Secret a/tls", "Gateway.gateway.networking.k8s.io a/edge"])]
#[case::external_authorization("gateway.networking.k8s.io/v1", "HTTPRoute",
    json!({"spec": {"rules": [{"filters": [{"externalAuth": {"backendRef": {"name": "auth", "port": 80}}}]}]}}), &["Service a/auth"])]
#[case::certificate("cert-manager.io/v1", "Certificate", json!({"spec": {"secretName": "tls", "issuerRef": {"name": "ca"}}}),
    &["Secret a/tls", "Issuer.cert-manager.io a/ca"])]
#[case::cluster_issuer("cert-manager.io/v1", "Certificate",
    json!({"spec": {"issuerRef": {"name": "ca", "kind": "ClusterIssuer", "group": "cert-manager.io"}}}),
    &["ClusterIssuer.cert-manager.io ca"])]
#[case::external_secret("external-secrets.io/v1", "ExternalSecret",
    json!({"spec": {"secretStoreRef": {"name": "vault", "kind": "ClusterSecretStore"}, "target": {"name": "db"}}}),
    &["Secret a/db", "ClusterSecretStore.external-secrets.io vault"])]
#[case::flux("helm.toolkit.fluxcd.io/v2", "HelmRelease",
    json!({"spec": {"chart": {"spec": {"sourceRef": {"kind": "HelmRepository", "name": "charts", "namespace": "flux-system"}}}}}),
    &["HelmRepository.source.toolkit.fluxcd.io flux-system/charts"])]
#[case::network_policy("networking.k8s.io/v1", "NetworkPolicy", json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}), &[])]
fn references_of_namespaced_kinds_are_found(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] mut object: Value,
    #[case] expected: &[&str],
) {
    object["metadata"] = json!({"name": "x", "namespace": "a"});
    assert_eq!(format_referenced_objects(api_version, kind, &object), expected);
}

#[rstest]
#[case::volume("v1", "PersistentVolume", json!({"spec": {"storageClassName": "fast",
    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "b", "name": "data"},
    "csi": {"driver": "d", "nodeStageSecretRef": {"name": "s", "namespace": "c"}}}}),
    &["PersistentVolumeClaim b/data", "Secret c/s", "CSIDriver.storage.k8s.io d", "StorageClass.storage.k8s.io fast"])]
#[case::azure_volume("v1", "PersistentVolume", json!({"spec": {"azureFile": {"secretName": "s", "secretNamespace": "c"}}}),
    &["Secret c/s"])]
#[case::storage_class("storage.k8s.io/v1", "StorageClass", json!({"parameters": {
    "csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "c",
    "csi.storage.k8s.io/node-stage-secret-name": "${pvc.name}", "csi.storage.k8s.io/node-stage-secret-namespace": "c"}}),
    &["Secret c/s"])]
#[case::storage_driver("storage.k8s.io/v1", "StorageClass", json!({"provisioner": "d"}), &["CSIDriver.storage.k8s.io d"])]
#[case::attributes_driver("storage.k8s.io/v1", "VolumeAttributesClass", json!({"driverName": "d"}), &["CSIDriver.storage.k8s.io d"])]
#[case::snapshot_driver("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", json!({"driver": "d"}), &["CSIDriver.storage.k8s.io d"])]
#[case::resource_slice("resource.k8s.io/v1", "ResourceSlice", json!({"spec": {"devices": [{"nodeName": "n1"}, {"nodeName": "n2"}]}}),
    &["Node n1", "Node n2"])]
#[case::attachment("storage.k8s.io/v1", "VolumeAttachment",
    json!({"spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "pv-1"}}}),
    &["Node n1", "PersistentVolume pv-1", "CSIDriver.storage.k8s.io d"])]
#[case::attachment_of_an_inline_volume("storage.k8s.io/v1", "VolumeAttachment", json!({"spec": {"attacher": "d", "source": {"inlineVolumeSpec": {
    "csi": {"driver": "d", "controllerPublishSecretRef": {"name": "s", "namespace": "c"}}}}}}),
    &["Secret c/s", "CSIDriver.storage.k8s.io d"])]
#[case::pool_status("resource.k8s.io/v1alpha3", "ResourcePoolStatusRequest", json!({"status": {"pools": [{"nodeName": "n1"}]}}), &["Node n1"])]
#[case::role_binding("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", json!({
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "b"}, {"kind": "Group", "name": "staff"}]}),
    &["ServiceAccount b/sa", "ClusterRole.rbac.authorization.k8s.io view"])]
#[case::webhooks("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", json!({"webhooks": [
    {"clientConfig": {"service": {"name": "hook", "namespace": "b"}}}, {"clientConfig": {"url": "https://x"}}]}),
    &["Service b/hook"])]
#[case::api_service("apiregistration.k8s.io/v1", "APIService", json!({"spec": {"service": {"name": "api", "namespace": "b"}}}),
    &["Service b/api"])]
#[case::local_api_service("apiregistration.k8s.io/v1", "APIService", json!({"spec": {"service": null}}), &[])]
#[case::definition("apiextensions.k8s.io/v1", "CustomResourceDefinition",
    json!({"spec": {"conversion": {"webhook": {"clientConfig": {"service": {"name": "hook", "namespace": "b"}}}}}}),
    &["Service b/hook"])]
#[case::policy_binding("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding",
    json!({"spec": {"policyName": "limits", "paramRef": {"name": "p", "namespace": "b"}}}),
    &["ValidatingAdmissionPolicy.admissionregistration.k8s.io limits"])]
#[case::ingress_class("networking.k8s.io/v1", "IngressClass", json!({"spec": {"parameters":
    {"apiGroup": "x.io", "kind": "Settings", "name": "s", "namespace": "b", "scope": "Namespace"}}}), &["Settings.x.io b/s"])]
#[case::gateway_class("gateway.networking.k8s.io/v1", "GatewayClass",
    json!({"spec": {"parametersRef": {"group": "x.io", "kind": "Settings", "name": "s"}}}), &["Settings.x.io s"])]
#[case::flow_schema("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", json!({"spec": {"priorityLevelConfiguration": {"name": "high"},
    "rules": [{"subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": "sa", "namespace": "b"}}, {"kind": "User"}]}]}}),
    &["ServiceAccount b/sa", "PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io high"])]
#[case::issuer_of_a_cluster("cert-manager.io/v1", "ClusterIssuer", json!({"spec": {"ca": {"secretName": "s"}}}), &[])]
fn references_of_cluster_scoped_kinds_are_found(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] mut object: Value,
    #[case] expected: &[&str],
) {
    object["metadata"] = json!({"name": "x"});
    assert_eq!(format_referenced_objects(api_version, kind, &object), expected);
}

/// Each volume source refers to a Secret or to Endpoints.
#[rstest]
#[case::volume("v1", "PersistentVolume", "spec")]
#[case::inline_volume("storage.k8s.io/v1", "VolumeAttachment", "spec.source.inlineVolumeSpec")]
fn volume_sources_have_references(#[case] api_version: &str, #[case] kind: &str, #[case] path: &str) {
    let with_secret = VOLUME_SECRETS.iter().map(|field| (*field, "", "Secret", json!({"name": "s", "namespace": "c"})));
    let others = [
        ("azureFile", ".secretName", "Secret", json!({"secretName": "s", "secretNamespace": "c"})),
        ("glusterfs", ".endpoints", "Endpoints", json!({"endpoints": "s", "endpointsNamespace": "c"})),
    ];
    for (field, name_field, referenced_kind, source) in with_secret.chain(others) {
        let fields = path.split('.').chain(field.split('.')).rev();
        let object = fields.fold(source, |value, field| json!({ field: value }));
        let found = find_references(&[KUBERNETES], group_of(api_version), kind, &object);
        let found: Vec<String> =
            found.iter().map(|reference| format!("{} {}", reference.field_path(), reference.object)).collect();
        assert_eq!(found, [format!("{path}.{field}{name_field} {referenced_kind} c/s")]);
    }
}

/// The kubelet reads objects of sources without a namespace in the namespace of the claim.
#[test]
fn volume_sources_without_a_namespace_refer_to_that_of_the_claim() {
    let secrets = VOLUME_SECRETS.iter().map(|field| (*field, "Secret", json!({"name": "s"})));
    let others = [
        ("azureFile", "Secret", json!({"secretName": "s"})),
        ("azureFile", "Secret", json!({"secretName": "s", "secretNamespace": null})),
        ("glusterfs", "Endpoints", json!({"endpoints": "s"})),
    ];
    for (field, kind, source) in secrets.chain(others) {
        let spec = field.split('.').rev().fold(source, |value, field| json!({ field: value }));
        let mut volume = json!({"metadata": {"name": "x"}, "spec": spec});
        let unbound = format_referenced_objects("v1", "PersistentVolume", &volume);
        volume["spec"]["claimRef"] = json!({"namespace": "b", "name": "data"});
        let mut expected = ["PersistentVolumeClaim b/data".to_owned(), format!("{kind} b/s")];
        expected.sort();
        let bound = format_referenced_objects("v1", "PersistentVolume", &volume);
        assert_eq!((unbound, bound), (Vec::new(), expected.to_vec()), "{field}");
    }
}

/// Fields and relations of references, as `RELATION field -> kind name`.
fn format_references(api_version: &str, kind: &str, object: &Value) -> Vec<String> {
    let found = find_references(&[KUBERNETES, EXTENSIONS], group_of(api_version), kind, object);
    found
        .iter()
        .map(|reference| {
            let object = &reference.object;
            format!("{:?} {} -> {} {}", reference.relation, reference.field_path(), object.kind, object.name)
        })
        .collect()
}

#[rstest]
#[case::pod("v1", "Pod", json!({"metadata": {"namespace": "a"}, "spec": {"nodeName": "n1",
    "volumes": [{"secret": {"secretName": "s"}}],
    "initContainers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]}}),
    &["RunsOn spec.nodeName -> Node n1", "Uses spec.initContainers[].envFrom[].secretRef -> Secret s", "Uses spec.volumes[].secret -> Secret s"])]
#[case::template("apps/v1", "Deployment", json!({"metadata": {"namespace": "a"},
    "spec": {"template": {"spec": {"serviceAccountName": "web"}}}}),
    &["Uses spec.template.spec.serviceAccountName -> ServiceAccount web"])]
#[case::ingress("networking.k8s.io/v1", "Ingress", json!({"metadata": {"namespace": "a"}, "spec": {"tls": [{"secretName": "t"}],
    "defaultBackend": {"service": {"name": "web"}}}}),
    &["Uses spec.tls[].secretName -> Secret t", "RoutesTo spec.defaultBackend.service.name -> Service web"])]
#[case::route("gateway.networking.k8s.io/v1", "HTTPRoute", json!({"metadata": {"namespace": "a"}, "spec": {
    "parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "web"}]}]}}),
    &["RoutesTo spec.rules[].backendRefs[] -> Service web", "RoutedBy spec.parentRefs[] -> Gateway edge"])]
#[case::slice("discovery.k8s.io/v1", "EndpointSlice", json!({"metadata": {"namespace": "a"},
    "endpoints": [{"targetRef": {"kind": "Pod", "namespace": "a", "name": "web-0"}}]}),
    &["RoutesTo endpoints[].targetRef -> Pod web-0"])]
#[case::binding("rbac.authorization.k8s.io/v1", "RoleBinding", json!({"metadata": {"namespace": "a"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
    "subjects": [{"kind": "ServiceAccount", "namespace": "b", "name": "s"}]}),
    &["Subject subjects[kind=ServiceAccount] -> ServiceAccount s", "RoleRef roleRef -> Role r"])]
fn references_have_relation_and_field(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] object: Value,
    #[case] expected: &[&str],
) {
    assert_eq!(format_references(api_version, kind, &object), expected);
}

/// Every kind of route refers to its Gateways and its backends.
#[rstest]
fn routes_join_gateways_and_services(
    #[values("GRPCRoute", "HTTPRoute", "TCPRoute", "TLSRoute", "UDPRoute")] kind: &str,
    #[values("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2")] api_version: &str,
) {
    let object = json!({"metadata": {"namespace": "a"}, "spec": {"parentRefs": [{"name": "edge", "sectionName": "web"}],
        "rules": [{"backendRefs": [{"name": "web", "port": 80, "weight": 1}, {"name": "canary", "namespace": "b"}]}]}});
    let expected = [
        "RoutesTo spec.rules[].backendRefs[] -> Service web",
        "RoutesTo spec.rules[].backendRefs[] -> Service canary",
        "RoutedBy spec.parentRefs[] -> Gateway edge",
    ];
    assert_eq!(format_references(api_version, kind, &object), expected);
}

#[rstest]
#[case::name(json!({"spec": {"dbs": [{"name": "one"}, {"name": "two"}]}}), "spec.dbs[].name", &["Uses spec.dbs[].name -> Database one", "Uses spec.dbs[].name -> Database two"])]
#[case::reference(json!({"spec": {"db": {"name": "one", "kind": "Replica"}}}), "spec.db", &["Uses spec.db -> Replica one"])]
#[case::nothing(json!({"spec": {}}), "spec.db", &[])]
fn custom_rules_find_references(#[case] mut object: Value, #[case] path: &str, #[case] expected: &[&str]) {
    object["metadata"] = json!({"namespace": "a"});
    let rule: CustomRule = serde_json::from_value(
        json!({"group": "x.io", "kind": "App", "path": path, "target": {"group": "", "kind": "Database"}}),
    )
    .unwrap();
    let found = find_custom_references(&[rule], "x.io", "App", &object);
    // The scope of the kind is unknown, so a name may be that of a cluster-scoped object.
    let found = found.iter().filter(|reference| reference.object.namespace.is_some());
    let found: Vec<String> = found
        .map(|reference| {
            let object = &reference.object;
            format!("{:?} {} -> {} {}", reference.relation, reference.field_path(), object.kind, object.name)
        })
        .collect();
    assert_eq!(found, expected);
}
