//! Rules for the references that objects of widely used extensions contain.

use super::Relation::{RoutedBy, RoutesTo};
use super::kubernetes::{CONFIG_MAP, CSI_DRIVER, PERSISTENT_VOLUME_CLAIM, SECRET, SERVICE};
use super::rule::{GroupKind, Rule};

const GATEWAY: GroupKind = ("gateway.networking.k8s.io", "Gateway");
const GATEWAY_CLASS: GroupKind = ("gateway.networking.k8s.io", "GatewayClass");
const BACKEND_TLS_POLICY: &[GroupKind] = &[("gateway.networking.k8s.io", "BackendTLSPolicy")];
const ROUTES: &[GroupKind] = &[
    ("gateway.networking.k8s.io", "GRPCRoute"),
    ("gateway.networking.k8s.io", "HTTPRoute"),
    ("gateway.networking.k8s.io", "TCPRoute"),
    ("gateway.networking.k8s.io", "TLSRoute"),
    ("gateway.networking.k8s.io", "UDPRoute"),
];
const LISTENER_SET: &[GroupKind] = &[("gateway.networking.k8s.io", "ListenerSet")];
const CERTIFICATE: &[GroupKind] = &[("cert-manager.io", "Certificate")];
const ISSUER: GroupKind = ("cert-manager.io", "Issuer");
/// Kinds whose `spec.issuerRef` refers to an issuer of cert-manager.
const ISSUER_REFERRERS: &[GroupKind] = &[
    ("acme.cert-manager.io", "Challenge"),
    ("acme.cert-manager.io", "Order"),
    ("cert-manager.io", "Certificate"),
    ("cert-manager.io", "CertificateRequest"),
];
const VOLUME_SNAPSHOT: GroupKind = ("snapshot.storage.k8s.io", "VolumeSnapshot");
const VOLUME_SNAPSHOT_CLASS: GroupKind = ("snapshot.storage.k8s.io", "VolumeSnapshotClass");
const VOLUME_SNAPSHOT_CONTENT: GroupKind = ("snapshot.storage.k8s.io", "VolumeSnapshotContent");
const DEPLOYMENT: GroupKind = ("apps", "Deployment");
const SCALED_OBJECT: &[GroupKind] = &[("keda.sh", "ScaledObject")];
const TRIGGER_AUTHENTICATION: GroupKind = ("keda.sh", "TriggerAuthentication");
const EXTERNAL_SECRET: &[GroupKind] = &[("external-secrets.io", "ExternalSecret")];
const SECRET_STORE: GroupKind = ("external-secrets.io", "SecretStore");
const ROLLOUT: &[GroupKind] = &[("argoproj.io", "Rollout")];
const HELM_RELEASE: &[GroupKind] = &[("helm.toolkit.fluxcd.io", "HelmRelease")];
const FLUX_KUSTOMIZATION: &[GroupKind] = &[("kustomize.toolkit.fluxcd.io", "Kustomization")];
/// Default group of a `sourceRef`, which always contains the kind of the source.
const FLUX_SOURCE: GroupKind = ("source.toolkit.fluxcd.io", "");

/// Rules for the kinds of widely used extensions: Gateway API, cert-manager, volume snapshots, VerticalPodAutoscaler,
/// KEDA, External Secrets, Argo Rollouts, OpenKruise and Flux.
pub const EXTENSIONS: &[Rule] = &[
    Rule::name(&[GATEWAY], "spec.gatewayClassName", GATEWAY_CLASS),
    Rule::reference(&[GATEWAY], "spec.listeners[].tls.certificateRefs[]", SECRET),
    Rule::reference(&[GATEWAY], "spec.tls.backend.clientCertificateRef", SECRET),
    Rule::reference(&[GATEWAY], "spec.tls.frontend.default.validation.caCertificateRefs[]", CONFIG_MAP),
    Rule::reference(&[GATEWAY], "spec.tls.frontend.perPort[].tls.validation.caCertificateRefs[]", CONFIG_MAP),
    Rule::reference(LISTENER_SET, "spec.parentRef", GATEWAY).with_relation(RoutedBy),
    Rule::reference(LISTENER_SET, "spec.listeners[].tls.certificateRefs[]", SECRET),
    Rule::reference(&[GATEWAY], "spec.listeners[].tls.frontendValidation.caCertificateRefs[]", CONFIG_MAP),
    Rule::typed_reference(&[GATEWAY], "spec.infrastructure.parametersRef"),
    Rule::typed_reference(&[GATEWAY_CLASS], "spec.parametersRef"),
    Rule::reference(ROUTES, "spec.parentRefs[]", GATEWAY).with_relation(RoutedBy),
    Rule::reference(ROUTES, "spec.rules[].backendRefs[]", SERVICE).with_relation(RoutesTo),
    Rule::reference(ROUTES, "spec.rules[].filters[].requestMirror.backendRef", SERVICE).with_relation(RoutesTo),
    Rule::reference(ROUTES, "spec.rules[].filters[].externalAuth.backendRef", SERVICE),
    Rule::typed_reference(ROUTES, "spec.rules[].filters[].extensionRef"),
    Rule::reference(ROUTES, "spec.rules[].backendRefs[].filters[].requestMirror.backendRef", SERVICE)
        .with_relation(RoutesTo),
    Rule::typed_reference(ROUTES, "spec.rules[].backendRefs[].filters[].extensionRef"),
    Rule::reference(BACKEND_TLS_POLICY, "spec.targetRefs[]", SERVICE),
    Rule::reference(BACKEND_TLS_POLICY, "spec.validation.caCertificateRefs[]", CONFIG_MAP),
    Rule::reference(ISSUER_REFERRERS, "spec.issuerRef", ISSUER),
    Rule::name(CERTIFICATE, "spec.secretName", SECRET),
    Rule::name(CERTIFICATE, "spec.keystores.jks.passwordSecretRef.name", SECRET),
    Rule::name(CERTIFICATE, "spec.keystores.pkcs12.passwordSecretRef.name", SECRET),
    // ClusterIssuers have no rule: the namespace of their Secrets is known only from cert-manager's configuration.
    Rule::name(&[ISSUER], "spec.acme.privateKeySecretRef.name", SECRET),
    Rule::name(&[ISSUER], "spec.ca.secretName", SECRET),
    Rule::name(&[VOLUME_SNAPSHOT], "spec.source.persistentVolumeClaimName", PERSISTENT_VOLUME_CLAIM),
    Rule::name(&[VOLUME_SNAPSHOT], "spec.source.volumeSnapshotContentName", VOLUME_SNAPSHOT_CONTENT),
    Rule::name(&[VOLUME_SNAPSHOT], "status.boundVolumeSnapshotContentName", VOLUME_SNAPSHOT_CONTENT),
    Rule::name(&[VOLUME_SNAPSHOT, VOLUME_SNAPSHOT_CONTENT], "spec.volumeSnapshotClassName", VOLUME_SNAPSHOT_CLASS),
    Rule::name(&[VOLUME_SNAPSHOT_CLASS], "driver", CSI_DRIVER),
    Rule::name(&[VOLUME_SNAPSHOT_CONTENT], "spec.driver", CSI_DRIVER),
    Rule::reference(&[VOLUME_SNAPSHOT_CONTENT], "spec.volumeSnapshotRef", VOLUME_SNAPSHOT),
    Rule::typed_reference(&[("autoscaling.k8s.io", "VerticalPodAutoscaler")], "spec.targetRef"),
    Rule::reference(SCALED_OBJECT, "spec.scaleTargetRef", DEPLOYMENT),
    Rule::reference(SCALED_OBJECT, "spec.triggers[].authenticationRef", TRIGGER_AUTHENTICATION),
    Rule::reference(EXTERNAL_SECRET, "spec.secretStoreRef", SECRET_STORE),
    Rule::name(EXTERNAL_SECRET, "spec.target.name", SECRET),
    Rule::pod_spec(ROLLOUT, "spec.template.spec"),
    Rule::typed_reference(ROLLOUT, "spec.workloadRef"),
    Rule::name(ROLLOUT, "spec.strategy.canary.canaryService", SERVICE),
    Rule::name(ROLLOUT, "spec.strategy.canary.stableService", SERVICE),
    Rule::name(ROLLOUT, "spec.strategy.blueGreen.activeService", SERVICE),
    Rule::name(ROLLOUT, "spec.strategy.blueGreen.previewService", SERVICE),
    Rule::pod_spec(
        &[("apps.kruise.io", "CloneSet"), ("apps.kruise.io", "DaemonSet"), ("apps.kruise.io", "StatefulSet")],
        "spec.template.spec",
    ),
    Rule::reference(HELM_RELEASE, "spec.chart.spec.sourceRef", FLUX_SOURCE),
    Rule::reference(FLUX_KUSTOMIZATION, "spec.sourceRef", FLUX_SOURCE),
];
