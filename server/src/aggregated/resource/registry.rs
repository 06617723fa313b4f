//! Maps paths to handlers. Pure.

use std::borrow::Cow;

use crate::aggregated::resource::discovery;
use crate::aggregated::stored::StoredGroup;

/// What a path asks for. Borrowed paths keep their percent-encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/apis`
    Groups,
    /// `/apis/<group>`
    Group(&'a str),
    /// `/apis/<group>/<version>`
    Resources {
        group: &'a str,
        version: &'a str,
    },
    /// Objects kept in the control plane; `tail` starts with `/`.
    Stored {
        group: &'static str,
        tail: &'a str,
    },
    /// `clusters/<name>/proxy<path>`; `*` names every cluster.
    ClusterProxy {
        cluster: &'a str,
        path: &'a str,
    },
    /// `clusters/<name>/attach`
    Attach {
        cluster: &'a str,
    },
    /// `search/cache<path>`
    SearchCache {
        path: &'a str,
    },
    /// `search/opensearch<path>`
    SearchOpenSearch {
        path: &'a str,
    },
    /// `proxying/<any>/proxy<path>`
    FleetProxy {
        path: &'a str,
    },
    /// `search.crowsnest.io` resources: `query`, `status`, `cache`, …
    Search(&'a str),
    /// `search.crowsnest.io` saved searches: all of them, or one
    Saved(&'a str),
    /// `propagation.crowsnest.io` explanations: a template's `<resource>.<group>:<name>`, without a namespace those of the cluster
    Explanation {
        namespace: &'a str,
        name: &'a str,
    },
    /// `propagation.crowsnest.io` plans
    Plans,
    /// `metrics.k8s.io`: what pods or nodes use; the whole path
    Usage(&'a str),
    /// `custom.metrics.k8s.io`: values of a metric; the whole path
    CustomMetrics(&'a str),
    /// `/openapi/v2`, `/openapi/v3…`
    OpenApi(&'a str),
    Health,
    Unknown,
}

pub(crate) const CLUSTERS: &str = "cluster.karmada.io";
pub(crate) const SEARCH: &str = "search.karmada.io";
pub(crate) const QUERIES: &str = "search.crowsnest.io";
pub(crate) const PROPAGATION: &str = "propagation.crowsnest.io";
pub(crate) const USAGE: &str = "metrics.k8s.io";
pub(crate) const CUSTOM_METRICS: &str = "custom.metrics.k8s.io";

impl<'a> Route<'a> {
    pub(crate) fn parse(path: &'a str) -> Self {
        match path {
            "/apis" | "/apis/" => return Self::Groups,
            "/healthz" | "/livez" | "/readyz" => return Self::Health,
            _ => {}
        }
        if path.starts_with("/openapi/") {
            return Self::OpenApi(path);
        }
        let Some(rest) = path.strip_prefix("/apis/") else { return Self::Unknown };
        let (group, rest) = cut(rest);
        if !discovery::is_ours(group) {
            return Self::Unknown;
        }
        let (version, tail) = cut(rest.strip_prefix('/').unwrap_or_default());
        match version {
            "" => return Self::Group(group),
            version if !discovery::serves(group, version) => return Self::Unknown,
            version if tail.is_empty() || tail == "/" => return Self::Resources { group, version },
            _ => {}
        }
        match group {
            USAGE | CUSTOM_METRICS => Self::metrics(group, path, tail),
            CLUSTERS => Self::clusters(tail),
            SEARCH => Self::search(tail),
            PROPAGATION => Self::propagation(tail),
            _ => match cut(&tail[1..]) {
                ("savedsearches", rest) => match cut(rest.strip_prefix('/').unwrap_or_default()) {
                    (name, "") => Self::Saved(name),
                    _ => Self::Unknown,
                },
                (resource, "") => Self::Search(resource),
                _ => Self::Unknown,
            },
        }
    }

    /// What it is about, without anybody's names: the same for all requests of a kind.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Groups => "/apis",
            Self::Group(_) => "/apis/{group}",
            Self::Resources { .. } => "/apis/{group}/{version}",
            Self::Stored { group: CLUSTERS, .. } => "clusters",
            Self::Stored { .. } => "resourceregistries",
            Self::ClusterProxy { .. } => "clusters/proxy",
            Self::Attach { .. } => "clusters/attach",
            Self::SearchCache { .. } => "search/cache",
            Self::SearchOpenSearch { .. } => "search/opensearch",
            Self::FleetProxy { .. } => "proxying/proxy",
            Self::Search("query") => "search.crowsnest.io/query",
            Self::Search("logs") => "search.crowsnest.io/logs",
            Self::Search(_) => "search.crowsnest.io",
            Self::Saved(_) => "savedsearches",
            Self::Explanation { .. } => "explanations",
            Self::Plans => "plans",
            Self::Usage(_) => "metrics.k8s.io",
            Self::CustomMetrics(_) => "custom.metrics.k8s.io",
            Self::OpenApi(_) => "/openapi",
            Self::Health => "/healthz",
            Self::Unknown => "unknown",
        }
    }

    fn clusters(tail: &'a str) -> Self {
        let (resource, rest) = cut(&tail[1..]);
        let (name, rest) = cut(rest.strip_prefix('/').unwrap_or_default());
        let (sub, path) = cut(rest.strip_prefix('/').unwrap_or_default());
        match (resource, name, sub, path) {
            ("clusters", "", "", "") => Self::Stored { group: CLUSTERS, tail },
            ("clusters", _, "" | "status", "") => Self::Stored { group: CLUSTERS, tail },
            ("clusters", cluster, "attach", "") if !cluster.is_empty() => Self::Attach { cluster },
            ("clusters", cluster, "proxy", path) if !cluster.is_empty() => Self::ClusterProxy { cluster, path },
            _ => Self::Unknown,
        }
    }

    fn search(tail: &'a str) -> Self {
        let (resource, rest) = cut(&tail[1..]);
        let (name, rest) = cut(rest.strip_prefix('/').unwrap_or_default());
        match (resource, name) {
            ("resourceregistries", _) if matches!(rest, "" | "/status") => Self::Stored { group: SEARCH, tail },
            ("search", "cache") => Self::SearchCache { path: rest },
            ("search", "opensearch") => Self::SearchOpenSearch { path: rest },
            ("proxying", name) if !name.is_empty() => match cut(rest.strip_prefix('/').unwrap_or_default()) {
                ("proxy", path) => Self::FleetProxy { path },
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }

    fn propagation(tail: &'a str) -> Self {
        let parts: Vec<&str> = tail[1..].split('/').collect();
        match parts.as_slice() {
            ["plans"] => Self::Plans,
            ["clusterexplanations", name] if !name.is_empty() => Self::Explanation { namespace: "", name },
            ["namespaces", namespace, "explanations", name] if !namespace.is_empty() && !name.is_empty() => {
                Self::Explanation { namespace, name }
            }
            _ => Self::Unknown,
        }
    }

    /// Members are asked with our own rights, so that a path has to mean the same to whoever authorises it and whoever carries it:
    /// no part of it is more than a name.
    fn metrics(group: &str, path: &'a str, tail: &'a str) -> Self {
        let decoded = |part: &'a str| percent_encoding::percent_decode_str(part).decode_utf8().ok();
        let parts: Option<Vec<Cow<'a, str>>> =
            tail[1..].split('/').map(|part| decoded(part).filter(|n| is_name(n))).collect();
        let parts = parts.unwrap_or_default();
        match (group, parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>().as_slice()) {
            (USAGE, ["nodes" | "pods"] | ["nodes", _]) => Self::Usage(path),
            (USAGE, ["namespaces", _, "pods"] | ["namespaces", _, "pods", _]) => Self::Usage(path),
            // To whoever authorises these the path would be about something else.
            (
                CUSTOM_METRICS,
                ["namespaces" | "watch" | "proxy", _, _] | ["namespaces", _, "status" | "finalize", ..],
            ) => Self::Unknown,
            (CUSTOM_METRICS, [_, _, _] | ["namespaces", _, "metrics", _] | ["namespaces", _, _, _, _]) => {
                Self::CustomMetrics(path)
            }
            _ => Self::Unknown,
        }
    }
}

impl StoredGroup {
    pub(crate) fn of(group: &'static str) -> Self {
        Self { public: group }
    }
}

/// The first segment, and the rest with its slash.
fn cut(path: &str) -> (&str, &str) {
    match path.find('/') {
        Some(at) => path.split_at(at),
        None => (path, ""),
    }
}

/// Whether a part of a path can be a name.
fn is_name(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.contains(['/', '%'])
}

#[cfg(test)]
mod tests {
    use crowsnest_apimachinery::request::{Query, RequestInfo};
    use http::Method;

    use super::*;
    use crate::aggregated::request::authentication::Wanted;

    fn attributes(method: &Method, path: &str, query: &str) -> Wanted {
        Wanted::from(RequestInfo::parse(method, path, &Query::parse(Some(query))))
    }

    #[test]
    fn paths() {
        let c = "/apis/cluster.karmada.io/v1alpha1";
        let s = "/apis/search.karmada.io/v1alpha1";
        let p = "/apis/propagation.crowsnest.io/v1alpha1";
        let cases = [
            ("/apis".to_owned(), Route::Groups),
            ("/apis/cluster.karmada.io".into(), Route::Group(CLUSTERS)),
            (c.into(), Route::Resources { group: CLUSTERS, version: "v1alpha1" }),
            (format!("{c}/clusters"), Route::Stored { group: CLUSTERS, tail: "/clusters" }),
            (format!("{c}/clusters/m1/status"), Route::Stored { group: CLUSTERS, tail: "/clusters/m1/status" }),
            (format!("{c}/clusters/m1/proxy"), Route::ClusterProxy { cluster: "m1", path: "" }),
            (format!("{c}/clusters/m1/proxy/api/v1/pods"), Route::ClusterProxy { cluster: "m1", path: "/api/v1/pods" }),
            (format!("{c}/clusters/*/proxy/api"), Route::ClusterProxy { cluster: "*", path: "/api" }),
            (format!("{c}/clusters/m1/attach"), Route::Attach { cluster: "m1" }),
            (format!("{c}/clusters/m1/attach/more"), Route::Unknown),
            (format!("{c}/clusters//attach"), Route::Unknown),
            (format!("{c}/clusters/m1/other"), Route::Unknown),
            // Rights are derived from the same segments: an empty one would shift them.
            (format!("{c}/clusters/m1//proxy/api"), Route::Unknown),
            (format!("{c}/clusters//m1/proxy/api"), Route::Unknown),
            (format!("{s}/proxying/karmada//proxy/api"), Route::Unknown),
            (format!("{s}/search//cache/api/v1/pods"), Route::Unknown),
            (format!("{c}/nodes"), Route::Unknown),
            (format!("{s}/resourceregistries/r"), Route::Stored { group: SEARCH, tail: "/resourceregistries/r" }),
            (format!("{s}/search/cache/api/v1/pods"), Route::SearchCache { path: "/api/v1/pods" }),
            (format!("{s}/search/opensearch/api/v1/pods"), Route::SearchOpenSearch { path: "/api/v1/pods" }),
            (format!("{s}/search/elsewhere/api/v1/pods"), Route::Unknown),
            (format!("{s}/proxying/karmada/proxy/api/v1/pods"), Route::FleetProxy { path: "/api/v1/pods" }),
            ("/apis/search.crowsnest.io/v1alpha1/query".into(), Route::Search("query")),
            ("/apis/search.crowsnest.io/v1alpha1/logs".into(), Route::Search("logs")),
            ("/apis/search.crowsnest.io/v1alpha1/savedsearches".into(), Route::Saved("")),
            ("/apis/search.crowsnest.io/v1alpha1/savedsearches/mine".into(), Route::Saved("mine")),
            ("/apis/search.crowsnest.io/v1alpha1/savedsearches/mine/x".into(), Route::Unknown),
            (format!("{p}/plans"), Route::Plans),
            (
                format!("{p}/namespaces/shop/explanations/deployments.apps:web"),
                Route::Explanation { namespace: "shop", name: "deployments.apps:web" },
            ),
            (
                format!("{p}/clusterexplanations/namespaces:a"),
                Route::Explanation { namespace: "", name: "namespaces:a" },
            ),
            (format!("{p}/namespaces/shop/explanations"), Route::Unknown),
            (format!("{p}/namespaces//explanations/x"), Route::Unknown),
            (format!("{p}/explanations/x"), Route::Unknown),
            (format!("{p}/plans/x"), Route::Unknown),
            ("/apis/other.io/v1".into(), Route::Unknown),
            ("/version".into(), Route::Unknown),
        ];
        for (path, expected) in &cases {
            assert_eq!(&Route::parse(path), expected, "{path}");
        }
    }

    #[rstest::rstest]
    #[case("metrics.k8s.io/v1beta1/pods", "usage", "list metrics.k8s.io pods")]
    #[case("metrics.k8s.io/v1beta1/nodes/n", "usage", "get metrics.k8s.io nodes n")]
    #[case("metrics.k8s.io/v1beta1/namespaces/a/pods/p", "usage", "get metrics.k8s.io pods a p")]
    #[case("metrics.k8s.io/v1beta1/namespaces/a/pods/p/log", "", "")]
    #[case("metrics.k8s.io/v1beta1/namespaces/a/nodes", "", "")]
    #[case("metrics.k8s.io/v1/pods", "", "")]
    #[case::no_way_out("metrics.k8s.io/v1beta1/namespaces/a/pods/..%2F..%2Fsecrets", "", "")]
    #[case("metrics.k8s.io/v1beta1/namespaces/../pods", "", "")]
    #[case(
        "custom.metrics.k8s.io/v1beta2/namespaces/a/pods/%2A/qps",
        "custom",
        "get custom.metrics.k8s.io pods/qps a *"
    )]
    #[case(
        "custom.metrics.k8s.io/v1beta1/namespaces/a/deployments.apps/web/qps",
        "custom",
        "get custom.metrics.k8s.io deployments.apps/qps a web"
    )]
    #[case(
        "custom.metrics.k8s.io/v1beta1/namespaces/a/metrics/qps",
        "custom",
        "get custom.metrics.k8s.io metrics a qps"
    )]
    #[case("custom.metrics.k8s.io/v1beta1/nodes/n/load", "custom", "get custom.metrics.k8s.io nodes/load n")]
    #[case::a_verb_in_the_path("custom.metrics.k8s.io/v1beta1/%70roxy/n/load", "", "")]
    #[case("custom.metrics.k8s.io/v1beta1/namespaces/a/qps", "", "")]
    #[case("custom.metrics.k8s.io/v1beta1/namespaces/a/status/x/qps", "", "")]
    #[case("custom.metrics.k8s.io/v1beta1/nodes/n/load/more", "", "")]
    fn metrics_and_the_rights_to_them(#[case] path: &str, #[case] expected: &str, #[case] right: &str) {
        let path = format!("/apis/{path}");
        let route = Route::parse(&path);
        let kind = match &route {
            Route::Usage(_) => "usage",
            Route::CustomMetrics(_) => "custom",
            _ => "",
        };
        assert_eq!(kind, expected, "{route:?}");
        if !right.is_empty() {
            let Wanted { verb, group, resource, subresource, namespace, name, .. } =
                attributes(&Method::GET, &path, "");
            let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
            let told = [verb, group, resource, namespace, name].into_iter().filter(|word| !word.is_empty());
            assert_eq!(told.collect::<Vec<_>>().join(" "), right);
        }
    }

    #[test]
    fn rights_are_those_kube_apiserver_derives() {
        let path = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/pods";
        let wanted = attributes(&Method::GET, path, "watch=true");
        assert_eq!((wanted.verb.as_str(), wanted.subresource.as_str(), wanted.name.as_str()), ("get", "proxy", "m1"));
        let path = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/attach";
        let wanted = attributes(&Method::POST, path, "");
        assert_eq!(
            (wanted.verb.as_str(), wanted.subresource.as_str(), wanted.name.as_str()),
            ("create", "attach", "m1")
        );
        let path = "/apis/cluster.karmada.io/v1alpha1/clusters";
        let wanted = attributes(&Method::GET, path, "watch=true");
        assert_eq!((wanted.verb.as_str(), wanted.resource.as_str()), ("watch", "clusters"));
        let path = "/apis/propagation.crowsnest.io/v1alpha1/namespaces/shop/explanations/deployments.apps:web";
        let wanted = attributes(&Method::GET, path, "");
        assert_eq!(
            (wanted.verb.as_str(), wanted.resource.as_str(), wanted.namespace.as_str(), wanted.name.as_str()),
            ("get", "explanations", "shop", "deployments.apps:web")
        );
        assert_eq!(attributes(&Method::GET, "/apis", "").path.as_deref(), Some("/apis"));
    }
}
