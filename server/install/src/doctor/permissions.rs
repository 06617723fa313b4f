//! Permissions that each role of `serve` requires in the control plane; a ClusterRole with less than cluster-admin must
//! contain them. Permissions for propagated kinds depend on the policies and are not listed.

use crowsnest_api::role::Role;
use crowsnest_api::{apps, autoscaling, config, networking, policy, remedy, sink, storage, work};
use k8s_openapi::api::authorization::v1::ResourceAttributes;

use super::checks::Finding;

const SUBJECT: &str = "permissions in the control plane";

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
    (LISTENERS, "get list watch", "", "secrets", SERVING_SECRET),
    // Members and their tokens.
    (CACHES, "get list watch", storage::GROUP, "storedclusters storedresourceregistries", ""),
    (CACHES, "get list watch", "", "secrets", "karmada-cluster/"),
    // Requests on behalf of callers.
    (
        AGGREGATED,
        "create update patch delete deletecollection",
        storage::GROUP,
        "storedclusters storedresourceregistries",
        "",
    ),
    (AGGREGATED, "get update patch", storage::GROUP, "storedclusters/status storedresourceregistries/status", ""),
    (AGGREGATED, "get list create update delete", storage::GROUP, "storedsearches", ""),
    // Objects that admission reads.
    (WEBHOOK, "list", config::GROUP, "resourceinterpretercustomizations", ""),
    (WEBHOOK, "list", policy::GROUP, "federatedresourcequotas", ""),
    (WEBHOOK, "list", work::GROUP, "resourcebindings", ""),
    // Controllers.
    (CONTROLLERS, "create", "", "events", ""),
    (CONTROLLERS, "get create update", "coordination.k8s.io", "leases", "karmada-system/"),
    (CONTROLLERS, "patch", "", "events", ""),
    (CONTROLLERS, "get list watch create delete", "", "namespaces", ""),
    (CONTROLLERS, "patch", storage::GROUP, "storedclusters", ""),
    (CONTROLLERS, "update patch", storage::GROUP, "storedclusters/status", ""),
    (CONTROLLERS, "patch", storage::GROUP, "storedresourceregistries/status", ""),
    (
        CONTROLLERS,
        "get list watch create update patch delete",
        work::GROUP,
        "works resourcebindings clusterresourcebindings",
        "",
    ),
    (CONTROLLERS, "patch", work::GROUP, "works/status resourcebindings/status clusterresourcebindings/status", ""),
    (
        CONTROLLERS,
        "get list watch",
        policy::GROUP,
        "propagationpolicies clusterpropagationpolicies overridepolicies clusteroverridepolicies \
         federatedresourcequotas clustertaintpolicies",
        "",
    ),
    (CONTROLLERS, "update", policy::GROUP, "federatedresourcequotas/status", ""),
    (
        CONTROLLERS,
        "get list watch",
        config::GROUP,
        "resourceinterpretercustomizations resourceinterpreterwebhookconfigurations",
        "",
    ),
    (CONTROLLERS, "get list watch delete", apps::GROUP, "workloadrebalancers", ""),
    (CONTROLLERS, "patch", apps::GROUP, "workloadrebalancers/status", ""),
    (CONTROLLERS, "get list watch", sink::GROUP, "graphsinks", ""),
    (CONTROLLERS, "patch", sink::GROUP, "graphsinks/status", ""),
    (CONTROLLERS, "get list watch", remedy::GROUP, "remedies", ""),
    (CONTROLLERS, "get list watch update", autoscaling::GROUP, "federatedhpas cronfederatedhpas", ""),
    (CONTROLLERS, "update", autoscaling::GROUP, "federatedhpas/status cronfederatedhpas/status", ""),
    (CONTROLLERS, "get list watch patch", networking::GROUP, "multiclusterservices", ""),
    (CONTROLLERS, "get list watch", networking::GROUP, "multiclusteringresses", ""),
    (CONTROLLERS, "patch", networking::GROUP, "multiclusterservices/status multiclusteringresses/status", ""),
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
const SERVING_SECRET: &str = "karmada-system/crowsnest-serving";

/// Templates may be of any kind, and their scale and status are written; permissions may be limited to some kinds.
const TEMPLATE_VERBS: [&str; 5] = ["get", "list", "watch", "update", "patch"];

/// Verb, group and resource of the objects that GraphSinks name; permissions may be limited to these objects.
const GRAPH_SINK_REFERENCES: [(&str, &str, &str); 2] = [("get", "", "secrets"), ("get", "", "serviceaccounts")];

/// A required permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Permission {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    namespace: &'static str,
    name: &'static str,
    required_for: RequiredFor,
}

/// Functions of `serve` that require a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequiredFor {
    AllFunctions,
    /// The propagation of kinds without permissions of their own.
    OtherKinds,
    /// Serving with the certificate that `install` created.
    ServingSecret,
    /// GraphSinks.
    GraphSinks,
}

impl Permission {
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
pub(super) fn required_permissions(roles: &[Role]) -> Vec<Permission> {
    let has = |role: &Role| roles.contains(role) || roles.contains(&Role::All);
    let mut permissions: Vec<Permission> = Vec::new();
    for (_, verbs, group, resources, location) in
        REQUIREMENTS.iter().filter(|(required_by, ..)| required_by.iter().any(has))
    {
        let (namespace, name) = location.split_once('/').unwrap_or_default();
        for resource in resources.split_whitespace() {
            permissions.extend(verbs.split_whitespace().map(|verb| Permission {
                verb,
                group,
                resource,
                namespace,
                name,
                required_for: if *location == SERVING_SECRET {
                    RequiredFor::ServingSecret
                } else {
                    RequiredFor::AllFunctions
                },
            }));
        }
    }
    if has(&Role::Controllers) {
        let required_for = RequiredFor::OtherKinds;
        let template_permission =
            |verb| Permission { verb, group: "*", resource: "*", namespace: "", name: "", required_for };
        permissions.extend(TEMPLATE_VERBS.map(template_permission));
        let required_for = RequiredFor::GraphSinks;
        let reference_permission =
            |(verb, group, resource)| Permission { verb, group, resource, namespace: "", name: "", required_for };
        permissions.extend(GRAPH_SINK_REFERENCES.map(reference_permission));
    }
    let mut distinct: Vec<Permission> = Vec::new();
    for permission in permissions {
        if !distinct.contains(&permission) {
            distinct.push(permission);
        }
    }
    distinct
}

/// The findings about missing permissions.
pub(super) fn report_missing(missing: &[Permission]) -> Vec<Finding> {
    let select =
        |required_for| missing.iter().filter(|permission| permission.required_for == required_for).collect::<Vec<_>>();
    let (kinds, certificate, missing) =
        (select(RequiredFor::OtherKinds), select(RequiredFor::ServingSecret), select(RequiredFor::AllFunctions));
    let graph_sinks = select(RequiredFor::GraphSinks);
    let mut findings = Vec::new();
    if !missing.is_empty() {
        findings.push(Finding::broken(
            SUBJECT,
            format!("this user cannot {}", list_permissions(&missing)),
            "grant these permissions, or the ClusterRole cluster-admin, to the user of serve's kubeconfig, and run doctor with that kubeconfig; if serve has --roles, pass the same --roles",
        ));
    }
    if !certificate.is_empty() {
        findings.push(Finding::warning(
            SUBJECT,
            format!(
                "this user cannot {}, the certificate that install created for serve",
                list_permissions(&certificate)
            ),
            "none needed if serve uses --tls-cert-file or no certificate; otherwise grant these permissions too",
        ));
    }
    if !graph_sinks.is_empty() {
        findings.push(Finding::warning(
            SUBJECT,
            format!("this user cannot {}, which GraphSinks may name", list_permissions(&graph_sinks)),
            "none needed without GraphSinks, or if the permissions for the objects that they name are granted; otherwise grant those too",
        ));
    }
    if !kinds.is_empty() {
        let verbs: Vec<&str> = kinds.iter().map(|permission| permission.verb).collect();
        findings.push(Finding::warning(
            SUBJECT,
            format!("this user cannot {} objects of all kinds; other kinds are not propagated", verbs.join(", ")),
            "none needed if the permissions for all propagated kinds are granted; otherwise grant those too",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::good(SUBJECT, "all required permissions are granted"));
    }
    findings
}

/// Lists missing permissions, grouped by resource.
fn list_permissions(missing: &[&Permission]) -> String {
    let mut by_resource: Vec<(String, Vec<&str>)> = Vec::new();
    for permission in missing {
        let dot = if permission.group.is_empty() { "" } else { "." };
        let mut resource = format!("{}{dot}{}", permission.resource, permission.group);
        if !permission.namespace.is_empty() {
            resource += &format!(" in {}", permission.namespace);
            if !permission.name.is_empty() {
                resource += &format!("/{}", permission.name);
            }
        }
        match by_resource.iter_mut().find(|(name, _)| *name == resource) {
            Some((_, verbs)) => verbs.push(permission.verb),
            None => by_resource.push((resource, vec![permission.verb])),
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

    fn permission(verb: &'static str, group: &'static str, resource: &'static str) -> Permission {
        let required_for = match (group, resource) {
            ("*", _) => RequiredFor::OtherKinds,
            (_, "secrets" | "serviceaccounts") => RequiredFor::GraphSinks,
            _ => RequiredFor::AllFunctions,
        };
        Permission { verb, group, resource, namespace: "", name: "", required_for }
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
    #[case(&[Role::Controllers], "serviceaccounts", true)]
    #[case(&[Role::Aggregated], "serviceaccounts", false)]
    fn roles_require_their_permissions(#[case] roles: &[Role], #[case] resource: &str, #[case] expected: bool) {
        let required = required_permissions(roles);
        assert_eq!(required.iter().any(|permission| permission.resource == resource), expected, "{required:?}");
    }

    #[test]
    fn the_ui_requires_no_permissions() {
        assert_eq!(required_permissions(&[Role::Ui]), []);
    }

    #[test]
    fn permissions_are_distinct_and_limited() {
        let all = required_permissions(&[Role::All, Role::Controllers]);
        for (at, permission) in all.iter().enumerate() {
            assert!(!all[..at].contains(permission), "{permission:?}");
            assert!(
                permission.verb != "*"
                    && (permission.required_for == RequiredFor::OtherKinds
                        || (permission.resource != "*" && permission.group != "*")),
                "{permission:?}"
            );
        }
    }

    #[test]
    fn subresources_and_names_are_separate() {
        let required = required_permissions(&[Role::All]);
        let attributes_of =
            |resource: &str| required.iter().find(|permission| permission.resource == resource).unwrap().attributes();
        let status = attributes_of("works/status");
        assert_eq!((status.resource.as_deref(), status.subresource.as_deref()), (Some("works"), Some("status")));
        let signer = attributes_of("signers");
        assert_eq!((signer.name.as_deref(), signer.namespace), (Some("kubernetes.io/kube-apiserver-client"), None));
        let secrets: Vec<_> = required
            .iter()
            .filter(|permission| permission.resource == "secrets" && permission.verb == "watch")
            .collect();
        let locations: Vec<_> = secrets.iter().map(|permission| (permission.namespace, permission.name)).collect();
        assert_eq!(locations, [("karmada-system", "crowsnest-serving"), ("karmada-cluster", "")]);
        assert_eq!(secrets[1].attributes().name, None);
    }

    #[rstest]
    #[case(&[Role::Webhook], true)]
    #[case(&[Role::Aggregated], true)]
    #[case(&[Role::Cache, Role::Controllers], false)]
    fn listeners_read_the_certificate(#[case] roles: &[Role], #[case] expected: bool) {
        let missing: Vec<Permission> = required_permissions(roles)
            .into_iter()
            .filter(|permission| permission.required_for == RequiredFor::ServingSecret)
            .collect();
        assert_eq!(!missing.is_empty(), expected);
        let found = report_missing(&missing);
        let summary = format!("{:?} {}", found[0].severity, found[0].observation);
        let warning =
            "Warning this user cannot get/list/watch secrets in karmada-system/crowsnest-serving, the certificate";
        assert_eq!(summary.starts_with(warning), expected, "{summary}");
    }

    #[rstest]
    #[case(&[], &[(Severity::Good, "all required permissions are granted")])]
    #[case(&[permission("get", "work.karmada.io", "works"), permission("list", "", "events"), permission("list", "work.karmada.io", "works")],
        &[(Severity::Broken, "this user cannot get/list works.work.karmada.io, list events")])]
    #[case(&[permission("list", "*", "*"), permission("patch", "*", "*")],
        &[(Severity::Warning, "this user cannot list, patch objects of all kinds; other kinds are not propagated")])]
    #[case(&[permission("get", "", "secrets"), permission("get", "", "serviceaccounts")],
        &[(Severity::Warning, "this user cannot get secrets, get serviceaccounts, which GraphSinks may name")])]
    fn missing_permissions_are_reported(#[case] missing: &[Permission], #[case] expected: &[(Severity, &str)]) {
        let found = report_missing(missing);
        let findings: Vec<_> = found.iter().map(|found| (found.severity, found.observation.as_str())).collect();
        assert_eq!(findings, expected);
    }
}
