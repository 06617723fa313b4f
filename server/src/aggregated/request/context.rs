//! Attributes of a request at this server and at the member that it is proxied to. Computed once, from the raw path.
//! Pure.

use crowsnest_apimachinery::request::{PathError, Query, RequestInfo, RequestPath, requested_upgrade};
use http::{HeaderMap, Method, header};

use crate::aggregated::request::authentication::Wanted;
use crate::aggregated::resource::registry::{CLUSTERS, Route, SEARCH};

/// Verbs that change nothing.
const READS: [&str; 5] = ["get", "list", "watch", "head", "options"];

/// Attributes of a request, for authorization, limits, audit and traces alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestContext {
    /// Attributes that the control plane authorizes.
    pub(crate) here: Wanted,
    /// Attributes of the proxied request, as the member's API server derives them.
    pub(crate) member: Option<Wanted>,
    /// Member that the path names; `*` means all members.
    pub(crate) cluster: Option<String>,
    /// True for watches, streams and tunnels: they have no time limit and do not count as in flight.
    pub(crate) long_running: bool,
    /// True for discovery and OpenAPI.
    pub(crate) discovery: bool,
    /// Reason why the path is refused: other servers could interpret it differently.
    pub(crate) refused: Option<PathError>,
}

impl RequestContext {
    /// Computes the attributes. `path` is the raw path that `route` was parsed from.
    pub(crate) fn of(route: &Route<'_>, method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Self {
        let query = Query::parse(query);
        let info = RequestInfo::parse(method, path, &query);
        let unserved = info.unserved;
        let here = Wanted::from(match route {
            // They apply the field selector.
            Route::Stored { .. } | Route::Usage(_) => info,
            // The others do not, so a right to the name that it requires is not sufficient.
            _ if !info.named => RequestInfo { name: String::new(), ..info },
            _ => info,
        });
        let inner = match route {
            Route::ClusterProxy { path, .. } | Route::SearchCache { path } | Route::FleetProxy { path } => Some(*path),
            _ => None,
        };
        let member = inner.map(|path| {
            let path = if path.is_empty() { "/" } else { path };
            Wanted::from(RequestInfo::parse(method, path, &query))
        });
        let cluster = matches!(route, Route::ClusterProxy { .. }).then(|| here.name.clone());
        let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let upgrade = requested_upgrade(headers).is_some();
        let long_running = here.verb == "watch"
            || (upgrade && matches!(route, Route::Attach { .. }))
            || (upgrade && member.as_ref().is_some_and(may_be_upgraded))
            || (accepts.contains("text/event-stream") && matches!(route, Route::Search(_)))
            || *route == Route::Search("logs")
            || member.as_ref().is_some_and(|member| is_long_running(member, &query));
        let discovery = matches!(route, Route::Groups | Route::Group(_) | Route::Resources { .. } | Route::OpenApi(_));
        let outer = &path[..path.len() - inner.map_or(0, str::len)];
        let inner = RequestPath::check_forwarded(method, inner.unwrap_or_default());
        let refused = RequestPath::parse(outer).err().or(unserved.map(PathError::from)).or(inner.err());
        Self { here, member, cluster, long_running, discovery, refused }
    }

    /// True if the request can change an object, here or in a member.
    pub(crate) fn writes(&self) -> bool {
        !READS.contains(&self.member.as_ref().unwrap_or(&self.here).verb.as_str())
    }
}

/// True if an upgraded connection to a member may be long-running. Lists and objects have none, nor has a path that leads through
/// this server's proxies again.
fn may_be_upgraded(member: &Wanted) -> bool {
    !member.subresource.is_empty() && !matches!(member.group.as_str(), CLUSTERS | SEARCH)
}

/// True if a request to a member is long-running. A path that leads through this server's proxies again is not, so that
/// each pass counts as in flight.
fn is_long_running(member: &Wanted, query: &Query) -> bool {
    match member.subresource.as_str() {
        "exec" | "attach" | "portforward" => true,
        "proxy" => member.group.is_empty(),
        "log" => query.flag("follow"),
        _ => matches!(member.verb.as_str(), "watch" | "proxy"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const CLUSTER: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
    const FLEET: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";

    fn context(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> RequestContext {
        let uri: http::Uri = uri.parse().unwrap();
        let headers = headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect();
        RequestContext::of(&Route::parse(uri.path()), &method.parse().unwrap(), uri.path(), uri.query(), &headers)
    }

    #[rstest]
    #[case("GET", "/m1/proxy/api/v1/pods", false, false)]
    #[case("GET", "/m1/proxy/api/v1/pods?watch=1", true, false)]
    #[case("GET", "/m1/proxy/api/v1/namespaces/a/pods/p/log", false, false)]
    #[case("GET", "/m1/proxy/api/v1/namespaces/a/pods/p/log?follow=true", true, false)]
    #[case("POST", "/m1/proxy/api/v1/namespaces/a/pods/p/exec", true, true)]
    #[case("DELETE", "/m1/proxy/api/v1/namespaces/a/pods/p", false, true)]
    #[case("POST", "/m1/proxy/version", false, true)]
    #[case("GET", "/m1/proxy", false, false)]
    #[case("GET", "?watch=true", true, false)]
    #[case("PATCH", "/m1", false, true)]
    fn what_lasts_and_what_writes(#[case] method: &str, #[case] tail: &str, #[case] lasts: bool, #[case] writes: bool) {
        let context = context(method, &format!("{CLUSTER}{tail}"), &[]);
        assert_eq!((context.long_running, context.writes()), (lasts, writes));
    }

    #[test]
    fn streams_and_upgrades_last() {
        let query = "/apis/search.crowsnest.io/v1alpha1/query";
        assert!(context("GET", query, &[("accept", "text/event-stream")]).long_running);
        assert!(!context("GET", query, &[("accept", "application/json")]).long_running);
        assert!(context("GET", "/apis/search.crowsnest.io/v1alpha1/logs?follow=true", &[]).long_running);
        let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
        let vnc = format!("{FLEET}/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v/vnc");
        assert!(context("GET", &vnc, &upgrade).long_running);
        // A caller's headers alone take no request out of the limits.
        assert!(!context("GET", &format!("{FLEET}/api/v1/pods"), &upgrade).long_running);
        assert!(!context("GET", &format!("{FLEET}/api/v1/pods"), &[("accept", "text/event-stream")]).long_running);
    }

    #[test]
    fn the_members_object_is_told() {
        let exec = context("GET", &format!("{CLUSTER}/m%31/proxy/api/v1/namespaces/a/pods/p/exec?command=ls"), &[]);
        assert_eq!((exec.here.verb.as_str(), exec.here.name.as_str()), ("get", "m1"));
        assert_eq!(exec.cluster.as_deref(), Some("m1"));
        let member = exec.member.unwrap();
        assert_eq!((member.resource.as_str(), member.subresource.as_str()), ("pods", "exec"));
        assert_eq!((member.namespace.as_str(), member.name.as_str()), ("a", "p"));
        let fleet = context("GET", &format!("{FLEET}/apis/apps/v1"), &[]);
        assert_eq!(fleet.member.unwrap().path.as_deref(), Some("/apis/apps/v1"));
        assert_eq!(fleet.cluster, None);
    }

    #[rstest]
    #[case(&format!("{CLUSTER}/m1%2Fstatus"), true)]
    #[case(&format!("{CLUSTER}/m1%2Fproxy/api/v1/secrets"), true)]
    #[case(&format!("{CLUSTER}//m1/proxy/api"), true)]
    #[case(&format!("{CLUSTER}/%2e%2e/clusters/m1"), true)]
    #[case(&format!("{CLUSTER}/m1/proxy/api%2Fv1/secrets"), true)]
    #[case(&format!("{CLUSTER}/m1/proxy//api/v1/secrets"), true)]
    #[case(&format!("{CLUSTER}/m1/proxy/api/v1/x/../secrets"), true)]
    #[case(&format!("{FLEET}/api%2Fv1/secrets"), true)]
    #[case(&format!("{CLUSTER}/m1/proxy/api/v1/namespaces/a/services/s/proxy/x%2Fy//z"), false)]
    #[case(&format!("{CLUSTER}/%2a/proxy/api/v1/pods"), false)]
    #[case(&format!("{CLUSTER}/m1/proxy/api/v1/watch/pods"), false)]
    #[case(&format!("{CLUSTER}/m1/proxy/api/v1/watch/namespaces/a/pods/p/exec"), true)]
    #[case(&format!("{CLUSTER}/m1/proxy/api/v1/proxy/namespaces/a/pods/p"), true)]
    #[case(&format!("{FLEET}/apis/apps/v1/%77atch/namespaces/a/deployments/d/scale"), true)]
    #[case("/apis/cluster.karmada.io/v1alpha1/watch/clusters/m1/proxy", true)]
    #[case("/apis", false)]
    fn ambiguous_paths_are_refused(#[case] path: &str, #[case] expected: bool) {
        let context = context("GET", path, &[]);
        assert_eq!(context.refused.is_some(), expected, "{context:?}");
    }

    #[rstest]
    #[case("GET", false)]
    #[case("HEAD", true)]
    #[case("PUT", true)]
    #[case("PATCH", true)]
    #[case("POST", true)]
    #[case("DELETE", true)]
    fn a_watch_by_prefix_is_a_get(#[case] method: &str, #[case] expected: bool) {
        for path in [&*format!("{CLUSTER}/m1/proxy"), FLEET] {
            let context = context(method, &format!("{path}/apis/apps/v1/watch/namespaces/a/deployments/d"), &[]);
            assert_eq!(context.refused.is_some(), expected, "{context:?}");
        }
    }

    #[rstest]
    #[case("/apis/search.crowsnest.io/v1alpha1/query", "")]
    #[case("/apis/search.crowsnest.io/v1alpha1/savedsearches", "")]
    #[case("/apis/propagation.crowsnest.io/v1alpha1/plans", "")]
    #[case(CLUSTER, "x")]
    #[case("/apis/metrics.k8s.io/v1beta1/nodes", "x")]
    fn a_right_to_one_name_needs_a_selector_that_is_applied(#[case] path: &str, #[case] expected: &str) {
        let context = context("GET", &format!("{path}?fieldSelector=metadata.name%3Dx"), &[]);
        assert_eq!(context.here.name, expected);
    }

    #[test]
    fn nested_proxies_are_in_flight() {
        let nested = format!("{CLUSTER}/m1/proxy{CLUSTER}/m2/proxy/api/v1/namespaces/a/pods/p/exec");
        let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
        assert!(!context("POST", &nested, &[]).long_running);
        assert!(!context("POST", &nested, &upgrade).long_running);
    }
}
