//! What a request is about, read from its method and path: `RequestInfo` of apiserver. Pure.

use http::Method;

use crate::registry::options::Query;
use crate::registry::resource::Gvr;
use crate::registry::selector::FieldSelector;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub is_resource: bool,
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for other paths the method.
    pub verb: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    /// From the path, or from a field selector that fixes it.
    pub name: String,
    /// True when `name` stands in the path.
    pub named: bool,
    /// What follows the subresource.
    pub rest: String,
}

/// Subresources of the resource `namespaces`, told from resources in a namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned();
        let other = Self { path: decoded.clone(), verb: method.as_str().to_lowercase(), ..Self::default() };
        let mut parts = decoded.split('/').filter(|p| !p.is_empty());
        let (group, version) = match (parts.next(), parts.next()) {
            (Some("api"), Some(version)) => ("", version),
            (Some("apis"), Some(group)) => match parts.next() {
                Some(version) => (group, version),
                None => return other,
            },
            _ => return other,
        };
        let mut parts: Vec<&str> = parts.collect();
        if parts.is_empty() {
            return other;
        }
        let mut info = Self {
            is_resource: true,
            group: group.to_owned(),
            version: version.to_owned(),
            verb: verb(method).to_owned(),
            path: decoded.clone(),
            ..Self::default()
        };
        if parts.len() > 1 && ["watch", "proxy"].contains(&parts[0]) {
            info.verb = parts.remove(0).to_owned();
        }
        if parts[0] == "namespaces"
            && let Some(namespace) = parts.get(1)
        {
            info.namespace = (*namespace).to_owned();
            if parts.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&parts[2]) {
                parts.drain(..2);
            }
        }
        info.resource = parts[0].to_owned();
        info.name = parts.get(1).map(|s| (*s).to_owned()).unwrap_or_default();
        info.subresource = parts.get(2).map(|s| (*s).to_owned()).unwrap_or_default();
        info.rest = parts.get(3..).map(|rest| rest.join("/")).unwrap_or_default();
        info.named = !info.name.is_empty();
        if decoded.ends_with('/') && !info.rest.is_empty() {
            info.rest.push('/');
        }
        info.refine(query);
        info
    }

    /// Tells list, watch and deletecollection from get and delete.
    fn refine(&mut self, query: &Query) {
        if !self.named && self.verb == "get" {
            self.verb = if query.flag("watch") { "watch".into() } else { "list".into() };
        }
        if !self.named && self.verb == "delete" {
            self.verb = "deletecollection".into();
        }
        if !self.named
            && ["list", "watch"].contains(&self.verb.as_str())
            && let Some(fields) = query.get("fieldSelector")
            && let Ok(selector) = FieldSelector::parse(fields)
            && let Some(name) = selector.exact("metadata.name")
            && !["", ".", ".."].contains(&name)
            && !name.contains(['/', '%'])
        {
            self.name = name.to_owned();
        }
    }

    pub fn gvr(&self) -> Gvr {
        Gvr::new(&self.group, &self.version, &self.resource)
    }

    /// Requests without a time limit and outside of the in-flight limits.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || self.verb == "proxy"
            || ["log", "exec", "attach", "portforward", "proxy"].contains(&self.subresource.as_str())
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::GET | Method::HEAD => "get",
        _ => "",
    }
}

/// (group, version) of `/apis/<group>/<version>/…`.
pub(crate) fn group_version(path: &str) -> (&str, &str) {
    let mut parts = path.trim_start_matches('/').splitn(4, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("apis"), Some(group), Some(version)) => (group, version),
        _ => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_say_what_they_are_about() {
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
}
