//! Audit annotations about members: the members that a request reaches, and the request it sends there.
//!
//! If the path contains this information, it is known before the request is handled, also to the control plane, which
//! then writes the only event of a request that it forwards. Otherwise the proxies add it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apiserver::audit::{Attributes, Beyond, Lookout, Record};
use http::{HeaderMap, Method, Uri};

use crate::request::context::RequestAttributes;
use crate::resource::registry::{REGISTRY, Route};

/// Cluster that was queried, or whose cached objects were returned; `*` means every cluster.
const CLUSTER: &str = "crowsnest.io/cluster";
/// Names of the first clusters, if there are several, and their number.
const CLUSTERS: &str = "crowsnest.io/clusters";
const CLUSTER_COUNT: &str = "crowsnest.io/cluster-count";
/// Request to the member, in RBAC's terms.
const MEMBER_VERB: &str = "crowsnest.io/member-verb";
const MEMBER_RESOURCE: &str = "crowsnest.io/member-resource";
const MEMBER_NAMESPACE: &str = "crowsnest.io/member-namespace";
const MEMBER_NAME: &str = "crowsnest.io/member-name";
const MEMBER_PATH: &str = "crowsnest.io/member-path";

/// Maximum number of clusters that are named; a fleet may have thousands.
const NAMED: usize = 16;

/// Our resources that may contain Secrets: manifests of Works.
pub const SENSITIVE_RESOURCES: [(&str, &str); 1] = [("work.karmada.io", "works")];

/// Audit attributes of requests to members through our API groups.
pub struct Members;

impl Lookout for Members {
    fn beyond(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Beyond> {
        let is_ours = matches!(REGISTRY.route(uri.path()), Route::Group(_) | Route::Resources(..) | Route::Resource(_));
        is_ours.then(|| RequestAttributes::parse(&REGISTRY, method, uri, headers).beyond())
    }
}

impl RequestAttributes {
    /// Implementation for the audit log.
    pub fn beyond(&self) -> Beyond {
        Beyond { attributes: self.member.clone(), annotations: annotations(self), lasts: self.long_running }
    }
}

fn annotations(attributes: &RequestAttributes) -> BTreeMap<String, String> {
    let mut notes = BTreeMap::new();
    let mut note = |key: &str, value: &str| {
        if !value.is_empty() {
            notes.insert(key.to_owned(), value.to_owned());
        }
    };
    note(CLUSTER, attributes.cluster.as_deref().unwrap_or_default());
    if let Some(member) = &attributes.member {
        let Attributes { verb, group, resource, subresource, namespace, name, path, .. } = member;
        note(MEMBER_VERB, verb);
        note(MEMBER_PATH, path.as_deref().unwrap_or_default());
        note(MEMBER_NAMESPACE, namespace);
        note(MEMBER_NAME, name);
        if path.is_none() {
            let dot = if group.is_empty() { "" } else { "." };
            let slash = if subresource.is_empty() { "" } else { "/" };
            note(MEMBER_RESOURCE, &format!("{resource}{dot}{group}{slash}{subresource}"));
        }
    }
    notes
}

/// Audit record to which the proxies add the clusters that a request reaches. Tunnels hold it until they end.
pub struct Reached(pub Arc<Record>);

impl crowsnest_proxy::ClusterObserver for Reached {
    fn asks(&self, cluster: &ClusterName) {
        self.0.note(CLUSTER, cluster.as_str());
    }

    fn reads(&self, clusters: &[ClusterName]) {
        for (key, value) in read(clusters) {
            self.0.note(key, &value);
        }
    }
}

/// Annotations of a request that these clusters answer; the clusters are sorted by name.
fn read(clusters: &[ClusterName]) -> Vec<(&'static str, String)> {
    match clusters {
        [only] => vec![(CLUSTER, only.to_string())],
        several => {
            let first: Vec<&str> = several.iter().take(NAMED).map(ClusterName::as_str).collect();
            vec![(CLUSTERS, first.join(",")), (CLUSTER_COUNT, several.len().to_string())]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const MEMBER: &str = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy";
    const FLEET: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";

    #[rstest]
    #[case::exec("POST", format!("{MEMBER}/api/v1/namespaces/default/pods/web/exec?command=ls"),
        Some((true, "cluster=m1 member-name=web member-namespace=default member-resource=pods/exec member-verb=create")))]
    #[case::of_a_group("GET", format!("{MEMBER}/apis/apps/v1/deployments"),
        Some((false, "cluster=m1 member-resource=deployments.apps member-verb=list")))]
    #[case::a_path("GET", format!("{MEMBER}/metrics"), Some((false, "cluster=m1 member-path=/metrics member-verb=get")))]
    #[case::the_fleet("GET", format!("{FLEET}/api/v1/pods?watch=1"),
        Some((true, "member-resource=pods member-verb=watch")))]
    #[case::ours("GET", "/apis/cluster.karmada.io/v1alpha1/clusters/m1".to_owned(), Some((false, "")))]
    #[case::discovery("GET", "/apis".to_owned(), None)]
    #[case::the_control_planes("GET", "/api/v1/pods?watch=1".to_owned(), None)]
    fn what_is_asked_of_members_is_in_the_path(
        #[case] method: &str,
        #[case] uri: String,
        #[case] expected: Option<(bool, &str)>,
    ) {
        let beyond = Members.beyond(&method.parse().unwrap(), &uri.parse().unwrap(), &HeaderMap::new());
        let notes = |beyond: &Beyond| {
            let notes = beyond.annotations.iter();
            let notes = notes.map(|(key, value)| format!("{}={value}", key.strip_prefix("crowsnest.io/").unwrap()));
            notes.collect::<Vec<_>>().join(" ")
        };
        let seen = beyond.map(|beyond| (beyond.lasts, notes(&beyond)));
        assert_eq!(seen, expected.map(|(lasts, notes)| (lasts, notes.to_owned())));
    }

    #[rstest]
    #[case(1, &[(CLUSTER, "m1")])]
    #[case(3, &[(CLUSTERS, "m1,m2,m3"), (CLUSTER_COUNT, "3")])]
    #[case(0, &[(CLUSTERS, ""), (CLUSTER_COUNT, "0")])]
    #[case(17, &[(CLUSTERS, "m1,m2,m3,m4,m5,m6,m7,m8,m9,m10,m11,m12,m13,m14,m15,m16"), (CLUSTER_COUNT, "17")])]
    fn some_of_many_clusters_are_named(#[case] many: usize, #[case] expected: &[(&'static str, &str)]) {
        let clusters: Vec<_> = (1..=many).map(|nth| ClusterName::parse(&format!("m{nth}")).unwrap()).collect();
        let expected: Vec<_> = expected.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        assert_eq!(read(&clusters), expected);
    }
}
