//! Permissions that each role of `serve` requires in the control plane; a ClusterRole with less than cluster-admin must
//! contain them. Permissions for propagated kinds depend on the policies and are not listed.

use crowsnest_api::role::Role;
use k8s_openapi::api::authorization::v1::ResourceAttributes;

use super::checks::Finding;

const WHAT: &str = "rights in the control plane";

/// Roles, verbs, group, resources, and `namespace/name` if the permission can be limited to it.
type Requirement = (&'static [Role], &'static str, &'static str, &'static str, &'static str);

const LISTENERS: &[Role] = &[Role::Aggregated, Role::Webhook];
const CACHES: &[Role] = &[Role::Aggregated, Role::Controllers, Role::Cache];
const AGGREGATED: &[Role] = &[Role::Aggregated];
const WEBHOOK: &[Role] = &[Role::Webhook];
const CONTROLLERS: &[Role] = &[Role::Controllers];

const REQUIREMENTS: &[Requirement] = &[
    // Trusted CAs, authentication and authorization.
    (LISTENERS, "list watch", "", "configmaps", "kube-system/extension-apiserver-authentication"),
    (AGGREGATED, "create", "authentication.k8s.io", "tokenreviews", ""),
    (
        &[Role::Aggregated, Role::Webhook, Role::Controllers],
        "create",
        "authorization.k8s.io",
        "subjectaccessreviews",
        "",
    ),
    // Policies and webhooks, which the aggregated server applies to its kinds.
    (
        AGGREGATED,
        "list watch",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies validatingadmissionpolicybindings mutatingadmissionpolicies \
         mutatingadmissionpolicybindings validatingwebhookconfigurations mutatingwebhookconfigurations",
        "",
    ),
    // The serving certificate if --tls-cert-file is not set.
    (LISTENERS, "get list watch", "", "secrets", OWN_CERTIFICATE),
    // Members and their tokens.
    (CACHES, "get list watch", "storage.crowsnest.io", "storedclusters storedresourceregistries", ""),
    (CACHES, "get list watch", "", "secrets", "karmada-cluster/"),
    // Requests on behalf of callers.
    (
        AGGREGATED,
        "create update patch delete deletecollection",
        "storage.crowsnest.io",
        "storedclusters storedresourceregistries",
        "",
    ),
    (
        AGGREGATED,
        "get update patch",
        "storage.crowsnest.io",
        "storedclusters/status storedresourceregistries/status",
        "",
    ),
    (AGGREGATED, "get list create update delete", "storage.crowsnest.io", "storedsearches", ""),
    // Objects that admission reads.
    (WEBHOOK, "list", "config.karmada.io", "resourceinterpretercustomizations", ""),
    (WEBHOOK, "list", "policy.karmada.io", "federatedresourcequotas", ""),
    (WEBHOOK, "list", "work.karmada.io", "resourcebindings", ""),
    // Controllers.
    (CONTROLLERS, "create", "", "events", ""),
    (CONTROLLERS, "get create update", "coordination.k8s.io", "leases", "karmada-system/"),
    (CONTROLLERS, "patch", "", "events", ""),
    (CONTROLLERS, "get list watch create delete", "", "namespaces", ""),
    (CONTROLLERS, "patch", "storage.crowsnest.io", "storedclusters", ""),
    (CONTROLLERS, "update patch", "storage.crowsnest.io", "storedclusters/status", ""),
    (CONTROLLERS, "patch", "storage.crowsnest.io", "storedresourceregistries/status", ""),
    (
        CONTROLLERS,
        "get list watch create update patch delete",
        "work.karmada.io",
        "works resourcebindings clusterresourcebindings",
        "",
    ),
    (
        CONTROLLERS,
        "patch",
        "work.karmada.io",
        "works/status resourcebindings/status clusterresourcebindings/status",
        "",
    ),
    (
        CONTROLLERS,
        "get list watch",
        "policy.karmada.io",
        "propagationpolicies clusterpropagationpolicies overridepolicies clusteroverridepolicies \
         federatedresourcequotas clustertaintpolicies",
        "",
    ),
    (CONTROLLERS, "update", "policy.karmada.io", "federatedresourcequotas/status", ""),
    (
        CONTROLLERS,
        "get list watch",
        "config.karmada.io",
        "resourceinterpretercustomizations resourceinterpreterwebhookconfigurations",
        "",
    ),
    (CONTROLLERS, "get list watch delete", "apps.karmada.io", "workloadrebalancers", ""),
    (CONTROLLERS, "patch", "apps.karmada.io", "workloadrebalancers/status", ""),
    (CONTROLLERS, "get list watch", "remedy.karmada.io", "remedies", ""),
    (CONTROLLERS, "get list watch update", "autoscaling.karmada.io", "federatedhpas cronfederatedhpas", ""),
    (CONTROLLERS, "update", "autoscaling.karmada.io", "federatedhpas/status cronfederatedhpas/status", ""),
    (CONTROLLERS, "get list watch patch", "networking.karmada.io", "multiclusterservices", ""),
    (CONTROLLERS, "get list watch", "networking.karmada.io", "multiclusteringresses", ""),
    (CONTROLLERS, "patch", "networking.karmada.io", "multiclusterservices/status multiclusteringresses/status", ""),
    (CONTROLLERS, "get list watch create update delete", "", "services", ""),
    (CONTROLLERS, "update", "", "services/status", ""),
    (CONTROLLERS, "get list watch create update delete", "discovery.k8s.io", "endpointslices", ""),
    (CONTROLLERS, "get list watch", "scheduling.k8s.io", "priorityclasses", ""),
    // Certificates and permissions of agents.
    (CONTROLLERS, "get list watch", "certificates.k8s.io", "certificatesigningrequests", ""),
    (CONTROLLERS, "update", "certificates.k8s.io", "certificatesigningrequests/approval", ""),
    (CONTROLLERS, "approve", "certificates.k8s.io", "signers", "/kubernetes.io/kube-apiserver-client"),
    (CONTROLLERS, "get list watch create", "rbac.authorization.k8s.io", "clusterroles clusterrolebindings", ""),
    (CONTROLLERS, "get create", "rbac.authorization.k8s.io", "roles rolebindings", "karmada-cluster/"),
];

/// Secret of the certificate that `install` created; not needed with another certificate.
const OWN_CERTIFICATE: &str = "karmada-system/crowsnest-serving";

/// Templates may be of any kind, and their scale and status are written; permissions may be limited to some kinds.
const TEMPLATES: [&str; 5] = ["get", "list", "watch", "update", "patch"];

/// A required permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    namespace: &'static str,
    name: &'static str,
    without: Without,
}

/// Functions that work without a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// All functions except the propagation of other kinds.
    OtherKinds,
    /// All functions, if `serve` has another certificate.
    OwnCertificate,
}

impl Right {
    pub(super) fn attributes(&self) -> ResourceAttributes {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let non_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        ResourceAttributes {
            verb: non_empty(self.verb),
            group: Some(self.group.to_owned()),
            resource: non_empty(resource),
            subresource: non_empty(subresource),
            namespace: non_empty(self.namespace),
            name: non_empty(self.name),
            ..ResourceAttributes::default()
        }
    }
}

/// The distinct permissions that these roles require.
pub(super) fn needed(roles: &[Role]) -> Vec<Right> {
    let has = |role: &Role| roles.contains(role) || roles.contains(&Role::All);
    let mut all: Vec<Right> = Vec::new();
    for (_, verbs, group, resources, location) in REQUIREMENTS.iter().filter(|(of, ..)| of.iter().any(has)) {
        let (namespace, name) = location.split_once('/').unwrap_or_default();
        for resource in resources.split_whitespace() {
            all.extend(verbs.split_whitespace().map(|verb| Right {
                verb,
                group,
                resource,
                namespace,
                name,
                without: if *location == OWN_CERTIFICATE { Without::OwnCertificate } else { Without::Nothing },
            }));
        }
    }
    if has(&Role::Controllers) {
        let without = Without::OtherKinds;
        let of = |verb| Right { verb, group: "*", resource: "*", namespace: "", name: "", without };
        all.extend(TEMPLATES.map(of));
    }
    let mut once: Vec<Right> = Vec::new();
    for right in all {
        if !once.contains(&right) {
            once.push(right);
        }
    }
    once
}

/// The findings about missing permissions.
pub(super) fn report_missing(missing: &[Right]) -> Vec<Finding> {
    let of = |without| missing.iter().filter(|right| right.without == without).collect::<Vec<_>>();
    let (kinds, certificate, missing) = (of(Without::OtherKinds), of(Without::OwnCertificate), of(Without::Nothing));
    let mut findings = Vec::new();
    if !missing.is_empty() {
        findings.push(Finding::broken(
            WHAT,
            format!("this user cannot {}", list_permissions(&missing)),
            "grant these permissions, or the ClusterRole cluster-admin, to the user of serve's kubeconfig and run doctor with it; select the used roles with --roles",
        ));
    }
    if !certificate.is_empty() {
        findings.push(Finding::warning(
            WHAT,
            format!(
                "this user cannot {}, the certificate that install created for serve",
                list_permissions(&certificate)
            ),
            "none needed if serve uses --tls-cert-file or no certificate; otherwise grant these permissions too",
        ));
    }
    if !kinds.is_empty() {
        let verbs: Vec<&str> = kinds.iter().map(|right| right.verb).collect();
        findings.push(Finding::warning(
            WHAT,
            format!("this user cannot {} objects of all kinds; other kinds are not propagated", verbs.join(", ")),
            "none needed if the permissions for all propagated kinds are granted; otherwise grant those too",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::good(WHAT, "all required permissions are granted"));
    }
    findings
}

/// Lists missing permissions, grouped by resource.
fn list_permissions(missing: &[&Right]) -> String {
    let mut by_resource: Vec<(String, Vec<&str>)> = Vec::new();
    for right in missing {
        let dot = if right.group.is_empty() { "" } else { "." };
        let mut resource = format!("{}{dot}{}", right.resource, right.group);
        if !right.namespace.is_empty() {
            resource += &format!(" in {}", right.namespace);
            if !right.name.is_empty() {
                resource += &format!("/{}", right.name);
            }
        }
        match by_resource.iter_mut().find(|(known, _)| *known == resource) {
            Some((_, verbs)) => verbs.push(right.verb),
            None => by_resource.push((resource, vec![right.verb])),
        }
    }
    let permissions: Vec<String> =
        by_resource.into_iter().map(|(resource, verbs)| format!("{} {resource}", verbs.join("/"))).collect();
    permissions.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::checks::Severity;
    use rstest::rstest;

    fn right(verb: &'static str, group: &'static str, resource: &'static str) -> Right {
        let without = if group == "*" { Without::OtherKinds } else { Without::Nothing };
        Right { verb, group, resource, namespace: "", name: "", without }
    }

    #[rstest]
    #[case(&[Role::All], "works", true)]
    #[case(&[Role::Controllers], "works", true)]
    #[case(&[Role::Webhook, Role::Ui], "works", false)]
    #[case(&[Role::Webhook], "federatedresourcequotas", true)]
    #[case(&[Role::Webhook], "federatedresourcequotas/status", false)]
    #[case(&[Role::Webhook], "events", false)]
    #[case(&[Role::Cache], "federatedresourcequotas/status", false)]
    #[case(&[Role::Cache], "secrets", true)]
    #[case(&[Role::Controllers], "*", true)]
    #[case(&[Role::Aggregated], "*", false)]
    #[case(&[Role::Aggregated], "tokenreviews", true)]
    fn roles_require_their_permissions(#[case] roles: &[Role], #[case] resource: &str, #[case] expected: bool) {
        let needed = needed(roles);
        assert_eq!(needed.iter().any(|right| right.resource == resource), expected, "{needed:?}");
    }

    #[test]
    fn the_ui_requires_no_permissions() {
        assert_eq!(needed(&[Role::Ui]), []);
    }

    #[test]
    fn permissions_are_distinct_and_limited() {
        let all = needed(&[Role::All, Role::Controllers]);
        for (at, right) in all.iter().enumerate() {
            assert!(!all[..at].contains(right), "{right:?}");
            assert!(
                right.verb != "*"
                    && (right.without == Without::OtherKinds || (right.resource != "*" && right.group != "*")),
                "{right:?}"
            );
        }
    }

    #[test]
    fn subresources_and_names_are_separate() {
        let needed = needed(&[Role::All]);
        let of = |resource: &str| needed.iter().find(|right| right.resource == resource).unwrap().attributes();
        let status = of("works/status");
        assert_eq!((status.resource.as_deref(), status.subresource.as_deref()), (Some("works"), Some("status")));
        let signer = of("signers");
        assert_eq!((signer.name.as_deref(), signer.namespace), (Some("kubernetes.io/kube-apiserver-client"), None));
        let secrets: Vec<_> =
            needed.iter().filter(|right| right.resource == "secrets" && right.verb == "watch").collect();
        let places: Vec<_> = secrets.iter().map(|right| (right.namespace, right.name)).collect();
        assert_eq!(places, [("karmada-system", "crowsnest-serving"), ("karmada-cluster", "")]);
        assert_eq!(secrets[1].attributes().name, None);
    }

    #[rstest]
    #[case(&[Role::Webhook], true)]
    #[case(&[Role::Aggregated], true)]
    #[case(&[Role::Cache, Role::Controllers], false)]
    fn listeners_read_the_certificate(#[case] roles: &[Role], #[case] expected: bool) {
        let missing: Vec<Right> =
            needed(roles).into_iter().filter(|right| right.without == Without::OwnCertificate).collect();
        assert_eq!(!missing.is_empty(), expected);
        let found = report_missing(&missing);
        let summary = format!("{:?} {}", found[0].severity, found[0].found);
        let warning =
            "Warning this user cannot get/list/watch secrets in karmada-system/crowsnest-serving, the certificate";
        assert_eq!(summary.starts_with(warning), expected, "{summary}");
    }

    #[rstest]
    #[case(&[], &[(Severity::Good, "all required permissions are granted")])]
    #[case(&[right("get", "work.karmada.io", "works"), right("list", "", "events"), right("list", "work.karmada.io", "works")],
        &[(Severity::Broken, "this user cannot get/list works.work.karmada.io, list events")])]
    #[case(&[right("list", "*", "*"), right("patch", "*", "*")],
        &[(Severity::Warning, "this user cannot list, patch objects of all kinds; other kinds are not propagated")])]
    fn missing_permissions_are_reported(#[case] missing: &[Right], #[case] expected: &[(Severity, &str)]) {
        let found = report_missing(missing);
        let findings: Vec<_> = found.iter().map(|found| (found.severity, found.found.as_str())).collect();
        assert_eq!(findings, expected);
    }
}
