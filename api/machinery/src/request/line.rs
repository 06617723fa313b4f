//! Request line and host of a request.

use http::{HeaderMap, Method, Version, header};

/// True if API servers support the method (k8s.io/apiserver, `RequestInfoFactory`). Names are case-sensitive: `get` is
/// not supported.
///
/// Only supported methods are forwarded, because other methods have no verb and cannot be authorized.
pub fn is_supported_method(method: &Method) -> bool {
    const SUPPORTED: [Method; 7] =
        [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
    SUPPORTED.contains(method)
}

/// True if the number of `Host` headers is valid (RFC 9112 §3.2): exactly one in HTTP/1.1, at most one in other
/// versions.
pub fn has_valid_host(version: Version, headers: &HeaderMap) -> bool {
    match headers.get_all(header::HOST).iter().count() {
        0 => version != Version::HTTP_11,
        hosts => hosts == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("GET", true)]
    #[case("PATCH", true)]
    #[case("OPTIONS", true)]
    #[case("get", false)]
    #[case("CONNECT", false)]
    #[case("TRACE", false)]
    #[case("PROPFIND", false)]
    fn supported_methods_are_recognized(#[case] method: &str, #[case] expected: bool) {
        assert_eq!(is_supported_method(&method.parse().unwrap()), expected);
    }

    #[rstest]
    #[case(Version::HTTP_11, 0, false)]
    #[case(Version::HTTP_11, 1, true)]
    #[case(Version::HTTP_11, 2, false)]
    #[case(Version::HTTP_10, 0, true)]
    #[case(Version::HTTP_2, 0, true)]
    #[case(Version::HTTP_2, 2, false)]
    fn the_number_of_host_headers_is_checked(#[case] version: Version, #[case] count: usize, #[case] expected: bool) {
        let mut headers = HeaderMap::new();
        for _ in 0..count {
            headers.append(header::HOST, "a".parse().unwrap());
        }
        assert_eq!(has_valid_host(version, &headers), expected);
    }
}
