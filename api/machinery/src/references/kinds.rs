//! Groups and scopes of well-known kinds, for references that do not contain them.

/// Kubernetes' own kinds: group, kind, and whether the kind is namespaced.
const BUILTIN: &[(&str, &str, bool)] = &[
    ("", "ConfigMap", true),
    ("", "Endpoints", true),
    ("", "Event", true),
    ("", "LimitRange", true),
    ("", "Namespace", false),
    ("", "Node", false),
    ("", "PersistentVolume", false),
    ("", "PersistentVolumeClaim", true),
    ("", "Pod", true),
    ("", "PodTemplate", true),
    ("", "ReplicationController", true),
    ("", "ResourceQuota", true),
    ("", "Secret", true),
    ("", "Service", true),
    ("", "ServiceAccount", true),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy", false),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding", false),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", false),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", false),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", false),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", false),
    ("apiextensions.k8s.io", "CustomResourceDefinition", false),
    ("apiregistration.k8s.io", "APIService", false),
    ("apps", "ControllerRevision", true),
    ("apps", "DaemonSet", true),
    ("apps", "Deployment", true),
    ("apps", "ReplicaSet", true),
    ("apps", "StatefulSet", true),
    ("autoscaling", "HorizontalPodAutoscaler", true),
    ("batch", "CronJob", true),
    ("batch", "Job", true),
    ("certificates.k8s.io", "CertificateSigningRequest", false),
    ("certificates.k8s.io", "ClusterTrustBundle", false),
    ("certificates.k8s.io", "PodCertificateRequest", true),
    ("coordination.k8s.io", "Lease", true),
    ("coordination.k8s.io", "LeaseCandidate", true),
    ("discovery.k8s.io", "EndpointSlice", true),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema", false),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", false),
    ("networking.k8s.io", "IPAddress", false),
    ("networking.k8s.io", "Ingress", true),
    ("networking.k8s.io", "IngressClass", false),
    ("networking.k8s.io", "NetworkPolicy", true),
    ("networking.k8s.io", "ServiceCIDR", false),
    ("node.k8s.io", "RuntimeClass", false),
    ("policy", "PodDisruptionBudget", true),
    ("rbac.authorization.k8s.io", "ClusterRole", false),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", false),
    ("rbac.authorization.k8s.io", "Role", true),
    ("rbac.authorization.k8s.io", "RoleBinding", true),
    ("resource.k8s.io", "DeviceClass", false),
    ("resource.k8s.io", "DeviceTaintRule", false),
    ("resource.k8s.io", "ResourceClaim", true),
    ("resource.k8s.io", "ResourceClaimTemplate", true),
    ("resource.k8s.io", "ResourcePoolStatusRequest", false),
    ("resource.k8s.io", "ResourceSlice", false),
    ("scheduling.k8s.io", "PodGroup", true),
    ("scheduling.k8s.io", "PriorityClass", false),
    ("scheduling.k8s.io", "Workload", true),
    ("storage.k8s.io", "CSIDriver", false),
    ("storage.k8s.io", "CSINode", false),
    ("storage.k8s.io", "CSIStorageCapacity", true),
    ("storage.k8s.io", "StorageClass", false),
    ("storage.k8s.io", "VolumeAttachment", false),
    ("storage.k8s.io", "VolumeAttributesClass", false),
    ("storagemigration.k8s.io", "StorageVersionMigration", false),
];

/// Kinds of widely used extensions that other objects refer to.
const EXTENSIONS: &[(&str, &str, bool)] = &[
    ("cert-manager.io", "ClusterIssuer", false),
    ("cert-manager.io", "Issuer", true),
    ("external-secrets.io", "ClusterSecretStore", false),
    ("external-secrets.io", "SecretStore", true),
    ("gateway.networking.k8s.io", "BackendTLSPolicy", true),
    ("gateway.networking.k8s.io", "GRPCRoute", true),
    ("gateway.networking.k8s.io", "Gateway", true),
    ("gateway.networking.k8s.io", "GatewayClass", false),
    ("gateway.networking.k8s.io", "HTTPRoute", true),
    ("gateway.networking.k8s.io", "ListenerSet", true),
    ("gateway.networking.k8s.io", "TCPRoute", true),
    ("gateway.networking.k8s.io", "TLSRoute", true),
    ("gateway.networking.k8s.io", "UDPRoute", true),
    ("keda.sh", "ClusterTriggerAuthentication", false),
    ("keda.sh", "TriggerAuthentication", true),
    ("snapshot.storage.k8s.io", "VolumeSnapshot", true),
    ("snapshot.storage.k8s.io", "VolumeSnapshotClass", false),
    ("snapshot.storage.k8s.io", "VolumeSnapshotContent", false),
    ("source.toolkit.fluxcd.io", "Bucket", true),
    ("source.toolkit.fluxcd.io", "GitRepository", true),
    ("source.toolkit.fluxcd.io", "HelmChart", true),
    ("source.toolkit.fluxcd.io", "HelmRepository", true),
    ("source.toolkit.fluxcd.io", "OCIRepository", true),
];

/// True if objects of the kind are namespaced; None for unknown kinds.
pub fn is_namespaced(group: &str, kind: &str) -> Option<bool> {
    let mut kinds = BUILTIN.iter().chain(EXTENSIONS);
    kinds.find(|entry| (entry.0, entry.1) == (group, kind)).map(|entry| entry.2)
}

/// Group of a built-in kind, for references that contain only a kind.
pub(super) fn builtin_group(kind: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|entry| entry.1 == kind).map(|entry| entry.0)
}

/// Spelling of a well-known kind of a group: `ConfigMap` for `configmap`.
pub fn canonical_kind(group: &str, kind: &str) -> Option<&'static str> {
    let mut kinds = BUILTIN.iter().chain(EXTENSIONS);
    kinds.find(|entry| entry.0 == group && entry.1.eq_ignore_ascii_case(kind)).map(|entry| entry.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_kinds_are_unambiguous() {
        for (group, kind, namespaced) in BUILTIN {
            assert_eq!((builtin_group(kind), is_namespaced(group, kind)), (Some(*group), Some(*namespaced)), "{kind}");
        }
        assert_eq!((builtin_group("Issuer"), is_namespaced("apps", "Pod")), (None, None));
    }
}
