//! Audit annotations about members: the members that a request reaches, and the request it sends there.
//!
//! If the path contains this information, [`MemberRequests`] adds it before the request is handled. The control plane
//! does the same for requests that it forwards to this server, because only it writes their audit events. Otherwise the
//! proxies add the information through [`AuditObserver`].

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apiserver::audit::{Attributes, ForwardResolver, ForwardedRequest, Record};
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

/// Maximum number of clusters that an annotation names; a fleet may have thousands.
const MAX_NAMED_CLUSTERS: usize = 16;

/// Our resources that may contain Secrets: manifests of Works.
pub const SENSITIVE_RESOURCES: [(&str, &str); 1] = [("work.karmada.io", "works")];

/// Audit attributes of requests to members through our API groups.
pub struct MemberRequests;

impl ForwardResolver for MemberRequests {
    fn resolve(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<ForwardedRequest> {
        let is_ours = matches!(REGISTRY.route(uri.path()), Route::Group(_) | Route::Resources(..) | Route::Resource(_));
        is_ours.then(|| RequestAttributes::parse(&REGISTRY, method, uri, headers).forwarded_request())
    }
}

impl RequestAttributes {
    /// The request to the member, for the audit log.
    pub fn forwarded_request(&self) -> ForwardedRequest {
        ForwardedRequest {
            attributes: self.member.clone(),
            annotations: annotations(self),
            is_long_running: self.is_long_running,
        }
    }
}

fn annotations(attributes: &RequestAttributes) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    let mut annotate = |key: &str, value: &str| {
        if !value.is_empty() {
            annotations.insert(key.to_owned(), value.to_owned());
        }
    };
    annotate(CLUSTER, attributes.cluster.as_deref().unwrap_or_default());
    if let Some(member) = &attributes.member {
        let Attributes { verb, group, resource, subresource, namespace, name, path, .. } = member;
        annotate(MEMBER_VERB, verb);
        annotate(MEMBER_PATH, path.as_deref().unwrap_or_default());
        annotate(MEMBER_NAMESPACE, namespace);
        annotate(MEMBER_NAME, name);
        if path.is_none() {
            let dot = if group.is_empty() { "" } else { "." };
            let slash = if subresource.is_empty() { "" } else { "/" };
            annotate(MEMBER_RESOURCE, &format!("{resource}{dot}{group}{slash}{subresource}"));
        }
    }
    annotations
}

/// Observer that adds the clusters a request reaches to its audit record. Tunnels keep it until they end.
pub struct AuditObserver(pub Arc<Record>);

impl crowsnest_proxy::ClusterObserver for AuditObserver {
    fn record_request(&self, cluster: &ClusterName) {
        self.0.annotate(CLUSTER, cluster.as_str());
    }

    fn record_clusters(&self, clusters: &[ClusterName]) {
        for (key, value) in cluster_annotations(clusters) {
            self.0.annotate(key, &value);
        }
    }
}

/// Annotations of a request whose response has data of these clusters; the clusters are sorted by name.
fn cluster_annotations(clusters: &[ClusterName]) -> Vec<(&'static str, String)> {
    match clusters {
        [only] => vec![(CLUSTER, only.to_string())],
        several => {
            let first: Vec<&str> = several.iter().take(MAX_NAMED_CLUSTERS).map(ClusterName::as_str).collect();
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
    fn requests_to_members_are_parsed_from_the_path(
        #[case] method: &str,
        #[case] uri: String,
        #[case] expected: Option<(bool, &str)>,
    ) {
        let forwarded = MemberRequests.resolve(&method.parse().unwrap(), &uri.parse().unwrap(), &HeaderMap::new());
        let annotations = |forwarded: &ForwardedRequest| {
            let annotations = forwarded.annotations.iter();
            let annotations =
                annotations.map(|(key, value)| format!("{}={value}", key.strip_prefix("crowsnest.io/").unwrap()));
            annotations.collect::<Vec<_>>().join(" ")
        };
        let seen = forwarded.map(|forwarded| (forwarded.is_long_running, annotations(&forwarded)));
        assert_eq!(seen, expected.map(|(is_long_running, annotations)| (is_long_running, annotations.to_owned())));
    }

    #[rstest]
    #[case(1, &[(CLUSTER, "m1")])]
    #[case(3, &[(CLUSTERS, "m1,m2,m3"), (CLUSTER_COUNT, "3")])]
    #[case(0, &[(CLUSTERS, ""), (CLUSTER_COUNT, "0")])]
    #[case(17, &[(CLUSTERS, "m1,m2,m3,m4,m5,m6,m7,m8,m9,m10,m11,m12,m13,m14,m15,m16"), (CLUSTER_COUNT, "17")])]
    fn a_limited_number_of_clusters_is_named(#[case] count: usize, #[case] expected: &[(&'static str, &str)]) {
        let clusters: Vec<_> = (1..=count).map(|nth| ClusterName::parse(&format!("m{nth}")).unwrap()).collect();
        let expected: Vec<_> = expected.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        assert_eq!(cluster_annotations(&clusters), expected);
    }
}
