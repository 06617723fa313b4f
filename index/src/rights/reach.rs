//! In which members a caller of the control plane counts as the member's own user of that name, and of which members they
//! may know that they are there.
//!
//! Users and groups are named by whoever authenticates them, for the whole fleet: a person is the same one in every cluster
//! (docs/RIGHTS.md). Service accounts are not: each cluster makes its own, and whoever may create one in a namespace of the
//! control plane would choose the account of a member whose rights they get. So a member's rules count for a service account
//! of the control plane where the control plane says that it may reach into that member: `get` of `clusters/proxy`
//! (Karmada's unified auth makes an account known to a member by the same right).

use crowsnest_api::names::ClusterName;
use crowsnest_api::rbac::{Grant, Readable, Reading};
use crowsnest_api::user::UserInfo;

const GROUP: &str = "cluster.karmada.io";
const CLUSTERS: &str = "clusters";

/// What the control plane's rules say of one caller and the clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    /// Counts in the members of `proxied` only.
    bounded: bool,
    /// Clusters whose proxy the caller may use.
    proxied: Readable,
    /// Clusters that the caller may `get` or `list`.
    listed: Readable,
}

impl Default for Reach {
    /// That of a user whom no rule names.
    fn default() -> Self {
        Self { bounded: false, proxied: Readable::Nothing, listed: Readable::Nothing }
    }
}

impl Reach {
    /// By what the caller is granted in the control plane.
    pub fn of(caller: &UserInfo, granted: &[Grant]) -> Self {
        Self {
            bounded: caller.is_service_account(),
            proxied: Readable::of_subresource(granted, GROUP, CLUSTERS, "proxy"),
            listed: Readable::of(granted, Reading::ByName, GROUP, CLUSTERS, ""),
        }
    }

    /// Whether the cluster's rules are about this caller.
    pub fn counts_in(&self, cluster: &ClusterName) -> bool {
        !self.is_bounded_in(cluster) || self.proxied.holds(cluster.as_str())
    }

    /// Whether it depends on the control plane's rules what the caller is granted in the cluster.
    pub fn is_bounded_in(&self, cluster: &ClusterName) -> bool {
        self.bounded && !cluster.is_control_plane()
    }

    /// Whether the caller may know of the cluster, whatever they may read in it.
    pub fn names(&self, cluster: &ClusterName) -> bool {
        let name = cluster.as_str();
        cluster.is_control_plane() || self.listed.holds(name) || self.proxied.holds(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_api::rbac::Rbac;
    use rstest::rstest;
    use serde_json::{Value, json};

    const ACCOUNT: &str = "system:serviceaccount:monitoring:prometheus";

    fn rule(resource: &str, names: &[&str], verb: &str) -> Value {
        json!({"apiGroups": [GROUP], "resources": [resource], "resourceNames": names, "verbs": [verb]})
    }

    #[rstest]
    #[case::user_without_rights("ann", None, ["counts", "counts"])]
    #[case::user_who_lists("ann", Some(rule("clusters", &[], "list")), ["names counts", "names counts"])]
    #[case::user_who_gets_one("ann", Some(rule("clusters", &["m2"], "get")), ["counts", "names counts"])]
    #[case::user_with_a_proxy("ann", Some(rule("clusters/proxy", &["m2"], "get")), ["counts", "names counts"])]
    #[case::account_without_rights(ACCOUNT, None, ["", ""])]
    #[case::account_that_lists(ACCOUNT, Some(rule("clusters", &[], "list")), ["names", "names"])]
    #[case::account_with_a_proxy(ACCOUNT, Some(rule("clusters/proxy", &["m2"], "get")), ["", "names counts"])]
    #[case::account_with_all_proxies(ACCOUNT, Some(rule("clusters/proxy", &[], "*")), ["names counts", "names counts"])]
    #[case::account_that_creates_by_proxy(ACCOUNT, Some(rule("clusters/proxy", &[], "create")), ["", ""])]
    #[case::a_name_is_no_pattern(ACCOUNT, Some(rule("clusters/proxy", &["*"], "get")), ["", ""])]
    fn members_are_reached(#[case] caller: &str, #[case] rule: Option<Value>, #[case] expected: [&str; 2]) {
        let mut rbac = Rbac::default();
        rbac.put_role("", "role", serde_json::from_value(json!({"rules": rule.as_slice()})).unwrap());
        let binding =
            json!({"roleRef": {"kind": "ClusterRole", "name": "role"}, "subjects": [{"kind": "User", "name": caller}]});
        rbac.put_binding("", "binding", serde_json::from_value(binding).unwrap());
        let caller = UserInfo::new(caller, [""]);
        let reach = Reach::of(&caller, &rbac.grants(&caller));
        let said = ["m1", "m2"].map(|name| {
            let cluster = ClusterName::parse(name).unwrap();
            let both = [("names", reach.names(&cluster)), ("counts", reach.counts_in(&cluster))];
            both.iter().filter(|(_, is)| *is).map(|(word, _)| *word).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(said, expected);
        let own = ClusterName::control_plane();
        assert!(reach.counts_in(&own) && reach.names(&own), "the control plane's rules are about its own accounts");
    }
}
