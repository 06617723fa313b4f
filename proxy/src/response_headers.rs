//! Response headers of members and of the control plane that are forwarded from another origin. Has no side effects.
//!
//! Browsers apply many response headers to the entire origin of a response: cookies, stored data, transport security,
//! service workers, reporting, authentication. A member must not control these for our origins. There are two rules:
//!
//! - [`pass_to_browser`]: an allow-list, for the web UI's origin, which has the reader's session.
//! - [`drop_origin_wide`]: a deny-list, for the aggregated proxies, whose callers (kubectl, controllers, pages of a service behind
//!   `…/services/NAME/proxy`) rely on any other header of the member.

use http::{HeaderMap, HeaderName, header};

/// Headers that describe the body or its freshness, and Kubernetes' own headers.
const ALLOWED: &[&str] = &[
    "accept-ranges",
    "age",
    "audit-id",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
    "pragma",
    "retry-after",
    "vary",
    "warning",
];

/// Prefix of Kubernetes' priority and fairness headers.
const ALLOWED_PREFIX: &str = "x-kubernetes-pf-";

/// Headers that complete a WebSocket handshake in a 101 response, RFC 6455 section 4.2.2.
const WEBSOCKET_HANDSHAKE: &[&str] =
    &["connection", "sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol", "upgrade"];

/// Headers of one response that change how a browser treats the whole origin.
const ORIGIN_WIDE: &[&str] = &[
    "accept-ch",
    "alt-svc",
    "clear-site-data",
    "critical-ch",
    "expect-ct",
    "nel",
    "origin-agent-cluster",
    "proxy-authenticate",
    "public-key-pins",
    "public-key-pins-report-only",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "set-cookie2",
    "set-login",
    "strict-transport-security",
];

/// Cross-origin permissions: a member may grant them for its own address only.
const ORIGIN_WIDE_PREFIX: &str = "access-control-";

/// Returns the response headers that may reach a browser at an origin other than the sender's. `is_upgraded` is true for a
/// 101 response to a WebSocket request.
#[must_use]
pub fn pass_to_browser(headers: &HeaderMap, is_upgraded: bool) -> HeaderMap {
    let mut passed = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        if is_allowed(name) || (is_upgraded && WEBSOCKET_HANDSHAKE.contains(&name.as_str())) {
            passed.append(name.clone(), value.clone());
        }
    }
    passed
}

fn is_allowed(name: &HeaderName) -> bool {
    ALLOWED.contains(&name.as_str()) || name.as_str().starts_with(ALLOWED_PREFIX)
}

/// Removes the response headers that would affect the whole origin from which the response is forwarded.
pub fn drop_origin_wide(headers: &mut HeaderMap) {
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| is_origin_wide(name)).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
}

fn is_origin_wide(name: &HeaderName) -> bool {
    *name == header::SET_COOKIE || ORIGIN_WIDE.contains(&name.as_str()) || name.as_str().starts_with(ORIGIN_WIDE_PREFIX)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// Headers that must not reach a browser at the UI's origin.
    const HOSTILE: &[&str] = &[
        "Set-Cookie",
        "set-cookie",
        "SET-COOKIE2",
        "Clear-Site-Data",
        "Content-Security-Policy",
        "Content-Security-Policy-Report-Only",
        "Strict-Transport-Security",
        "Refresh",
        "Location",
        "Content-Location",
        "Service-Worker-Allowed",
        "Access-Control-Allow-Origin",
        "Access-Control-Allow-Credentials",
        "Access-Control-Expose-Headers",
        "Link",
        "NEL",
        "Report-To",
        "Reporting-Endpoints",
        "WWW-Authenticate",
        "Proxy-Authenticate",
        "Alt-Svc",
        "SourceMap",
        "X-SourceMap",
        "X-Frame-Options",
        "X-Content-Type-Options",
        "X-DNS-Prefetch-Control",
        "Permissions-Policy",
        "Referrer-Policy",
        "Cross-Origin-Opener-Policy",
        "Cross-Origin-Resource-Policy",
        "Timing-Allow-Origin",
        "Server",
        "Server-Timing",
        "Trailer",
        "Transfer-Encoding",
        "Keep-Alive",
        "Upgrade",
        "Connection",
        "Sec-WebSocket-Accept",
        "Speculation-Rules",
        "Supports-Loading-Mode",
        "X-Remote-User",
        "Impersonate-User",
        "X-Unheard-Of",
    ];

    fn map(names: &[&str]) -> HeaderMap {
        names.iter().map(|name| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("a"))).collect()
    }

    #[test]
    fn origin_wide_headers_are_not_passed() {
        let passed = pass_to_browser(&map(HOSTILE), false);
        assert!(passed.is_empty(), "{passed:?}");
    }

    #[rstest]
    #[case::body(&["content-type", "content-length", "content-encoding", "content-disposition", "content-range"])]
    #[case::freshness(&["cache-control", "etag", "last-modified", "expires", "age", "vary", "date"])]
    #[case::kubernetes(&["warning", "audit-id", "retry-after", "x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"])]
    fn headers_that_clients_need_are_passed(#[case] names: &[&str]) {
        assert_eq!(pass_to_browser(&map(names), false), map(names));
    }

    #[test]
    fn each_of_several_values_is_passed() {
        let mut headers = HeaderMap::new();
        for text in ["299 - \"one\"", "299 - \"two\""] {
            headers.append(header::WARNING, HeaderValue::from_static(text));
        }
        assert_eq!(pass_to_browser(&headers, false), headers);
    }

    #[test]
    fn websocket_responses_keep_handshake_headers_and_set_no_cookie() {
        let handshake = ["connection", "upgrade", "sec-websocket-accept", "sec-websocket-protocol"];
        let sent = map(&[&handshake[..], &["set-cookie", "access-control-allow-origin"]].concat());
        assert_eq!(pass_to_browser(&sent, true), map(&handshake));
    }

    #[test]
    fn aggregated_responses_keep_headers_without_origin_wide_effect() {
        let remaining =
            ["content-type", "location", "www-authenticate", "content-security-policy", "x-anything", "refresh"];
        let dropped = ["Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security", "NEL", "Report-To", "Alt-Svc"];
        let more = ["Service-Worker-Allowed", "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials"];
        let mut headers = map(&[&remaining[..], &dropped, &more].concat());
        headers.append(header::SET_COOKIE, HeaderValue::from_static("second"));
        drop_origin_wide(&mut headers);
        assert_eq!(headers, map(&remaining));
    }

    proptest! {
        /// For any headers of a member, only names on the allow-list remain.
        #[test]
        fn only_listed_names_are_left(names in prop::collection::vec("[a-zA-Z-]{1,24}", 0..40), is_upgraded: bool) {
            let sent: HeaderMap = names
                .iter()
                .chain(HOSTILE.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>().iter())
                .filter_map(|name| name.parse::<HeaderName>().ok())
                .map(|name| (name, HeaderValue::from_static("a")))
                .collect();
            for name in pass_to_browser(&sent, is_upgraded).keys() {
                let is_listed = is_allowed(name) || (is_upgraded && WEBSOCKET_HANDSHAKE.contains(&name.as_str()));
                prop_assert!(is_listed && !is_origin_wide(name), "{name}");
            }
        }
    }
}
