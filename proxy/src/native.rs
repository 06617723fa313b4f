//! A native Kubernetes path, taken apart as an API server does (`RequestInfo`).

use crowsnest_api::list_options::boolean;
use crowsnest_api::names::Gvr;
use http::Method;
use percent_encoding::percent_decode_str;

/// What a request does to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

/// A path below `/api/v1` or `/apis/{group}/{version}` that names a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Native {
    pub resource: Gvr,
    /// Empty: cluster-scoped, or all namespaces.
    pub namespace: String,
    /// Empty: the collection.
    pub name: String,
    /// Empty: the object itself. Anything after it in the path is left out.
    pub subresource: String,
    pub watch: bool,
}

impl Native {
    /// `None` for paths that name no resource (`/version`, `/apis/apps/v1`, …).
    pub fn parse(path: &str) -> Option<Self> {
        let decoded = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decoded).collect();
        let mut parts = parts.iter().map(String::as_str).collect::<Vec<_>>().into_iter().peekable();
        let (group, version) = match parts.next()? {
            "api" => ("", parts.next()?),
            "apis" => (parts.next()?, parts.next()?),
            _ => return None,
        };
        let watch = parts.next_if_eq(&"watch").is_some();
        let mut native = Self {
            resource: Gvr::new(group, version, ""),
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
            watch,
        };
        let mut rest: Vec<&str> = parts.collect();
        // `namespaces/x/pods` is in a namespace; `namespaces/x` and its own subresources are the namespace.
        if rest.len() >= 3 && rest[0] == "namespaces" && !matches!(rest[2], "status" | "finalize") {
            native.namespace = rest[1].to_owned();
            rest.drain(..2);
        }
        native.resource = Gvr::new(group, version, rest.first()?);
        native.name = rest.get(1).copied().unwrap_or_default().to_owned();
        native.subresource = rest.get(2).copied().unwrap_or_default().to_owned();
        Some(native)
    }

    /// What is asked for, as RBAC writes it: `pods/log`, `deployments.apps`.
    pub fn kind(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", self.resource.group_resource(), self.subresource)
    }

    pub fn verb(&self, method: &Method, query: &Query) -> Verb {
        match (method.as_str(), self.name.is_empty()) {
            ("POST", _) => Verb::Create,
            ("PUT", _) => Verb::Update,
            ("PATCH", _) => Verb::Patch,
            ("DELETE", true) => Verb::DeleteCollection,
            ("DELETE", false) => Verb::Delete,
            _ if self.watch => Verb::Watch,
            // A name is got, whatever else is asked.
            (_, false) => Verb::Get,
            _ if query.flag("watch") => Verb::Watch,
            (_, true) => Verb::List,
        }
    }
}

/// A query string, decoded.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: Option<&str>) -> Self {
        let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    pub fn get(&self, key: &str) -> &str {
        self.first(key).unwrap_or_default()
    }

    /// The first value of a parameter that is there.
    pub fn first(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    pub fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    pub fn flag(&self, key: &str) -> bool {
        self.first(key).is_some_and(boolean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("/api/v1/pods", "/v1/pods", "", "", "")]
    #[case("/api/v1/namespaces/ns/pods/p", "/v1/pods", "ns", "p", "")]
    #[case("/api/v1/namespaces/ns/pods/p/exec", "/v1/pods", "ns", "p", "exec")]
    #[case("/apis/apps/v1/namespaces/ns/deployments", "apps/v1/deployments", "ns", "", "")]
    #[case("/api/v1/namespaces", "/v1/namespaces", "", "", "")]
    #[case("/api/v1/namespaces/ns", "/v1/namespaces", "", "ns", "")]
    #[case("/api/v1/namespaces/ns/finalize", "/v1/namespaces", "", "ns", "finalize")]
    #[case("/api/v1/nodes/n%2E1/status", "/v1/nodes", "", "n.1", "status")]
    #[case("/apis/g/v1/widgets/w", "g/v1/widgets", "", "w", "")]
    fn paths(
        #[case] path: &str,
        #[case] resource: &str,
        #[case] namespace: &str,
        #[case] name: &str,
        #[case] subresource: &str,
    ) {
        let native = Native::parse(path).unwrap();
        let gvr = &native.resource;
        assert_eq!(format!("{}/{}/{}", gvr.group, gvr.version, gvr.resource), resource);
        assert_eq!(
            (native.namespace.as_str(), native.name.as_str(), native.subresource.as_str()),
            (namespace, name, subresource)
        );
    }

    #[rstest::rstest]
    #[case("/version")]
    #[case("/api")]
    #[case("/api/v1")]
    #[case("/apis/apps/v1/")]
    #[case("/openapi/v3/apis/apps/v1")]
    fn paths_without_a_resource(#[case] path: &str) {
        assert_eq!(Native::parse(path), None);
    }

    #[rstest::rstest]
    #[case("GET", "/api/v1/pods", "", Verb::List)]
    #[case("GET", "/api/v1/pods", "watch=true", Verb::Watch)]
    #[case("GET", "/api/v1/watch/pods", "", Verb::Watch)]
    #[case("GET", "/api/v1/pods", "watch=0", Verb::List)]
    #[case("GET", "/api/v1/nodes/n", "", Verb::Get)]
    #[case("GET", "/api/v1/nodes/n", "watch=true", Verb::Get)]
    #[case("GET", "/api/v1/watch/nodes/n", "", Verb::Watch)]
    #[case("DELETE", "/api/v1/pods", "", Verb::DeleteCollection)]
    #[case("POST", "/api/v1/namespaces/n/pods/p/exec", "", Verb::Create)]
    fn verbs(#[case] method: &str, #[case] path: &str, #[case] query: &str, #[case] expected: Verb) {
        let verb = Native::parse(path).unwrap().verb(&method.parse().unwrap(), &Query::parse(Some(query)));
        assert_eq!(verb, expected);
    }
}
