//! References of Kubernetes' own kinds. Pods and pod templates are in `pod.rs`.
//!
//! The table does not contain selectors, which name no object; `paramRef` of admission policy bindings, whose kind is
//! stated only in the policy; and references to objects that a controller creates for the referring object.

use super::Relation::{RoleRef, RoutesTo, Subject};
use super::rule::{Kind, Rule};

pub(super) const CLUSTER_TRUST_BUNDLE: Kind = ("certificates.k8s.io", "ClusterTrustBundle");
pub(super) const CONFIG_MAP: Kind = ("", "ConfigMap");
pub(super) const CSI_DRIVER: Kind = ("storage.k8s.io", "CSIDriver");
pub(super) const ENDPOINTS: Kind = ("", "Endpoints");
pub(super) const NODE: Kind = ("", "Node");
pub(super) const PERSISTENT_VOLUME: Kind = ("", "PersistentVolume");
pub(super) const PERSISTENT_VOLUME_CLAIM: Kind = ("", "PersistentVolumeClaim");
pub(super) const POD: Kind = ("", "Pod");
pub(super) const PRIORITY_CLASS: Kind = ("scheduling.k8s.io", "PriorityClass");
pub(super) const RESOURCE_CLAIM: Kind = ("resource.k8s.io", "ResourceClaim");
pub(super) const RESOURCE_CLAIM_TEMPLATE: Kind = ("resource.k8s.io", "ResourceClaimTemplate");
pub(super) const RUNTIME_CLASS: Kind = ("node.k8s.io", "RuntimeClass");
pub(super) const SECRET: Kind = ("", "Secret");
pub(super) const SERVICE: Kind = ("", "Service");
pub(super) const SERVICE_ACCOUNT: Kind = ("", "ServiceAccount");
const DEVICE_CLASS: Kind = ("resource.k8s.io", "DeviceClass");
const INGRESS_CLASS: Kind = ("networking.k8s.io", "IngressClass");
const PRIORITY_LEVEL: Kind = ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration");
const STORAGE_CLASS: Kind = ("storage.k8s.io", "StorageClass");
const VOLUME_ATTRIBUTES_CLASS: Kind = ("storage.k8s.io", "VolumeAttributesClass");
/// Default group of references to roles, which always state their kind.
const ROLE_DEFAULT: Kind = ("rbac.authorization.k8s.io", "");
/// Default group of references to data sources, which always state their kind.
const DATA_SOURCE_DEFAULT: Kind = ("", "");

/// Kinds with a pod template at `spec.template`.
const POD_TEMPLATE_KINDS: &[Kind] = &[
    ("", "ReplicationController"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("batch", "Job"),
];
const CLAIM: &[Kind] = &[PERSISTENT_VOLUME_CLAIM];
const VOLUME: &[Kind] = &[PERSISTENT_VOLUME];
const CLAIM_AND_VOLUME: &[Kind] = &[PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME];
const INGRESS: &[Kind] = &[("networking.k8s.io", "Ingress")];
const AUTOSCALER: &[Kind] = &[("autoscaling", "HorizontalPodAutoscaler")];
const ROLE_BINDINGS: &[Kind] =
    &[("rbac.authorization.k8s.io", "RoleBinding"), ("rbac.authorization.k8s.io", "ClusterRoleBinding")];
const WEBHOOKS: &[Kind] = &[
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
];
const CUSTOM_RESOURCE_DEFINITION: &[Kind] = &[("apiextensions.k8s.io", "CustomResourceDefinition")];
const STORAGE_CLASSES: &[Kind] = &[STORAGE_CLASS];
const ATTACHMENT: &[Kind] = &[("storage.k8s.io", "VolumeAttachment")];
const FLOW_SCHEMA: &[Kind] = &[("flowcontrol.apiserver.k8s.io", "FlowSchema")];

/// References of Kubernetes' own kinds.
pub const KUBERNETES: &[Rule] = &[
    // Workloads.
    Rule::pod_spec(POD_TEMPLATE_KINDS, "spec.template.spec"),
    Rule::pod_spec(&[("batch", "CronJob")], "spec.jobTemplate.spec.template.spec"),
    Rule::pod_spec(&[("", "PodTemplate")], "template.spec"),
    Rule::name(&[("apps", "StatefulSet")], "spec.serviceName", SERVICE),
    Rule::typed_reference(AUTOSCALER, "spec.scaleTargetRef"),
    Rule::typed_reference(AUTOSCALER, "spec.metrics[].object.describedObject"),
    // Network.
    Rule::name(INGRESS, "spec.ingressClassName", INGRESS_CLASS),
    Rule::name(INGRESS, "spec.defaultBackend.service.name", SERVICE).with_relation(RoutesTo),
    Rule::typed_reference(INGRESS, "spec.defaultBackend.resource").with_relation(RoutesTo),
    Rule::name(INGRESS, "spec.rules[].http.paths[].backend.service.name", SERVICE).with_relation(RoutesTo),
    Rule::typed_reference(INGRESS, "spec.rules[].http.paths[].backend.resource").with_relation(RoutesTo),
    Rule::name(INGRESS, "spec.tls[].secretName", SECRET),
    Rule::typed_reference(&[INGRESS_CLASS], "spec.parameters"),
    Rule::typed_reference(&[("discovery.k8s.io", "EndpointSlice")], "endpoints[].targetRef").with_relation(RoutesTo),
    Rule::typed_reference(&[ENDPOINTS], "subsets[].addresses[].targetRef").with_relation(RoutesTo),
    Rule::typed_reference(&[ENDPOINTS], "subsets[].notReadyAddresses[].targetRef").with_relation(RoutesTo),
    // This reference has the field `resource` instead of `kind`. Kubernetes creates IPAddresses only for Services.
    Rule::reference(&[("networking.k8s.io", "IPAddress")], "spec.parentRef", SERVICE),
    // Storage.
    Rule::name(CLAIM, "spec.volumeName", PERSISTENT_VOLUME),
    Rule::name(CLAIM_AND_VOLUME, "spec.storageClassName", STORAGE_CLASS),
    Rule::name(CLAIM_AND_VOLUME, "spec.volumeAttributesClassName", VOLUME_ATTRIBUTES_CLASS),
    Rule::reference(CLAIM, "spec.dataSource", DATA_SOURCE_DEFAULT),
    Rule::reference(CLAIM, "spec.dataSourceRef", DATA_SOURCE_DEFAULT),
    Rule::reference(VOLUME, "spec.claimRef", PERSISTENT_VOLUME_CLAIM),
    Rule::name(VOLUME, "spec.csi.driver", CSI_DRIVER),
    Rule::reference(VOLUME, "spec.csi.controllerExpandSecretRef", SECRET),
    Rule::reference(VOLUME, "spec.csi.controllerPublishSecretRef", SECRET),
    Rule::reference(VOLUME, "spec.csi.nodeExpandSecretRef", SECRET),
    Rule::reference(VOLUME, "spec.csi.nodePublishSecretRef", SECRET),
    Rule::reference(VOLUME, "spec.csi.nodeStageSecretRef", SECRET),
    Rule::reference(VOLUME, "spec.cephfs.secretRef", SECRET),
    Rule::reference(VOLUME, "spec.cinder.secretRef", SECRET),
    Rule::reference(VOLUME, "spec.flexVolume.secretRef", SECRET),
    Rule::reference(VOLUME, "spec.iscsi.secretRef", SECRET),
    Rule::reference(VOLUME, "spec.rbd.secretRef", SECRET),
    Rule::reference(VOLUME, "spec.scaleIO.secretRef", SECRET),
    Rule::reference(VOLUME, "spec.storageos.secretRef", SECRET),
    Rule::fields(VOLUME, "spec.azureFile", SECRET, "secretName", "secretNamespace"),
    Rule::fields(VOLUME, "spec.glusterfs", ENDPOINTS, "endpoints", "endpointsNamespace"),
    csi_secret("csi.storage.k8s.io/provisioner-secret-name", "csi.storage.k8s.io/provisioner-secret-namespace"),
    csi_secret(
        "csi.storage.k8s.io/controller-publish-secret-name",
        "csi.storage.k8s.io/controller-publish-secret-namespace",
    ),
    csi_secret(
        "csi.storage.k8s.io/controller-expand-secret-name",
        "csi.storage.k8s.io/controller-expand-secret-namespace",
    ),
    csi_secret("csi.storage.k8s.io/node-publish-secret-name", "csi.storage.k8s.io/node-publish-secret-namespace"),
    csi_secret("csi.storage.k8s.io/node-stage-secret-name", "csi.storage.k8s.io/node-stage-secret-namespace"),
    csi_secret("csi.storage.k8s.io/node-expand-secret-name", "csi.storage.k8s.io/node-expand-secret-namespace"),
    Rule::name(ATTACHMENT, "spec.attacher", CSI_DRIVER),
    Rule::name(ATTACHMENT, "spec.nodeName", NODE),
    Rule::name(ATTACHMENT, "spec.source.persistentVolumeName", PERSISTENT_VOLUME),
    Rule::name(&[("storage.k8s.io", "CSINode")], "spec.drivers[].name", CSI_DRIVER),
    Rule::name(&[("storage.k8s.io", "CSIStorageCapacity")], "storageClassName", STORAGE_CLASS),
    // Devices.
    Rule::name(&[RESOURCE_CLAIM], "spec.devices.requests[].deviceClassName", DEVICE_CLASS),
    Rule::name(&[RESOURCE_CLAIM], "spec.devices.requests[].exactly.deviceClassName", DEVICE_CLASS),
    Rule::name(&[RESOURCE_CLAIM], "spec.devices.requests[].firstAvailable[].deviceClassName", DEVICE_CLASS),
    Rule::reference(&[RESOURCE_CLAIM], "status.reservedFor[resource=pods]", POD),
    Rule::name(&[RESOURCE_CLAIM_TEMPLATE], "spec.spec.devices.requests[].deviceClassName", DEVICE_CLASS),
    Rule::name(&[RESOURCE_CLAIM_TEMPLATE], "spec.spec.devices.requests[].exactly.deviceClassName", DEVICE_CLASS),
    Rule::name(
        &[RESOURCE_CLAIM_TEMPLATE],
        "spec.spec.devices.requests[].firstAvailable[].deviceClassName",
        DEVICE_CLASS,
    ),
    Rule::name(&[("resource.k8s.io", "ResourceSlice")], "spec.nodeName", NODE),
    // Permissions.
    Rule::reference(ROLE_BINDINGS, "roleRef", ROLE_DEFAULT).with_relation(RoleRef),
    Rule::reference(ROLE_BINDINGS, "subjects[kind=ServiceAccount]", SERVICE_ACCOUNT).with_relation(Subject),
    Rule::reference(&[SERVICE_ACCOUNT], "secrets[]", SECRET),
    Rule::name(&[SERVICE_ACCOUNT], "imagePullSecrets[].name", SECRET),
    // API server: webhooks, aggregation, custom resources, admission policies and flow control.
    Rule::reference(WEBHOOKS, "webhooks[].clientConfig.service", SERVICE),
    Rule::reference(&[("apiregistration.k8s.io", "APIService")], "spec.service", SERVICE),
    Rule::reference(CUSTOM_RESOURCE_DEFINITION, "spec.conversion.webhook.clientConfig.service", SERVICE),
    Rule::name(
        &[("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding")],
        "spec.policyName",
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    ),
    Rule::name(
        &[("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding")],
        "spec.policyName",
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
    ),
    Rule::name(FLOW_SCHEMA, "spec.priorityLevelConfiguration.name", PRIORITY_LEVEL),
    Rule::reference(FLOW_SCHEMA, "spec.rules[].subjects[].serviceAccount", SERVICE_ACCOUNT),
];

/// Rule for a Secret of a CSI driver whose name and namespace are parameters of a StorageClass.
const fn csi_secret(name: &'static str, namespace: &'static str) -> Rule {
    Rule::fields(STORAGE_CLASSES, "parameters", SECRET, name, namespace)
}
