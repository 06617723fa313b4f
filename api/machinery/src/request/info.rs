//! Attributes of a request as API servers derive them (`RequestInfo` of k8s.io/apiserver).

use http::Method;
use percent_encoding::percent_decode_str;

use super::query::Query;
use crate::names::Gvr;
use crate::selector::FieldSelector;

/// Resource that a path names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    /// Empty: cluster-scoped, or all namespaces.
    pub namespace: String,
    pub resource: String,
    /// Empty: the collection.
    pub name: String,
    /// Empty: the object itself.
    pub subresource: String,
    /// Remaining path after the subresource, without a leading slash.
    pub rest: String,
    /// The deprecated prefix `watch` or `proxy`; empty without one.
    pub prefix: String,
}

/// The operation of a request on a resource path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Verb that is authorized and executed; empty for methods without one.
    pub verb: &'static str,
    /// Reason why the request is not served, although it may be authorized.
    pub unserved: Option<UnservedReason>,
}

/// Reason why a request below a deprecated prefix is not served. As in the routes of k8s.io/apiserver, `watch/` serves only GET
/// of a collection or an object, and `proxy/` serves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnservedReason {
    #[error("the path has a deprecated prefix under which it is not served")]
    Path,
    #[error("the path has a deprecated prefix under which the method is not served")]
    Method,
}

/// Attributes of a request, computed once from its method, raw path and query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// True if the path names a resource (`IsResourceRequest`).
    pub is_resource: bool,
    /// Decoded path.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the method in lower case for paths that
    /// name no resource.
    pub verb: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    /// Name from the path, or from a field selector that matches one name only.
    pub name: String,
    /// True if `name` is part of the path.
    pub is_named: bool,
    /// Remaining path after the subresource.
    pub rest: String,
    /// See [`Operation::unserved`].
    pub unserved: Option<UnservedReason>,
}

impl From<&RequestInfo> for Gvr {
    fn from(info: &RequestInfo) -> Self {
        Self::new(&info.group, &info.version, &info.resource)
    }
}

/// Subresources of the resource `namespaces`, as opposed to resources in a namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl ResourcePath {
    /// Parses a raw path; `None` if it names no resource (`/version`, `/apis/apps/v1`).
    pub fn parse(raw: &str) -> Option<Self> {
        Self::parse_decoded(&percent_decode_str(raw).decode_utf8_lossy())
    }

    /// Parses a decoded path, which is split after decoding as kube-apiserver does.
    fn parse_decoded(path: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let (group, version) = match parts.next()? {
            "api" => ("", parts.next()?),
            "apis" => (parts.next()?, parts.next()?),
            _ => return None,
        };
        let mut parts: Vec<&str> = parts.collect();
        let mut prefix = "";
        if parts.len() > 1 && matches!(parts[0], "watch" | "proxy") {
            prefix = parts.remove(0);
        }
        let mut namespace = "";
        if parts.first() == Some(&"namespaces")
            && let Some(name) = parts.get(1)
        {
            namespace = name;
            if parts.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&parts[2]) {
                parts.drain(..2);
            }
        }
        let part = |at: usize| parts.get(at).copied().unwrap_or_default().to_owned();
        // The prefix `proxy` has no subresources.
        let rest_index = if prefix == "proxy" { 2 } else { 3 };
        let mut rest = parts.get(rest_index..).map(|rest| rest.join("/")).unwrap_or_default();
        if path.ends_with('/') && !rest.is_empty() {
            rest.push('/');
        }
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            resource: (*parts.first()?).to_owned(),
            name: part(1),
            subresource: if prefix == "proxy" { String::new() } else { part(2) },
            rest,
            prefix: prefix.to_owned(),
        })
    }

    /// The operation of a request for this path. Only this function derives verbs. Handlers dispatch on its result, so that
    /// they execute the operation that was authorized.
    pub fn operation(&self, method: &Method, query: &Query) -> Operation {
        let (verb, unserved) = match self.prefix.as_str() {
            "" => (verb(method, !self.name.is_empty(), query), None),
            "proxy" => ("proxy", Some(UnservedReason::Path)),
            _ if !self.subresource.is_empty() => ("watch", Some(UnservedReason::Path)),
            _ if *method != Method::GET => ("watch", Some(UnservedReason::Method)),
            _ => ("watch", None),
        };
        Operation { verb, unserved }
    }
}

impl RequestInfo {
    /// Parses a request. Ambiguous paths are interpreted as kube-apiserver interprets them; a server that forwards
    /// requests must reject them first ([`super::RequestPath`]).
    pub fn parse(method: &Method, raw_path: &str, query: &Query) -> Self {
        let path = percent_decode_str(raw_path).decode_utf8_lossy().into_owned();
        let Some(resource_path) = ResourcePath::parse_decoded(&path) else {
            return Self { path, verb: method.as_str().to_lowercase(), ..Self::default() };
        };
        let is_named = !resource_path.name.is_empty();
        let Operation { verb, unserved } = resource_path.operation(method, query);
        let ResourcePath { group, version, namespace, resource, name, subresource, rest, prefix } = resource_path;
        let verb = verb.to_owned();
        let mut info = Self {
            is_resource: true,
            path,
            verb,
            group,
            version,
            namespace,
            resource,
            subresource,
            name,
            is_named,
            rest,
            unserved,
        };
        if prefix.is_empty() {
            info.set_name_from_field_selector(query);
        }
        info
    }

    /// Sets the name of a list or watch that a field selector limits to one object. Handlers must apply that selector,
    /// because the permission may be limited to that name.
    fn set_name_from_field_selector(&mut self, query: &Query) {
        if !self.is_named
            && ["list", "watch"].contains(&self.verb.as_str())
            && let Some(fields) = query.get("fieldSelector")
            && let Ok(selector) = FieldSelector::parse(fields)
            && let Some(name) = selector.required_value("metadata.name")
            && !["", ".", ".."].contains(&name)
            && !name.contains(['/', '%'])
        {
            self.name = name.to_owned();
        }
    }

    /// True for requests that have no time limit and do not count towards the in-flight limits.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || self.verb == "proxy"
            || ["log", "exec", "attach", "portforward", "proxy"].contains(&self.subresource.as_str())
    }
}

/// The RBAC verb for a method on a path without a prefix; empty for methods without one.
fn verb(method: &Method, is_named: bool, query: &Query) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if is_named => "delete",
        Method::DELETE => "deletecollection",
        Method::GET | Method::HEAD if is_named => "get",
        Method::GET | Method::HEAD if query.flag("watch") => "watch",
        Method::GET | Method::HEAD => "list",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_derived_from_method_and_path() {
        // method, path, (verb, group, namespace, resource, name, subresource)
        let cases = [
            ("GET", "/api/v1/pods", ("list", "", "", "pods", "", "")),
            ("GET", "/api/v1/namespaces/a/pods?watch=true", ("watch", "", "a", "pods", "", "")),
            ("GET", "/api/v1/namespaces/a", ("get", "", "a", "namespaces", "a", "")),
            ("PUT", "/api/v1/namespaces/a/finalize", ("update", "", "a", "namespaces", "a", "finalize")),
            ("POST", "/apis/apps/v1/namespaces/a/deployments", ("create", "apps", "a", "deployments", "", "")),
            ("GET", "/api/v1/namespaces/a/pods/p/log", ("get", "", "a", "pods", "p", "log")),
            ("DELETE", "/api/v1/nodes", ("deletecollection", "", "", "nodes", "", "")),
            ("GET", "/api/v1/secrets?fieldSelector=metadata.name%3Done", ("list", "", "", "secrets", "one", "")),
            ("GET", "/api/v1/watch/namespaces/a/pods", ("watch", "", "a", "pods", "", "")),
        ];
        for (method, path, expected) in cases {
            let uri: http::Uri = path.parse().unwrap();
            let info = RequestInfo::parse(&method.parse().unwrap(), uri.path(), &Query::parse(uri.query()));
            let got = (
                info.verb.as_str(),
                info.group.as_str(),
                info.namespace.as_str(),
                info.resource.as_str(),
                info.name.as_str(),
                info.subresource.as_str(),
            );
            assert_eq!(got, expected, "{method} {path}");
        }
    }

    #[rstest::rstest]
    #[case("GET", "/api/v1/watch/pods", "watch", "", None)]
    #[case("GET", "/api/v1/watch/namespaces/a/pods/p", "watch", "p", None)]
    #[case("GET", "/api/v1/watch/namespaces/a/pods/p?watch=false", "watch", "p", None)]
    #[case("GET", "/api/v1/watch/namespaces/a", "watch", "a", None)]
    // The selector of a deprecated path does not name the object that is authorized.
    #[case("GET", "/api/v1/watch/secrets?fieldSelector=metadata.name%3Done", "watch", "", None)]
    #[case("HEAD", "/api/v1/watch/pods", "watch", "", Some(UnservedReason::Method))]
    #[case("PUT", "/api/v1/watch/namespaces/a/pods/p", "watch", "p", Some(UnservedReason::Method))]
    #[case("PATCH", "/apis/apps/v1/watch/namespaces/a/deployments/d", "watch", "d", Some(UnservedReason::Method))]
    #[case("POST", "/api/v1/watch/namespaces/a/pods", "watch", "", Some(UnservedReason::Method))]
    #[case("DELETE", "/api/v1/watch/namespaces/a/pods", "watch", "", Some(UnservedReason::Method))]
    #[case("PATCH", "/apis/apps/v1/watch/namespaces/a/deployments/d/scale", "watch", "d", Some(UnservedReason::Path))]
    #[case("GET", "/api/v1/watch/namespaces/a/pods/p/exec?command=id", "watch", "p", Some(UnservedReason::Path))]
    #[case("GET", "/api/v1/watch/namespaces/a/status", "watch", "a", Some(UnservedReason::Path))]
    #[case("GET", "/api/v1/proxy/namespaces/a/pods/p", "proxy", "p", Some(UnservedReason::Path))]
    #[case("PATCH", "/apis/apps/v1/proxy/namespaces/a/deployments/d/scale", "proxy", "d", Some(UnservedReason::Path))]
    #[case("GET", "/api/v1/pods?watch=true", "watch", "", None)]
    #[case("PATCH", "/apis/apps/v1/namespaces/a/deployments/d/scale?watch=true", "patch", "d", None)]
    fn requests_below_deprecated_prefixes_are_not_served_except_watches(
        #[case] method: &str,
        #[case] path: &str,
        #[case] verb: &str,
        #[case] name: &str,
        #[case] unserved: Option<UnservedReason>,
    ) {
        let uri: http::Uri = path.parse().unwrap();
        let info = RequestInfo::parse(&method.parse().unwrap(), uri.path(), &Query::parse(uri.query()));
        assert_eq!((info.verb.as_str(), info.name.as_str(), info.unserved), (verb, name, unserved));
    }
}
