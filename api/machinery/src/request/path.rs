//! Path of a request, parsed into segments. Ambiguous paths are refused.

use std::borrow::Cow;

use http::Method;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::info::{ResourcePath, UnservedReason};
use super::query::Query;

/// Characters that [`path_segment`] percent-encodes: the delimiters of URI components, and all that are not allowed in a
/// path segment (RFC 3986 §3.3). Others are not encoded: names of RBAC objects may contain most of them.
const ENCODE_SET: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// True if a name can be one segment of a path: Kubernetes allows no `/` and no `%` in any name, and neither `.` nor `..`
/// (k8s.io/apimachinery `IsValidPathSegmentName`).
pub fn is_path_segment(name: &str) -> bool {
    !name.contains(['/', '%']) && !matches!(name, "." | "..")
}

/// Encodes a name as one segment of a request's path. A name that a user chose must not add segments or parameters to a
/// request that is sent with other permissions than the user's. API servers decode a path before they split it, so a name
/// that is not valid in Kubernetes is encoded twice: the request then names an object that cannot exist.
pub fn path_segment(name: &str) -> Cow<'_, str> {
    if is_path_segment(name) {
        return utf8_percent_encode(name, ENCODE_SET).into();
    }
    let encoded_once = name.replace('%', "%25").replace('/', "%2F").replace('.', "%2E");
    Cow::Owned(utf8_percent_encode(&encoded_once, ENCODE_SET).to_string())
}

/// Resources whose subresource `proxy` forwards the remaining path to a backend behind the API server.
const PROXIED_RESOURCES: [&str; 3] = ["pods", "services", "nodes"];

/// A path that every server splits into the same segments.
///
/// API servers decode a path before they split it, other servers split it before they decode it, and load balancers may
/// resolve `..`. A path on which these disagree is refused, so that it cannot be authorized as one request and executed
/// as another. The path after `proxy/` of a pod, service or node is interpreted by its backend: there, empty segments and
/// encoded slashes are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath<'a> {
    segments: Vec<Cow<'a, str>>,
}

/// Reason why a path is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path segment {0:?} contains an encoded slash")]
    EncodedSlash(String),
    #[error("the path contains the relative segment {0:?}")]
    RelativeSegment(String),
    #[error("the path contains an empty segment")]
    EmptySegment,
    #[error("the path segment {0:?} contains a control character")]
    ControlCharacter(String),
    #[error("the path segment {0:?} is not UTF-8")]
    NotUtf8(String),
    #[error(transparent)]
    Unserved(#[from] UnservedReason),
}

impl<'a> RequestPath<'a> {
    /// Splits a raw path and decodes each segment once.
    pub fn parse(raw: &'a str) -> Result<Self, PathError> {
        let raw = raw.strip_prefix('/').unwrap_or(raw);
        let raw = raw.strip_suffix('/').unwrap_or(raw);
        if raw.is_empty() {
            return Ok(Self { segments: Vec::new() });
        }
        let mut segments: Vec<Cow<'a, str>> = Vec::new();
        let mut is_behind_proxy = false;
        for part in raw.split('/') {
            let decoded = percent_decode_str(part).decode_utf8().map_err(|_| PathError::NotUtf8(part.to_owned()))?;
            check_segment(part, &decoded, is_behind_proxy)?;
            is_behind_proxy |= enters_proxy(&segments, &decoded);
            segments.push(decoded);
        }
        Ok(Self { segments })
    }

    /// Parses the path of a request that is sent to another API server: it must be unambiguous, and must be served if
    /// it has the deprecated prefix `watch` or `proxy` (see [`UnservedReason`]).
    pub fn parse_for_forwarding(method: &Method, raw: &'a str) -> Result<Self, PathError> {
        let path = Self::parse(raw)?;
        // The query does not affect whether a request below a deprecated prefix is served.
        let operation = ResourcePath::parse(raw).map(|path| path.operation(method, &Query::default()));
        match operation.and_then(|operation| operation.unserved) {
            Some(unserved) => Err(unserved.into()),
            None => Ok(path),
        }
    }

    /// Group and version of `/apis/GROUP/VERSION[/…]`.
    pub fn group_version(&self) -> Option<(&str, &str)> {
        match self.segments.as_slice() {
            [apis, group, version, ..] if apis == "apis" => Some((group, version)),
            _ => None,
        }
    }

    /// The decoded segments; a trailing slash adds none.
    pub fn segments(&self) -> &[Cow<'a, str>] {
        &self.segments
    }
}

fn check_segment(raw: &str, decoded: &str, is_behind_proxy: bool) -> Result<(), PathError> {
    if decoded.chars().any(char::is_control) {
        return Err(PathError::ControlCharacter(raw.to_owned()));
    }
    if decoded.split(['/', '\\']).any(|part| matches!(part, "." | "..")) {
        return Err(PathError::RelativeSegment(raw.to_owned()));
    }
    match decoded {
        _ if is_behind_proxy => Ok(()),
        "" => Err(PathError::EmptySegment),
        _ if decoded.contains('/') => Err(PathError::EncodedSlash(raw.to_owned())),
        _ => Ok(()),
    }
}

/// True if `next` is the subresource `proxy` of a pod, service or node: the backend interprets the rest of the path.
fn enters_proxy(before: &[Cow<'_, str>], next: &str) -> bool {
    let before: Vec<&str> = before.iter().map(AsRef::as_ref).collect();
    next == "proxy"
        && match before.as_slice() {
            ["api", _version, resource, _name] => PROXIED_RESOURCES.contains(resource),
            ["api", _version, "namespaces", _namespace, resource, _name] => PROXIED_RESOURCES.contains(resource),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("web", "web")]
    #[case("system:controller:x@y", "system:controller:x@y")]
    #[case("a?x=1#z", "a%3Fx=1%23z")]
    #[case("a/b?x", "a%252Fb%3Fx")]
    #[case("a%2Fb", "a%25252Fb")]
    #[case("..", "%252E%252E")]
    #[case("ü\n", "%C3%BC%0A")]
    fn a_name_is_encoded_as_one_segment(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(path_segment(name), expected);
    }

    #[rstest]
    #[case::root("/", Ok(vec![]))]
    #[case::empty_path("", Ok(vec![]))]
    #[case::plain("/api/v1/pods", Ok(vec!["api", "v1", "pods"]))]
    #[case::trailing_slash("/api/v1/", Ok(vec!["api", "v1"]))]
    #[case::encoded("/api/v1/nodes/n%2E1/p%C3%A4th", Ok(vec!["api", "v1", "nodes", "n.1", "päth"]))]
    #[case::decoded_once("/api/v1/nodes/a%252Fb", Ok(vec!["api", "v1", "nodes", "a%2Fb"]))]
    #[case::semicolon("/api/v1/pods;a=b", Ok(vec!["api", "v1", "pods;a=b"]))]
    #[case::slash_in_a_name("/apis/cluster.karmada.io/v1alpha1/clusters/m1%2Fstatus", Err(PathError::EncodedSlash("m1%2Fstatus".into())))]
    #[case::slash_in_a_group("/api%2fv1/secrets", Err(PathError::EncodedSlash("api%2fv1".into())))]
    #[case::dots("/api/v1/../../secrets", Err(PathError::RelativeSegment("..".into())))]
    #[case::encoded_dots("/api/v1/%2e%2E/secrets", Err(PathError::RelativeSegment("%2e%2E".into())))]
    #[case::half_encoded_dots("/api/.%2e/secrets", Err(PathError::RelativeSegment(".%2e".into())))]
    #[case::one_dot("/api/./v1", Err(PathError::RelativeSegment(".".into())))]
    #[case::backslash("/api/v1/a%5C..%5Cb", Err(PathError::RelativeSegment("a%5C..%5Cb".into())))]
    #[case::empty("/api//v1/secrets", Err(PathError::EmptySegment))]
    #[case::empty_first("//api/v1/secrets", Err(PathError::EmptySegment))]
    #[case::empty_last("/api/v1//", Err(PathError::EmptySegment))]
    #[case::nul("/api/v1/a%00b", Err(PathError::ControlCharacter("a%00b".into())))]
    #[case::newline("/api/v1/a%0d%0aX:%20y", Err(PathError::ControlCharacter("a%0d%0aX:%20y".into())))]
    #[case::latin_1("/api/v1/%ff", Err(PathError::NotUtf8("%ff".into())))]
    #[case::overlong_slash("/api/v1/a%c0%afb", Err(PathError::NotUtf8("a%c0%afb".into())))]
    #[case::proxied_service(
        "/api/v1/namespaces/a/services/s/proxy/x%2Fy//z",
        Ok(vec!["api", "v1", "namespaces", "a", "services", "s", "proxy", "x/y", "", "z"])
    )]
    #[case::proxied_node("/api/v1/nodes/n/proxy/logs%2Fa", Ok(vec!["api", "v1", "nodes", "n", "proxy", "logs/a"]))]
    #[case::traversal_in_proxied_path(
        "/api/v1/nodes/n/proxy/x%2F..%2F..%2Fsecrets", Err(PathError::RelativeSegment("x%2F..%2F..%2Fsecrets".into()))
    )]
    #[case::proxy_in_another_group("/apis/g/v1/pods/p/proxy/x%2Fy", Err(PathError::EncodedSlash("x%2Fy".into())))]
    #[case::namespace_named_like_a_proxied_resource(
        "/api/v1/namespaces/pods/configmaps/proxy/a%2Fb", Err(PathError::EncodedSlash("a%2Fb".into()))
    )]
    #[case::proxy_without_a_name("/api/v1/pods/proxy/x%2Fy", Err(PathError::EncodedSlash("x%2Fy".into())))]
    fn paths_are_split_or_refused(#[case] raw: &str, #[case] expected: Result<Vec<&str>, PathError>) {
        let parsed = RequestPath::parse(raw);
        let segments = parsed.as_ref().map(|path| path.segments().iter().map(AsRef::as_ref).collect::<Vec<&str>>());
        assert_eq!(segments.map_err(Clone::clone), expected);
    }

    #[rstest]
    #[case("GET", "/api/v1/watch/pods", None)]
    #[case("PATCH", "/apis/apps/v1/namespaces/a/deployments/d/scale", None)]
    #[case(
        "PATCH",
        "/apis/apps/v1/watch/namespaces/a/deployments/d/scale",
        Some(PathError::Unserved(UnservedReason::Path))
    )]
    #[case(
        "PATCH",
        "/apis/apps/v1/%77atch/namespaces/a/deployments/d",
        Some(PathError::Unserved(UnservedReason::Method))
    )]
    #[case("GET", "/api/v1/watch/namespaces/a/pods/p/exec", Some(PathError::Unserved(UnservedReason::Path)))]
    #[case("GET", "/api/v1/proxy/nodes/n", Some(PathError::Unserved(UnservedReason::Path)))]
    #[case("GET", "/api/v1//watch/pods", Some(PathError::EmptySegment))]
    fn forwarded_requests_are_checked(#[case] method: &str, #[case] raw: &str, #[case] expected: Option<PathError>) {
        assert_eq!(RequestPath::parse_for_forwarding(&method.parse().unwrap(), raw).err(), expected);
    }

    #[rstest]
    #[case("/apis/metrics.k8s.io/v1beta1/nodes", Some(("metrics.k8s.io", "v1beta1")))]
    #[case("/apis/metrics%2Ek8s.io/v1beta1", Some(("metrics.k8s.io", "v1beta1")))]
    #[case("/apis/metrics.k8s.io", None)]
    #[case("/api/v1/pods", None)]
    fn group_version_is_parsed(#[case] raw: &str, #[case] expected: Option<(&str, &str)>) {
        assert_eq!(RequestPath::parse(raw).unwrap().group_version(), expected);
    }

    proptest::proptest! {
        /// For every accepted path, splitting before decoding gives the same segments as decoding before splitting.
        #[test]
        fn accepted_paths_have_one_meaning(raw in "(/([a-z.%;\\\\]|%2[eEfF5]|%5c|%00|ä|proxy|api|nodes){0,4}){0,8}") {
            if let Ok(path) = RequestPath::parse(&raw) {
                let decoded = percent_decode_str(&raw).decode_utf8().unwrap();
                let decoded = decoded.strip_prefix('/').unwrap_or(&decoded);
                let decoded = decoded.strip_suffix('/').unwrap_or(decoded);
                let has_proxy = path.segments().iter().any(|segment| segment == "proxy");
                if !has_proxy {
                    proptest::prop_assert_eq!(path.segments().join("/"), decoded);
                    proptest::prop_assert!(path.segments().iter().all(|segment| !segment.contains('/')));
                }
                proptest::prop_assert!(!decoded.split('/').any(|part| part == ".."));
            }
        }
    }
}
