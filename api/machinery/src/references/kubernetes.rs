//! References of Kubernetes' own kinds. Pods and pod templates are in `pod.rs`.
//!
//! The table does not contain selectors, which name no object; `paramRef` of admission policy bindings, whose kind is
//! stated only in the policy; references to objects that a controller creates for the referring object; `nodeName` of
//! endpoints and `nominatedNodeName`, because the Pod itself refers to its node; and `configSource` of Nodes, which no
//! supported kubelet reads.

use super::Relation::{RoleRef, RoutesTo, Subject};
use super::rule::{GroupKind, Rule};

pub(super) const CLUSTER_TRUST_BUNDLE: GroupKind = ("certificates.k8s.io", "ClusterTrustBundle");
pub(super) const CONFIG_MAP: GroupKind = ("", "ConfigMap");
pub(super) const CSI_DRIVER: GroupKind = ("storage.k8s.io", "CSIDriver");
pub(super) const ENDPOINTS: GroupKind = ("", "Endpoints");
pub(super) const NODE: GroupKind = ("", "Node");
pub(super) const PERSISTENT_VOLUME: GroupKind = ("", "PersistentVolume");
pub(super) const PERSISTENT_VOLUME_CLAIM: GroupKind = ("", "PersistentVolumeClaim");
pub(super) const POD: GroupKind = ("", "Pod");
pub(super) const POD_GROUP: GroupKind = ("scheduling.k8s.io", "PodGroup");
pub(super) const PRIORITY_CLASS: GroupKind = ("scheduling.k8s.io", "PriorityClass");
pub(super) const RESOURCE_CLAIM: GroupKind = ("resource.k8s.io", "ResourceClaim");
pub(super) const RESOURCE_CLAIM_TEMPLATE: GroupKind = ("resource.k8s.io", "ResourceClaimTemplate");
pub(super) const RUNTIME_CLASS: GroupKind = ("node.k8s.io", "RuntimeClass");
pub(super) const SECRET: GroupKind = ("", "Secret");
pub(super) const SERVICE: GroupKind = ("", "Service");
pub(super) const SERVICE_ACCOUNT: GroupKind = ("", "ServiceAccount");
const DEVICE_CLASS: GroupKind = ("resource.k8s.io", "DeviceClass");
const INGRESS_CLASS: GroupKind = ("networking.k8s.io", "IngressClass");
const LEASE: GroupKind = ("coordination.k8s.io", "Lease");
const PRIORITY_LEVEL: GroupKind = ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration");
const WORKLOAD: GroupKind = ("scheduling.k8s.io", "Workload");
pub(super) const STORAGE_CLASS: GroupKind = ("storage.k8s.io", "StorageClass");
pub(super) const VOLUME_ATTRIBUTES_CLASS: GroupKind = ("storage.k8s.io", "VolumeAttributesClass");
/// Default group of references to roles, which always contain their kind.
const ROLE_DEFAULT: GroupKind = ("rbac.authorization.k8s.io", "");
/// Default group of references to data sources, which always contain their kind.
const DATA_SOURCE_DEFAULT: GroupKind = ("", "");

/// Kinds with a pod template at `spec.template`.
const POD_TEMPLATE_KINDS: &[GroupKind] = &[
    ("", "ReplicationController"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("batch", "Job"),
];
const CLAIM: &[GroupKind] = &[PERSISTENT_VOLUME_CLAIM];
const VOLUME: &[GroupKind] = &[PERSISTENT_VOLUME];
const CLAIM_AND_VOLUME: &[GroupKind] = &[PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME];
const INGRESS: &[GroupKind] = &[("networking.k8s.io", "Ingress")];
const AUTOSCALER: &[GroupKind] = &[("autoscaling", "HorizontalPodAutoscaler")];
const ROLE_BINDINGS: &[GroupKind] =
    &[("rbac.authorization.k8s.io", "RoleBinding"), ("rbac.authorization.k8s.io", "ClusterRoleBinding")];
const WEBHOOKS: &[GroupKind] = &[
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
];
const CUSTOM_RESOURCE_DEFINITION: &[GroupKind] = &[("apiextensions.k8s.io", "CustomResourceDefinition")];
const STORAGE_CLASSES: &[GroupKind] = &[STORAGE_CLASS];
const ATTACHMENT: &[GroupKind] = &[("storage.k8s.io", "VolumeAttachment")];
const STATEFUL_SET: &[GroupKind] = &[("apps", "StatefulSet")];
const RESOURCE_SLICE: &[GroupKind] = &[("resource.k8s.io", "ResourceSlice")];
const POOL_STATUS_REQUEST: &[GroupKind] = &[("resource.k8s.io", "ResourcePoolStatusRequest")];
const CERTIFICATE_REQUEST: &[GroupKind] = &[("certificates.k8s.io", "PodCertificateRequest")];
const FLOW_SCHEMA: &[GroupKind] = &[("flowcontrol.apiserver.k8s.io", "FlowSchema")];

/// Fields with a Secret, by name and possibly namespace, in the spec of a PersistentVolume.
pub(super) const VOLUME_SECRETS: &[&str] = &[
    "cephfs.secretRef",
    "cinder.secretRef",
    "csi.controllerExpandSecretRef",
    "csi.controllerPublishSecretRef",
    "csi.nodeExpandSecretRef",
    "csi.nodePublishSecretRef",
    "csi.nodeStageSecretRef",
    "flexVolume.secretRef",
    "iscsi.secretRef",
    "rbd.secretRef",
    "scaleIO.secretRef",
    "storageos.secretRef",
];

/// References of Kubernetes' own kinds.
pub const KUBERNETES: &[Rule] = &[
    // Workloads.
    Rule::pod_spec(POD_TEMPLATE_KINDS, "spec.template.spec"),
    Rule::pod_spec(&[("batch", "CronJob")], "spec.jobTemplate.spec.template.spec"),
    Rule::pod_spec(&[("", "PodTemplate")], "template.spec"),
    Rule::name(STATEFUL_SET, "spec.serviceName", SERVICE),
    Rule::name(STATEFUL_SET, "spec.volumeClaimTemplates[].spec.storageClassName", STORAGE_CLASS),
    Rule::name(STATEFUL_SET, "spec.volumeClaimTemplates[].spec.volumeAttributesClassName", VOLUME_ATTRIBUTES_CLASS),
    Rule::name(STATEFUL_SET, "spec.volumeClaimTemplates[].spec.volumeName", PERSISTENT_VOLUME),
    Rule::reference(STATEFUL_SET, "spec.volumeClaimTemplates[].spec.dataSource", DATA_SOURCE_DEFAULT),
    Rule::reference(STATEFUL_SET, "spec.volumeClaimTemplates[].spec.dataSourceRef", DATA_SOURCE_DEFAULT),
    Rule::typed_reference(AUTOSCALER, "spec.scaleTargetRef"),
    Rule::typed_reference(AUTOSCALER, "spec.metrics[].object.describedObject"),
    Rule::typed_reference(&[WORKLOAD], "spec.controllerRef"),
    Rule::name(&[WORKLOAD], "spec.podGroupTemplates[].priorityClassName", PRIORITY_CLASS),
    Rule::name(&[WORKLOAD], "spec.podGroupTemplates[].resourceClaims[].resourceClaimName", RESOURCE_CLAIM),
    Rule::name(
        &[WORKLOAD],
        "spec.podGroupTemplates[].resourceClaims[].resourceClaimTemplateName",
        RESOURCE_CLAIM_TEMPLATE,
    ),
    Rule::name(&[POD_GROUP], "spec.podGroupTemplateRef.workload.workloadName", WORKLOAD),
    Rule::name(&[POD_GROUP], "spec.priorityClassName", PRIORITY_CLASS),
    Rule::name(&[POD_GROUP], "spec.resourceClaims[].resourceClaimName", RESOURCE_CLAIM),
    Rule::name(&[POD_GROUP], "spec.resourceClaims[].resourceClaimTemplateName", RESOURCE_CLAIM_TEMPLATE),
    Rule::name(&[POD_GROUP], "status.resourceClaimStatuses[].resourceClaimName", RESOURCE_CLAIM),
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
    Rule::name(CLAIM, "status.currentVolumeAttributesClassName", VOLUME_ATTRIBUTES_CLASS),
    Rule::name(CLAIM, "status.modifyVolumeStatus.targetVolumeAttributesClassName", VOLUME_ATTRIBUTES_CLASS),
    Rule::reference(CLAIM, "spec.dataSource", DATA_SOURCE_DEFAULT),
    Rule::reference(CLAIM, "spec.dataSourceRef", DATA_SOURCE_DEFAULT),
    Rule::reference(VOLUME, "spec.claimRef", PERSISTENT_VOLUME_CLAIM),
    Rule::volume_source(VOLUME, "spec"),
    Rule::name(STORAGE_CLASSES, "provisioner", CSI_DRIVER),
    Rule::name(&[VOLUME_ATTRIBUTES_CLASS], "driverName", CSI_DRIVER),
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
    Rule::volume_source(ATTACHMENT, "spec.source.inlineVolumeSpec"),
    Rule::name(&[("storage.k8s.io", "CSINode")], "spec.drivers[].name", CSI_DRIVER),
    Rule::name(&[("storage.k8s.io", "CSIStorageCapacity")], "storageClassName", STORAGE_CLASS),
    // Devices.
    Rule::name(&[RESOURCE_CLAIM], "spec.devices.requests[].deviceClassName", DEVICE_CLASS),
    Rule::name(&[RESOURCE_CLAIM], "spec.devices.requests[].exactly.deviceClassName", DEVICE_CLASS),
    Rule::name(&[RESOURCE_CLAIM], "spec.devices.requests[].firstAvailable[].deviceClassName", DEVICE_CLASS),
    Rule::reference(&[RESOURCE_CLAIM], "status.reservedFor[resource=pods]", POD),
    Rule::reference(&[RESOURCE_CLAIM], "status.reservedFor[resource=podgroups]", POD_GROUP),
    Rule::name(&[RESOURCE_CLAIM_TEMPLATE], "spec.spec.devices.requests[].deviceClassName", DEVICE_CLASS),
    Rule::name(&[RESOURCE_CLAIM_TEMPLATE], "spec.spec.devices.requests[].exactly.deviceClassName", DEVICE_CLASS),
    Rule::name(
        &[RESOURCE_CLAIM_TEMPLATE],
        "spec.spec.devices.requests[].firstAvailable[].deviceClassName",
        DEVICE_CLASS,
    ),
    Rule::name(RESOURCE_SLICE, "spec.nodeName", NODE),
    Rule::name(RESOURCE_SLICE, "spec.devices[].nodeName", NODE),
    Rule::name(POOL_STATUS_REQUEST, "status.pools[].nodeName", NODE),
    // Permissions.
    Rule::reference(ROLE_BINDINGS, "roleRef", ROLE_DEFAULT).with_relation(RoleRef),
    Rule::reference(ROLE_BINDINGS, "subjects[kind=ServiceAccount]", SERVICE_ACCOUNT).with_relation(Subject),
    Rule::reference(&[SERVICE_ACCOUNT], "secrets[]", SECRET),
    Rule::name(&[SERVICE_ACCOUNT], "imagePullSecrets[].name", SECRET),
    Rule::name(CERTIFICATE_REQUEST, "spec.podName", POD),
    Rule::name(CERTIFICATE_REQUEST, "spec.nodeName", NODE),
    Rule::name(CERTIFICATE_REQUEST, "spec.serviceAccountName", SERVICE_ACCOUNT),
    // API server: webhooks, aggregation, custom resources, admission policies, leader election and flow control.
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
    Rule::name(&[("coordination.k8s.io", "LeaseCandidate")], "spec.leaseName", LEASE),
    Rule::name(FLOW_SCHEMA, "spec.priorityLevelConfiguration.name", PRIORITY_LEVEL),
    Rule::reference(FLOW_SCHEMA, "spec.rules[].subjects[].serviceAccount", SERVICE_ACCOUNT),
];

/// Rule for a Secret of a CSI driver whose name and namespace are parameters of a StorageClass.
const fn csi_secret(name: &'static str, namespace: &'static str) -> Rule {
    Rule::fields(STORAGE_CLASSES, "parameters", SECRET, name, namespace)
}
