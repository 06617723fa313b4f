//! Permissions of Crowsnest's service accounts in a member, chosen at join. Has no side effects.
//!
//! Full permissions are those that `karmadactl join` grants. With less, roles cannot be written through Crowsnest
//! later, so the permission to impersonate callers is granted at the join as well.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};

use crate::{ApiResources, Error};

/// The resource that is not readable with [`MemberPermissions::Observe`] and [`MemberPermissions::Steer`].
const SECRETS: &str = "secrets";
const READ_VERBS: [&str; 3] = ["get", "list", "watch"];
/// Objects are replaced and deleted individually, never patched (`crowsnest_controllers::propagation::execution`).
const WRITE_VERBS: [&str; 6] = ["get", "list", "watch", "create", "update", "delete"];
/// Paths of health, version (`probe`) and discovery.
const PROBE_PATHS: [&str; 7] = ["/healthz", "/readyz", "/version", "/api", "/api/*", "/apis", "/apis/*"];
/// Name of the core group in options.
const CORE_GROUP: &str = "core";

/// Permissions of the service account; see the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum MemberPermissions {
    #[default]
    Full,
    /// Read everything except Secrets: for search, lists, watches and status.
    Observe,
    /// Observe, and write resources of these groups.
    Steer(BTreeSet<String>),
    /// Exactly these rules.
    Rules(Vec<PolicyRule>),
}

impl std::str::FromStr for MemberPermissions {
    type Err = String;

    /// `full`, `observe`, or `steer:core,apps`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "full" => Ok(Self::Full),
            None if text == "observe" => Ok(Self::Observe),
            Some(("steer", groups)) if !groups.is_empty() => {
                let group = |group: &str| match group.trim() {
                    CORE_GROUP => Ok(String::new()),
                    "" => Err("an API group is empty; use core for the group of pods".to_owned()),
                    group if group.contains(['*', '/']) => Err(format!("{group:?} is not an API group")),
                    group => Ok(group.to_owned()),
                };
                groups.split(',').map(group).collect::<Result<_, _>>().map(Self::Steer)
            }
            _ => Err(format!("{text:?} is not one of full, observe, steer:GROUP,GROUP (for example steer:core,apps)")),
        }
    }
}

impl MemberPermissions {
    /// Reads the rules of a ClusterRole in YAML or JSON.
    pub fn from_role(text: &str) -> Result<Self, Error> {
        let unusable = |reason: String| Error::Join(format!("this is not a ClusterRole: {reason}"));
        let role: serde_json::Value = serde_saphyr::from_str(text).map_err(|e| unusable(e.to_string()))?;
        if role["kind"] != "ClusterRole" {
            return Err(unusable(format!("its kind is {}", role["kind"])));
        }
        let role: ClusterRole = serde_json::from_value(role).map_err(|e| unusable(e.to_string()))?;
        match role.rules {
            Some(rules) if !rules.is_empty() => Ok(Self::Rules(rules)),
            _ => Err(unusable("it has no rules".to_owned())),
        }
    }

    /// Value of the Cluster's annotation; None for full permissions.
    pub fn annotation_value(&self) -> Option<&'static str> {
        match self {
            Self::Full => None,
            Self::Observe => Some("observe"),
            Self::Steer(_) => Some("steer"),
            Self::Rules(_) => Some("rules"),
        }
    }

    /// True if the rules list the member's resources: RBAC cannot exclude a resource, so all others are named.
    pub fn needs_resources(&self) -> bool {
        matches!(self, Self::Observe | Self::Steer(_))
    }

    /// The rules of the service account in a member that serves `resources`.
    pub fn rules(&self, resources: &ApiResources) -> Vec<PolicyRule> {
        match self {
            Self::Full => vec![rule(&["*"], &["*"], &["*"]), path_rule(&["*"])],
            Self::Rules(rules) => rules.clone(),
            Self::Observe => observe_rules(resources),
            Self::Steer(groups) => {
                let mut rules = observe_rules(resources);
                for group in groups {
                    let all = if group.is_empty() { core_resources(resources) } else { BTreeSet::from(["*"]) };
                    let all: Vec<&str> = all.into_iter().collect();
                    rules.push(rule(&[group.as_str()], &all, &WRITE_VERBS));
                }
                rules
            }
        }
    }

    /// The rules of the impersonator if the control plane does not maintain them.
    pub fn impersonator_rules(&self) -> Option<Vec<PolicyRule>> {
        let all = || {
            vec![
                rule(&[""], &["users", "groups", "serviceaccounts"], &["impersonate"]),
                rule(&["authentication.k8s.io"], &["*"], &["impersonate"]),
            ]
        };
        (*self != Self::Full).then(all)
    }
}

/// Rules to read all watchable resources except Secrets.
fn observe_rules(resources: &ApiResources) -> Vec<PolicyRule> {
    let groups: BTreeSet<&str> = resources.resources.iter().map(|one| &*one.gvr.group).collect();
    let groups: Vec<&str> = groups.into_iter().filter(|group| !group.is_empty()).collect();
    let core: Vec<&str> = core_resources(resources).into_iter().collect();
    let mut rules = vec![rule(&[""], &core, &READ_VERBS)];
    if !groups.is_empty() {
        rules.push(rule(&groups, &["*"], &READ_VERBS));
    }
    rules.push(path_rule(&PROBE_PATHS));
    rules
}

/// Watchable resources of the core group except Secrets. Excludes `bindings`: creating one schedules a pod.
fn core_resources(resources: &ApiResources) -> BTreeSet<&str> {
    let core = resources.resources.iter().filter(|one| one.gvr.group.is_empty() && one.verbs.contains("watch"));
    core.map(|one| &*one.gvr.resource).filter(|resource| *resource != SECRETS).collect()
}

fn to_strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(to_strings(groups)),
        resources: Some(to_strings(resources)),
        verbs: to_strings(verbs),
        ..PolicyRule::default()
    }
}

fn path_rule(paths: &[&str]) -> PolicyRule {
    PolicyRule { non_resource_urls: Some(to_strings(paths)), verbs: to_strings(&["get"]), ..PolicyRule::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ApiResource;
    use crowsnest_apimachinery::names::Gvr;
    use rstest::rstest;

    fn served() -> ApiResources {
        let api_resource = |group: &str, resource: &str| ApiResource {
            gvr: Gvr::new(group, "v1", resource),
            kind: String::new(),
            singular: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: if resource == "bindings" { BTreeSet::new() } else { BTreeSet::from(["watch".into()]) },
            subresources: BTreeSet::new(),
            preferred: true,
        };
        let all = [
            ("", "secrets"),
            ("", "bindings"),
            ("", "pods"),
            ("", "nodes"),
            ("batch", "jobs"),
            ("apps", "deployments"),
        ];
        ApiResources {
            resources: all.map(|(group, resource)| api_resource(group, resource)).into(),
            stale: BTreeSet::new(),
        }
    }

    #[rstest]
    #[case("full")]
    #[case("observe")]
    #[case("steer:core,apps")]
    fn permissions_are_converted_to_rules(#[case] text: &str) {
        let permissions: MemberPermissions = text.parse().unwrap();
        let rules = (permissions.rules(&served()), permissions.impersonator_rules());
        insta::assert_yaml_snapshot!(text.split(':').next().unwrap(), rules);
    }

    #[rstest]
    #[case("all", "is not one of")]
    #[case("steer", "is not one of")]
    #[case("steer:", "is not one of")]
    #[case("steer:apps,", "is empty")]
    #[case("steer:*", "is not an API group")]
    #[case("observe:apps", "is not one of")]
    fn invalid_permissions_are_refused(#[case] text: &str, #[case] expected: &str) {
        let error = text.parse::<MemberPermissions>().unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case("kind: ClusterRole\nrules: [{apiGroups: [''], resources: [pods], verbs: [list]}]", None)]
    #[case("kind: ClusterRole\nrules: []", Some("it has no rules"))]
    #[case("kind: Role\nrules: []", Some("its kind is \"Role\""))]
    #[case("kind: ClusterRole\nrules: [{verbs: 1}]", Some("not a ClusterRole: "))]
    #[case("kind: [", Some("not a ClusterRole: "))]
    fn rules_are_read_from_a_cluster_role(#[case] text: &str, #[case] refused: Option<&str>) {
        match (MemberPermissions::from_role(text), refused) {
            (Ok(MemberPermissions::Rules(rules)), None) => assert_eq!(rules, [rule(&[""], &["pods"], &["list"])]),
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }
}
