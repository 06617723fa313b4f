//! Headers of a received request that may be forwarded to another server.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Prefix of the WebSocket subprotocol in which browsers send a bearer token
/// (k8s.io/apiserver, `authentication/request/websocket`).
pub const BEARER_SUBPROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Connection-specific headers (RFC 9110 §7.6.1). Headers that only the client's `Connection` header names are not dropped:
/// the client could name a header that carries an identity.
pub const HOP_BY_HOP: [HeaderName; 12] = [
    header::CONNECTION,
    header::EXPECT,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Upgrade protocol of the connection through which an agent exposes its member.
pub const TUNNEL_PROTOCOL: &str = "crowsnest-tunnel/1";

/// Protocols that a connection may be upgraded to. No other protocol is offered: over an upgrade to HTTP/2 (`h2c`), a
/// client could send requests that bypass the identity headers written here.
const UPGRADE_PROTOCOLS: [&str; 3] = ["websocket", "spdy/3.1", TUNNEL_PROTOCOL];

/// Headers in which a client, or a proxy in front of it, sends an identity or a credential.
const IDENTITY_HEADERS: [&str; 9] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-forwarded-access-token",
    "x-forwarded-client-cert",
    "x-forwarded-email",
    "x-forwarded-groups",
    "x-forwarded-preferred-username",
    "x-forwarded-user",
];
const IDENTITY_PREFIXES: [&str; 3] = ["impersonate-", "x-remote-", "x-auth-request-"];

/// True if a header carries an identity or a credential. Also matches names in which `_` replaces `-`, because some
/// servers treat the two as equal.
pub fn is_identity_header(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    IDENTITY_HEADERS.contains(&name.as_str()) || IDENTITY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The requested upgrade protocol, if it is supported.
pub fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let tokens = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let requests_upgrade =
        tokens.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    let offered = headers.get_all(header::UPGRADE).iter().filter_map(|value| value.to_str().ok());
    let mut offered = offered.flat_map(|value| value.split(',')).map(str::trim).filter(|_| requests_upgrade);
    let supported =
        offered.find(|token| UPGRADE_PROTOCOLS.iter().any(|supported| token.eq_ignore_ascii_case(supported)))?;
    HeaderValue::from_str(supported).ok()
}

/// The headers of a received request that may be forwarded. Leaves out connection-specific headers, the length of the
/// body (which is framed again), identities and credentials. Keeps a request for an upgrade.
///
/// The caller adds the identity afterwards, so no header of the client can remove or replace it.
pub fn upstream_headers(received: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(received.len() + 8);
    for (name, value) in received {
        if HOP_BY_HOP.contains(name) || *name == header::CONTENT_LENGTH || is_identity_header(name) {
            continue;
        }
        if *name == header::SEC_WEBSOCKET_PROTOCOL {
            if let Some(value) = remove_bearer(value) {
                headers.append(name, value);
            }
            continue;
        }
        headers.append(name, value.clone());
    }
    if let Some(protocol) = requested_upgrade(received) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    headers
}

/// WebSocket subprotocols without bearer tokens. A value that is not text is dropped, because it could contain a token.
fn remove_bearer(protocols: &HeaderValue) -> Option<HeaderValue> {
    let protocols = protocols.to_str().ok()?.split(',').map(str::trim);
    let is_token = |protocol: &str| {
        protocol.get(..BEARER_SUBPROTOCOL.len()).is_some_and(|start| start.eq_ignore_ascii_case(BEARER_SUBPROTOCOL))
    };
    let remaining: Vec<&str> = protocols.filter(|protocol| !protocol.is_empty() && !is_token(protocol)).collect();
    HeaderValue::from_str(&remaining.join(", ")).ok().filter(|remaining| !remaining.is_empty())
}

/// A name, group or other part of an identity as a header value. `None` if a receiver would read a different value: receivers
/// trim white space, and control characters are not allowed.
pub fn identity_header_value(text: &str) -> Option<HeaderValue> {
    let is_unchanged = !text.is_empty() && text.trim() == text;
    is_unchanged.then(|| HeaderValue::from_bytes(text.as_bytes()).ok()).flatten()
}

/// Removes connection-specific headers from a response.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        headers
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        headers.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))).collect()
    }

    #[rstest]
    #[case::plain(&[("Accept", "a"), ("Content-Type", "b"), ("Host", "c")], &["accept: a", "content-type: b"])]
    #[case::repeated(&[("Accept", "a"), ("accept", "b")], &["accept: a", "accept: b"])]
    #[case::named_by_the_client(&[("Connection", "Accept, keep-alive"), ("Accept", "a")], &["accept: a"])]
    #[case::identities(
        &[
            ("AUTHORIZATION", "t"), ("Cookie", "c"), ("Impersonate-User", "root"), ("impersonate-extra-x", "y"),
            ("X-Remote-Group", "system:masters"), ("x_remote_user", "root"), ("Impersonate_Group", "g"),
            ("X-Forwarded-User", "u"), ("X-Forwarded-For", "10.0.0.1"),
        ],
        &["x-forwarded-for: 10.0.0.1"]
    )]
    #[case::upgrade(
        &[("Connection", "keep-alive, Upgrade"), ("Upgrade", "SPDY/3.1")],
        &["connection: Upgrade", "upgrade: SPDY/3.1"]
    )]
    #[case::upgrade_with_identities(
        &[("Connection", "Upgrade, Impersonate-User, Impersonate-Group"), ("Upgrade", "websocket")],
        &["connection: Upgrade", "upgrade: websocket"]
    )]
    #[case::another_protocol(&[("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "x")], &[])]
    #[case::several_protocols(
        &[("Connection", "Upgrade"), ("Upgrade", "h2c, crowsnest-tunnel/2, crowsnest-tunnel/1")],
        &["connection: Upgrade", "upgrade: crowsnest-tunnel/1"]
    )]
    #[case::upgrade_without_connection_header(&[("Upgrade", "websocket")], &[])]
    #[case::framing(
        &[("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("TE", "trailers"), ("Trailer", "Impersonate-User")], &[]
    )]
    #[case::token_as_subprotocol(
        &[("Sec-WebSocket-Protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.dG9rZW4")],
        &["sec-websocket-protocol: v5.channel.k8s.io"]
    )]
    #[case::token_alone(&[("Sec-WebSocket-Protocol", "BASE64URL.bearer.authorization.k8s.io.dG9rZW4")], &[])]
    #[case::token_among_bytes(&[("Sec-WebSocket-Protocol", "ä, base64url.bearer.authorization.k8s.io.dG9rZW4")], &[])]
    fn received_headers_are_filtered(#[case] received: &[(&str, &str)], #[case] expected: &[&str]) {
        assert_eq!(lines(&upstream_headers(&headers(received))), expected);
    }

    #[rstest]
    #[case("alice", true)]
    #[case("zoë Smith", true)]
    #[case("", false)]
    #[case(" ", false)]
    #[case(" system:masters", false)]
    #[case("system:masters\t", false)]
    #[case("a\nb", false)]
    fn identity_values_are_forwarded_unchanged_or_refused(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(identity_header_value(text).is_some(), expected);
    }

    fn any_header() -> impl Strategy<Value = (String, Vec<u8>)> {
        let names = prop_oneof![
            Just("Connection".to_owned()),
            Just("Upgrade".to_owned()),
            Just("Sec-WebSocket-Protocol".to_owned()),
            prop::sample::select(IDENTITY_HEADERS.as_slice()).prop_map(str::to_owned),
            prop::sample::select(IDENTITY_PREFIXES.as_slice())
                .prop_flat_map(|prefix| "[a-zA-Z_-]{0,8}".prop_map(move |rest| format!("{prefix}{rest}"))),
            "[a-zA-Z][a-zA-Z0-9_-]{0,12}",
        ];
        let values = prop_oneof![
            "(impersonate-user|authorization|upgrade|websocket|accept|,| |base64url.bearer.authorization.k8s.io.x){0,6}"
                .prop_map(String::into_bytes),
            "[ -~]{0,20}".prop_map(String::into_bytes),
            prop::collection::vec(0x20_u8..=0xff, 0..12).prop_map(|bytes| bytes.into_iter().filter(|b| *b != 0x7f).collect()),
        ];
        (names, values)
    }

    fn header_map(lines: &[(String, Vec<u8>)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
                headers.append(name, value);
            }
        }
        headers
    }

    proptest! {
        /// No identity is forwarded, and the client's `Connection` header affects nothing but the upgrade.
        #[test]
        fn no_identity_is_forwarded(lines in prop::collection::vec(any_header(), 0..12), connection in "[a-zA-Z, -]{0,60}") {
            let received = header_map(&lines);
            let sent = upstream_headers(&received);
            prop_assert!(!sent.keys().any(is_identity_header), "{sent:?}");
            let token = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase().contains(BEARER_SUBPROTOCOL);
            prop_assert!(!sent.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().any(token), "{sent:?}");
            let mut other = received.clone();
            other.insert(header::CONNECTION, HeaderValue::from_str(&connection).unwrap());
            let without_upgrade = |mut headers: HeaderMap| {
                headers.remove(header::CONNECTION);
                headers.remove(header::UPGRADE);
                headers
            };
            prop_assert_eq!(without_upgrade(upstream_headers(&other)), without_upgrade(sent));
        }
    }
}
