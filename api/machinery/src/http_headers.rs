//! Request headers for compressed and for cached responses (RFC 9110).

use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, IF_NONE_MATCH};

/// True if `Accept-Encoding` names a content coding. A weight of 0 means that the coding is not acceptable.
pub fn accepts_coding(headers: &HeaderMap, coding: &str) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|accepted| {
        let mut parts = accepted.split(';').map(str::trim);
        let is_same = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(coding));
        let is_refused = |parameter: &str| {
            let weight = parameter.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
            weight.is_some_and(|weight| weight <= 0.0)
        };
        is_same && !parts.any(is_refused)
    })
}

/// True if `If-None-Match` contains an ETag, by weak comparison: the client has the current response.
pub fn has_current_etag(headers: &HeaderMap, etag: &[u8]) -> bool {
    let values = headers.get_all(IF_NONE_MATCH).iter();
    let mut etags = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    etags.any(|candidate| candidate == b"*" || opaque_tag(candidate) == opaque_tag(etag))
}

/// The ETag without the weakness prefix.
fn opaque_tag(etag: &[u8]) -> &[u8] {
    etag.strip_prefix(b"W/").unwrap_or(etag)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use rstest::rstest;

    use super::*;

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, http::HeaderValue::from_static(value))])
    }

    #[rstest]
    #[case::none("", false)]
    #[case::go_client("gzip", true)]
    #[case::browser("gzip, deflate, br, zstd", true)]
    #[case::weighted("br;q=1.0, GZIP; q=0.8", true)]
    #[case::refused("gzip;q=0, deflate", false)]
    #[case::refused_with_decimals("deflate, gzip; q=0.000", false)]
    #[case::other("identity, x-gzip", false)]
    fn codings_are_used_if_they_are_accepted(#[case] accepted: &'static str, #[case] expected: bool) {
        assert_eq!(accepts_coding(&headers(ACCEPT_ENCODING, accepted), "gzip"), expected);
    }

    #[rstest]
    #[case::none("", false)]
    #[case::equal("\"A\"", true)]
    #[case::weak("W/\"A\"", true)]
    #[case::several("\"B\", \"A\"", true)]
    #[case::any("*", true)]
    #[case::other("\"B\"", false)]
    fn etags_are_compared_weakly(#[case] if_none_match: &'static str, #[case] expected: bool) {
        for etag in ["\"A\"", "W/\"A\""] {
            assert_eq!(has_current_etag(&headers(IF_NONE_MATCH, if_none_match), etag.as_bytes()), expected, "{etag}");
        }
    }
}
