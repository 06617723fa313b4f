//! What a request is about beyond its route: what it asks of members through us, which of them, and whether it lasts. Pure.

use crowsnest_apiserver::http::path::RequestInfo;
use crowsnest_apiserver::registry::options::Query;
use http::{HeaderMap, Method, header};

use super::identity::Wanted;
use super::route::Route;

/// Verbs that change nothing.
const READS: [&str; 5] = ["get", "list", "watch", "head", "options"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The right it needs here.
    pub(crate) ours: Wanted,
    /// What is asked of members, as their API servers take it.
    pub(crate) theirs: Option<Wanted>,
    /// The member, where the path names it; `*` is every one.
    pub(crate) cluster: Option<String>,
    /// Watches, streams and tunnels: without a time limit, and not counted as being in flight.
    pub(crate) lasts: bool,
    /// Whoever is known may ask what there is.
    pub(crate) discovery: bool,
}

impl Asked {
    pub(crate) fn of(route: &Route<'_>, method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Self {
        let ours = route.wanted(method, path, query.unwrap_or_default());
        let query = Query::parse(query);
        let inner = match route {
            Route::ClusterProxy { path, .. } | Route::SearchCache { path } | Route::FleetProxy { path } => Some(*path),
            _ => None,
        };
        let theirs = inner.map(|path| {
            let path = if path.is_empty() { "/" } else { path };
            Wanted::from(RequestInfo::parse(method, path, &query))
        });
        let cluster = match route {
            Route::ClusterProxy { cluster, .. } => {
                Some(percent_encoding::percent_decode_str(cluster).decode_utf8_lossy().into_owned())
            }
            _ => None,
        };
        let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let lasts = headers.contains_key(header::UPGRADE)
            || accepts.contains("text/event-stream")
            || ours.verb == "watch"
            || *route == Route::Search("logs")
            || theirs.as_ref().is_some_and(|theirs| goes_on(theirs, &query));
        let discovery = matches!(route, Route::Groups | Route::Group(_) | Route::Resources { .. } | Route::OpenApi(_));
        Self { ours, theirs, cluster, lasts, discovery }
    }

    /// Whether something may be changed, here or in a member.
    pub(crate) fn writes(&self) -> bool {
        !READS.contains(&self.theirs.as_ref().unwrap_or(&self.ours).verb.as_str())
    }
}

fn goes_on(theirs: &Wanted, query: &Query) -> bool {
    match theirs.subresource.as_str() {
        "exec" | "attach" | "portforward" | "proxy" => true,
        "log" => query.flag("follow"),
        _ => matches!(theirs.verb.as_str(), "watch" | "proxy"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const CLUSTER: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
    const FLEET: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";

    fn asked(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> Asked {
        let uri: http::Uri = uri.parse().unwrap();
        let headers = headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect();
        Asked::of(&Route::parse(uri.path()), &method.parse().unwrap(), uri.path(), uri.query(), &headers)
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
        let asked = asked(method, &format!("{CLUSTER}{tail}"), &[]);
        assert_eq!((asked.lasts, asked.writes()), (lasts, writes));
    }

    #[test]
    fn streams_and_upgrades_last() {
        let query = "/apis/search.crowsnest.io/v1alpha1/query";
        assert!(asked("GET", query, &[("accept", "text/event-stream")]).lasts);
        assert!(!asked("GET", query, &[("accept", "application/json")]).lasts);
        assert!(asked("GET", "/apis/search.crowsnest.io/v1alpha1/logs?follow=true", &[]).lasts);
        assert!(asked("GET", &format!("{FLEET}/api/v1/x"), &[("upgrade", "websocket")]).lasts);
    }

    #[test]
    fn the_members_object_is_told() {
        let exec = asked("GET", &format!("{CLUSTER}/m%31/proxy/api/v1/namespaces/a/pods/p/exec?command=ls"), &[]);
        assert_eq!((exec.ours.verb.as_str(), exec.ours.name.as_str()), ("get", "m%31"));
        assert_eq!(exec.cluster.as_deref(), Some("m1"));
        let theirs = exec.theirs.unwrap();
        assert_eq!((theirs.resource.as_str(), theirs.subresource.as_str()), ("pods", "exec"));
        assert_eq!((theirs.namespace.as_str(), theirs.name.as_str()), ("a", "p"));
        let fleet = asked("GET", &format!("{FLEET}/apis/apps/v1"), &[]);
        assert_eq!(fleet.theirs.unwrap().path.as_deref(), Some("/apis/apps/v1"));
        assert_eq!(fleet.cluster, None);
    }
}
