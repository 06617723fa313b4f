//! Attributes of a request, and the authenticated request that has them.
//!
//! Attributes are computed once, from the raw path and query, for authorization, routing, limits, audit and traces
//! alike. Has no side effects.

use std::sync::Arc;

use crowsnest_apimachinery::request::{PathError, Query, RequestInfo, RequestPath, requested_upgrade};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::{Attributes, Record};
use crowsnest_process::client_certificate::Peer;
use http::{HeaderMap, Method, Uri, header};

use crate::resource::registry::{Registry, Route};
use crate::resource::{Members, RequestFeatures};
use crate::{cluster_karmada_io, search_karmada_io};

/// Verbs that change nothing.
const READ_VERBS: [&str; 5] = ["get", "list", "watch", "head", "options"];

/// An authenticated request.
pub struct RequestContext {
    /// The caller; after impersonation the impersonated user.
    pub user: UserInfo,
    pub peer: Peer,
    pub attributes: RequestAttributes,
    /// `None` if the request is not audited.
    pub audit: Option<Arc<Record>>,
}

/// Attributes of a request.
#[derive(Debug, Clone)]
pub struct RequestAttributes {
    pub route: Route,
    /// Raw path, from which `route` was found.
    pub path: String,
    pub query: Query,
    /// Attributes by which the control plane authorizes the request.
    pub authz: Attributes,
    /// Attributes of the proxied request, as the member's API server derives them.
    pub member: Option<Attributes>,
    /// Member that the path names; `*` means all members.
    pub cluster: Option<String>,
    /// True if the response may be a stream of server-sent events.
    pub accepts_events: bool,
    /// True for watches, streams and tunnels: they have no time limit and do not count as in flight.
    pub is_long_running: bool,
    /// Reason why the path is refused: other servers could interpret it differently.
    pub path_error: Option<PathError>,
}

impl RequestContext {
    /// Decoded name of the object; empty for collections.
    pub fn name(&self) -> &str {
        &self.attributes.authz.name
    }

    /// Decoded namespace; empty for cluster-scoped requests.
    pub fn namespace(&self) -> &str {
        &self.attributes.authz.namespace
    }

    pub fn query(&self) -> &Query {
        &self.attributes.query
    }
}

impl RequestAttributes {
    pub fn parse(registry: &Registry, method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let (path, query) = (uri.path(), Query::parse(uri.query()));
        let info = RequestInfo::parse(method, path, &query);
        let route = match registry.route(path) {
            // A handler must not be reached with attributes that name another resource.
            Route::Resource(found) if !found.agrees_with(&info) => Route::Unknown,
            route => route,
        };
        let resource_route = route.resource_route();
        let unserved = info.unserved;
        let authz = Attributes::from(match resource_route {
            Some(found) if found.resource.applies_field_selector() => info,
            // Others ignore the field selector, so permission for the name in it must not allow listing all objects.
            _ if !info.is_named => RequestInfo { name: String::new(), ..info },
            _ => info,
        });
        let members = resource_route.map_or(Members::None, |found| found.resource.definition().members);
        let inner = resource_route.filter(|_| members != Members::None).map(|found| found.subpath(path));
        let member = inner.map(|path| {
            let path = if path.is_empty() { "/" } else { path };
            Attributes::from(RequestInfo::parse(method, path, &query))
        });
        let cluster = (members == Members::Named).then(|| authz.name.clone());
        let requested = RequestFeatures {
            watch: authz.verb == "watch",
            upgrade: requested_upgrade(headers).is_some(),
            events: accepts_events(headers),
        };
        let is_long_running = resource_route.is_some_and(|found| found.resource.is_long_running(requested))
            || member.as_ref().is_some_and(|member| {
                is_long_running(member, &query) || (requested.upgrade && may_be_upgraded(member))
            });
        let outer = &path[..path.len() - inner.map_or(0, str::len)];
        let inner = RequestPath::parse_for_forwarding(method, inner.unwrap_or_default());
        let path_error = RequestPath::parse(outer).err().or(unserved.map(PathError::from)).or(inner.err());
        let (path, accepts_events) = (path.to_owned(), requested.events);
        Self { route, path, query, authz, member, cluster, accepts_events, is_long_running, path_error }
    }

    /// The raw path after the version of the group (`/clusters/m1/status`); empty if the path leads to no resource.
    pub fn resource_path(&self) -> &str {
        self.route.resource_route().map_or("", |found| found.resource_path(&self.path))
    }

    /// The raw path below the object: empty, or starting with a slash.
    pub fn subpath(&self) -> &str {
        self.route.resource_route().map_or("", |found| found.subpath(&self.path))
    }

    /// True if the request can change an object, here or in a member.
    pub fn is_mutating(&self) -> bool {
        !READ_VERBS.contains(&self.member.as_ref().unwrap_or(&self.authz).verb.as_str())
    }
}

fn accepts_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|media_type| media_type.trim().starts_with("text/event-stream"))
}

/// True if a request to a member may upgrade its connection. Requests for lists and objects are not upgraded. Requests
/// to a proxy of this server, which a member's path can lead back to, do not count as long-running.
fn may_be_upgraded(member: &Attributes) -> bool {
    let proxy_groups = [cluster_karmada_io::NAME, search_karmada_io::NAME];
    !member.subresource.is_empty() && !proxy_groups.contains(&member.group.as_str())
}

/// True if a request to a member is long-running. A request to a proxy of this server, which a member's path can lead
/// back to, is not, so that each pass counts as in flight.
fn is_long_running(member: &Attributes, query: &Query) -> bool {
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
    use crate::resource::registry::REGISTRY;
    use rstest::rstest;

    const CLUSTER: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
    const FLEET: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";

    fn attributes(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> RequestAttributes {
        let headers = headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect();
        RequestAttributes::parse(&REGISTRY, &method.parse().unwrap(), &uri.parse().unwrap(), &headers)
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
    fn long_running_and_mutating_requests_are_recognized(
        #[case] method: &str,
        #[case] resource_path: &str,
        #[case] is_long_running: bool,
        #[case] writes: bool,
    ) {
        let attributes = attributes(method, &format!("{CLUSTER}{resource_path}"), &[]);
        assert_eq!((attributes.is_long_running, attributes.is_mutating()), (is_long_running, writes));
    }

    #[test]
    fn streams_and_upgrades_are_long_running() {
        let query = "/apis/search.crowsnest.io/v1alpha1/query";
        assert!(attributes("GET", query, &[("accept", "text/event-stream")]).is_long_running);
        assert!(!attributes("GET", query, &[("accept", "application/json")]).is_long_running);
        assert!(attributes("GET", "/apis/search.crowsnest.io/v1alpha1/logs?follow=true", &[]).is_long_running);
        let count = "/apis/search.crowsnest.io/v1alpha1/count";
        assert!(!attributes("GET", count, &[("accept", "text/event-stream")]).is_long_running, "it has no stream");
        for (operation, is_long_running) in [
            ("query", true),
            ("status", true),
            ("count", false),
            ("export", false),
            ("graph", false),
            ("journal", false),
        ] {
            let path = format!("/apis/search.crowsnest.io/v1alpha1/{operation}?watch=1");
            assert_eq!(attributes("GET", &path, &[]).is_long_running, is_long_running, "{operation}");
        }
        let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
        let vnc = format!("{FLEET}/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v/vnc");
        assert!(attributes("GET", &vnc, &upgrade).is_long_running);
        // Headers alone do not exempt a request from the limits.
        assert!(!attributes("GET", &format!("{FLEET}/api/v1/pods"), &upgrade).is_long_running);
        assert!(
            !attributes("GET", &format!("{FLEET}/api/v1/pods"), &[("accept", "text/event-stream")]).is_long_running
        );
    }

    #[test]
    fn attributes_of_the_member_request_are_parsed() {
        let exec = attributes("GET", &format!("{CLUSTER}/m%31/proxy/api/v1/namespaces/a/pods/p/exec?command=ls"), &[]);
        assert_eq!((exec.authz.verb.as_str(), exec.authz.name.as_str()), ("get", "m1"));
        assert_eq!(exec.cluster.as_deref(), Some("m1"));
        let member = exec.member.unwrap();
        assert_eq!((member.resource.as_str(), member.subresource.as_str()), ("pods", "exec"));
        assert_eq!((member.namespace.as_str(), member.name.as_str()), ("a", "p"));
        let fleet = attributes("GET", &format!("{FLEET}/apis/apps/v1"), &[]);
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
        let attributes = attributes("GET", path, &[]);
        assert_eq!(attributes.path_error.is_some(), expected, "{attributes:?}");
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
            let attributes = attributes(method, &format!("{path}/apis/apps/v1/watch/namespaces/a/deployments/d"), &[]);
            assert_eq!(attributes.path_error.is_some(), expected, "{attributes:?}");
        }
    }

    #[rstest]
    #[case("/apis/search.crowsnest.io/v1alpha1/query", "")]
    #[case("/apis/search.crowsnest.io/v1alpha1/savedsearches", "")]
    #[case("/apis/propagation.crowsnest.io/v1alpha1/plans", "")]
    #[case(CLUSTER, "x")]
    #[case("/apis/metrics.k8s.io/v1beta1/nodes", "x")]
    fn permission_for_one_name_needs_a_selector_that_is_applied(#[case] path: &str, #[case] expected: &str) {
        let attributes = attributes("GET", &format!("{path}?fieldSelector=metadata.name%3Dx"), &[]);
        assert_eq!(attributes.authz.name, expected);
    }

    #[test]
    fn nested_proxies_are_in_flight() {
        let nested = format!("{CLUSTER}/m1/proxy{CLUSTER}/m2/proxy/api/v1/namespaces/a/pods/p/exec");
        let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
        assert!(!attributes("POST", &nested, &[]).is_long_running);
        assert!(!attributes("POST", &nested, &upgrade).is_long_running);
    }
}
