//! Checks of a browser request: the host name under which it reaches a server, and the origin of the page that sent it.
//! Has no side effects.
//!
//! A name that resolves to a loopback address makes another site's page same-origin with a server on the user's machine
//! (DNS rebinding). IP addresses cannot be rebound, so only names are checked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crowsnest_apimachinery::status::{ApiError, Reason};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri, header};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Host names under which browsers reach the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// `localhost`, addresses, and these names, in lower case.
    Named(BTreeSet<String>),
    /// Any name, because browsers verify it against the TLS certificate.
    VerifiedByTls,
}

impl Hosts {
    /// Host names of a listener with plain HTTP.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = names.into_iter().map(|name| name.trim().trim_end_matches('.').to_ascii_lowercase());
        Self::Named(names.filter(|name| !name.is_empty()).collect())
    }

    /// Adds one host name.
    pub fn with_name(&self, host: &str) -> Self {
        match self {
            Hosts::VerifiedByTls => Self::VerifiedByTls,
            Hosts::Named(names) => Self::from_names(names.iter().map(String::as_str).chain([host])),
        }
    }

    fn contains(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        match self {
            Hosts::VerifiedByTls => true,
            Hosts::Named(names) => {
                let name = host.trim_end_matches('.').to_ascii_lowercase();
                address.parse::<IpAddr>().is_ok() || name == "localhost" || names.contains(&name)
            }
        }
    }

    /// The authority that a request is addressed to; an error gives the reason if there is none or if it is not this
    /// server.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Authority, &'static str> {
        let authority = authority(uri, headers)?;
        match self.contains(authority.host()) {
            true => Ok(authority),
            false => Err("this host name is not allowed for the web UI; allow the host name of a proxy with --ui-host"),
        }
    }
}

/// The single authority of a request, from its target, its `Host` header, or both.
fn authority(uri: &Uri, headers: &HeaderMap) -> Result<Authority, &'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => return Err("the request has more than one Host header"),
        (Some(value), None) => {
            let text = value.to_str().ok().filter(|text| !text.contains('@'));
            Some(
                text.and_then(|text| text.parse::<Authority>().ok())
                    .ok_or("the Host header is not a valid host name")?,
            )
        }
        (None, _) => None,
    };
    match (uri.authority(), host) {
        (Some(target), Some(host)) if *target != host => Err("the Host header differs from the request's target"),
        (Some(target), _) if target.as_str().contains('@') => Err("the request's target has credentials"),
        (Some(target), _) => Ok(target.clone()),
        (None, Some(host)) => Ok(host),
        (None, None) => Err("the request has no Host header"),
    }
}

/// False if the browser reports that a page of another origin sent the request. `null` counts as another origin.
pub fn is_same_origin_page(headers: &HeaderMap, authority: &Authority) -> bool {
    let is_same_origin = headers.get_all(FETCH_SITE).iter().all(|value| value == "same-origin" || value == "none");
    is_same_origin && headers.get_all(header::ORIGIN).iter().all(|origin| is_origin_of(origin.as_bytes(), authority))
}

/// Refuses a request if the browser reports that a page of another origin sent it. Clients other than browsers send no
/// origin.
pub fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let is_allowed = !headers.contains_key(header::ORIGIN)
        || authority(uri, headers).is_ok_and(|authority| is_same_origin_page(headers, &authority));
    match is_allowed {
        true => Ok(()),
        false => Err(ApiError::new(Reason::Forbidden, "requests from pages of other origins are not allowed")),
    }
}

/// True if the browser reports that a page of this origin sent the request. Required for WebSockets, which carry the
/// cookie but no custom headers. Other ports of the same host are other origins. The scheme is not compared, because
/// TLS may be terminated in front of the server.
pub fn has_same_origin(headers: &HeaderMap, authority: &Authority) -> bool {
    headers.contains_key(header::ORIGIN) && is_same_origin_page(headers, authority)
}

fn is_origin_of(origin: &[u8], authority: &Authority) -> bool {
    let text = std::str::from_utf8(origin).ok().and_then(|origin| origin.split_once("://"));
    text.is_some_and(|(scheme, host)| {
        let default_port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return false,
        };
        // Proxies may add the default port, which browsers omit.
        let server_host = authority.as_str();
        host.eq_ignore_ascii_case(server_host.strip_suffix(default_port).unwrap_or(server_host))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }

    #[rstest]
    #[case::loopback("127.0.0.1:7080", true)]
    #[case::forwarded_port("localhost:9999", true)]
    #[case::no_port("localhost", true)]
    #[case::upper_case("LOCALHOST:7080", true)]
    #[case::absolute("localhost.:7080", true)]
    #[case::ipv6("[::1]:7080", true)]
    #[case::another_address("10.0.0.7:7080", true)]
    #[case::named("fleet.example:443", true)]
    #[case::named_in_upper_case("Fleet.Example", true)]
    #[case::rebound("evil.example:7080", false)]
    #[case::allowed_name_as_prefix("localhost.evil.example", false)]
    #[case::address_as_prefix("127.0.0.1.nip.io:7080", false)]
    #[case::subdomain_of_an_allowed_name("a.fleet.example", false)]
    #[case::credentials("localhost@evil.example", false)]
    #[case::empty("", false)]
    #[case::space("local host", false)]
    fn host_names_are_checked(#[case] host: &str, #[case] expected: bool) {
        let hosts = Hosts::from_names(["fleet.example"]);
        let checked = hosts.check(&Uri::from_static("/api"), &headers(&[("host", host)]));
        assert_eq!(checked.is_ok(), expected, "{checked:?}");
    }

    #[rstest]
    #[case::http2("https://localhost/api", &[], true)]
    #[case::rebound("https://evil.example/api", &[], false)]
    #[case::both("http://localhost/api", &[("host", "localhost")], true)]
    #[case::both_differ("http://localhost/api", &[("host", "evil.example")], false)]
    #[case::target_differs("http://evil.example/api", &[("host", "localhost")], false)]
    #[case::twice("/api", &[("host", "localhost"), ("host", "localhost")], false)]
    #[case::none("/api", &[], false)]
    #[case::forwarded("/api", &[("host", "evil.example"), ("x-forwarded-host", "localhost")], false)]
    fn a_request_has_one_authority(
        #[case] uri: &'static str,
        #[case] sent: &[(&'static str, &str)],
        #[case] expected: bool,
    ) {
        assert_eq!(Hosts::from_names([]).check(&Uri::from_static(uri), &headers(sent)).is_ok(), expected);
    }

    #[test]
    fn tls_verifies_names() {
        assert!(Hosts::VerifiedByTls.check(&Uri::from_static("/"), &headers(&[("host", "fleet.example")])).is_ok());
        assert!(Hosts::VerifiedByTls.check(&Uri::from_static("/"), &HeaderMap::new()).is_err());
    }

    /// `expected` states whether a request with the page's custom header is accepted, and whether a WebSocket is.
    #[rstest]
    #[case::own_page(&[("origin", "http://127.0.0.1:7080"), ("sec-fetch-site", "same-origin")], (true, true))]
    #[case::no_fetch_metadata(&[("origin", "http://127.0.0.1:7080")], (true, true))]
    #[case::behind_tls(&[("origin", "https://127.0.0.1:7080")], (true, true))]
    #[case::a_get(&[("sec-fetch-site", "same-origin")], (true, false))]
    #[case::no_browser(&[], (true, false))]
    #[case::another_port(&[("origin", "http://127.0.0.1:8080")], (false, false))]
    #[case::another_name(&[("origin", "http://localhost:7080")], (false, false))]
    #[case::another_site(&[("origin", "https://evil.example")], (false, false))]
    #[case::another_scheme(&[("origin", "chrome-extension://127.0.0.1:7080")], (false, false))]
    #[case::a_file(&[("origin", "null")], (false, false))]
    #[case::longer(&[("origin", "http://127.0.0.1:7080.evil.example")], (false, false))]
    #[case::two(&[("origin", "http://127.0.0.1:7080"), ("origin", "https://evil.example")], (false, false))]
    #[case::same_site(&[("origin", "http://127.0.0.1:7080"), ("sec-fetch-site", "same-site")], (false, false))]
    #[case::cross_site(&[("sec-fetch-site", "cross-site")], (false, false))]
    fn pages_of_other_origins_are_rejected(#[case] sent: &[(&'static str, &str)], #[case] expected: (bool, bool)) {
        let (headers, authority) = (headers(sent), Authority::from_static("127.0.0.1:7080"));
        assert_eq!((is_same_origin_page(&headers, &authority), has_same_origin(&headers, &authority)), expected);
    }

    #[rstest]
    #[case::no_browser(&[("host", "fleet.example")], true)]
    #[case::own_page(&[("host", "fleet.example"), ("origin", "https://fleet.example")], true)]
    #[case::another_site(&[("host", "fleet.example"), ("origin", "https://evil.example")], false)]
    #[case::without_host(&[("origin", "https://fleet.example")], false)]
    fn origins_of_other_sites_are_not_allowed(#[case] sent: &[(&'static str, &str)], #[case] expected: bool) {
        assert_eq!(check_origin(&Uri::from_static("/mcp"), &headers(sent)).is_ok(), expected);
    }
}
