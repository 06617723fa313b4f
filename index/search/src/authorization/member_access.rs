//! Members whose RBAC rules apply to a caller of the control plane, and members that the caller may see.
//!
//! Users and groups are named by the authenticator for the whole fleet: the same name is the same user in every cluster
//! (docs/AUTHORIZATION.md). This is not true of service accounts: each cluster creates its own, so a user who may create one
//! in the control plane could choose the name of a member's account and get its permissions. A member's rules therefore
//! apply to a service account of the control plane only if the control plane grants it access to that member: `get` on
//! `clusters/proxy`. Karmada's unified auth uses the same permission to make an account known to a member.

use crowsnest_api::cluster::GROUP;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::{Grant, ReadKind, ReadableNames};
use crowsnest_apimachinery::user::UserInfo;

const CLUSTERS: &str = "clusters";

/// Clusters that one caller may access, by the control plane's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberAccess {
    /// The caller's permissions are limited to the members in `proxied`.
    is_limited_to_proxied: bool,
    /// Clusters whose proxy the caller may use.
    proxied: ReadableNames,
    /// Clusters that the caller may `get` or `list`.
    listed: ReadableNames,
}

impl Default for MemberAccess {
    /// Access of a user without grants.
    fn default() -> Self {
        Self { is_limited_to_proxied: false, proxied: ReadableNames::Nothing, listed: ReadableNames::Nothing }
    }
}

impl MemberAccess {
    /// Derives the access from the caller's grants in the control plane.
    pub fn from_grants(caller: &UserInfo, granted: &[Grant]) -> Self {
        Self {
            is_limited_to_proxied: caller.is_service_account(),
            proxied: ReadableNames::for_subresource(granted, GROUP, CLUSTERS, "proxy"),
            listed: ReadableNames::from_grants(granted, ReadKind::ByName, GROUP, CLUSTERS, ""),
        }
    }

    /// True if the cluster's rules apply to this caller.
    pub fn rules_apply_in(&self, cluster: &ClusterName) -> bool {
        !self.depends_on_control_plane_in(cluster) || self.proxied.contains(cluster.as_str())
    }

    /// True if the caller's grants in the cluster depend on the control plane's rules.
    pub fn depends_on_control_plane_in(&self, cluster: &ClusterName) -> bool {
        self.is_limited_to_proxied && !cluster.is_control_plane()
    }

    /// True if the caller may see the cluster, independent of its permissions in it.
    pub fn can_see(&self, cluster: &ClusterName) -> bool {
        let name = cluster.as_str();
        cluster.is_control_plane() || self.listed.contains(name) || self.proxied.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::rbac::Rbac;
    use rstest::rstest;
    use serde_json::{Value, json};

    const ACCOUNT: &str = "system:serviceaccount:monitoring:prometheus";

    fn rule(resource: &str, names: &[&str], verb: &str) -> Value {
        json!({"apiGroups": [GROUP], "resources": [resource], "resourceNames": names, "verbs": [verb]})
    }

    #[rstest]
    #[case::user_without_permissions("ann", None, ["accesses", "accesses"])]
    #[case::user_who_lists("ann", Some(rule("clusters", &[], "list")), ["sees accesses", "sees accesses"])]
    #[case::user_who_gets_one("ann", Some(rule("clusters", &["m2"], "get")), ["accesses", "sees accesses"])]
    #[case::user_with_a_proxy("ann", Some(rule("clusters/proxy", &["m2"], "get")), ["accesses", "sees accesses"])]
    #[case::account_without_permissions(ACCOUNT, None, ["", ""])]
    #[case::account_that_lists(ACCOUNT, Some(rule("clusters", &[], "list")), ["sees", "sees"])]
    #[case::account_with_a_proxy(ACCOUNT, Some(rule("clusters/proxy", &["m2"], "get")), ["", "sees accesses"])]
    #[case::account_with_all_proxies(ACCOUNT, Some(rule("clusters/proxy", &[], "*")), ["sees accesses", "sees accesses"])]
    #[case::account_that_creates_by_proxy(ACCOUNT, Some(rule("clusters/proxy", &[], "create")), ["", ""])]
    #[case::a_name_is_no_pattern(ACCOUNT, Some(rule("clusters/proxy", &["*"], "get")), ["", ""])]
    fn members_are_accessed_by_grants(#[case] caller: &str, #[case] rule: Option<Value>, #[case] expected: [&str; 2]) {
        let mut rbac = Rbac::default();
        rbac.put_role("", "role", serde_json::from_value(json!({"rules": rule.as_slice()})).unwrap());
        let binding =
            json!({"roleRef": {"kind": "ClusterRole", "name": "role"}, "subjects": [{"kind": "User", "name": caller}]});
        rbac.put_binding("", "binding", serde_json::from_value(binding).unwrap());
        let caller = UserInfo::new(caller, [""]);
        let member_access = MemberAccess::from_grants(&caller, &rbac.grants(&caller));
        let accessed = ["m1", "m2"].map(|name| {
            let cluster = ClusterName::parse(name).unwrap();
            let abilities =
                [("sees", member_access.can_see(&cluster)), ("accesses", member_access.rules_apply_in(&cluster))];
            abilities.iter().filter(|(_, is_allowed)| *is_allowed).map(|(word, _)| *word).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(accessed, expected);
        let control_plane = ClusterName::control_plane();
        assert!(
            member_access.rules_apply_in(&control_plane) && member_access.can_see(&control_plane),
            "the control plane's rules apply to its own accounts"
        );
    }
}
