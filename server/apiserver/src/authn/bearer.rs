//! Bearer tokens of requests, from the Authorization header and the WebSocket subprotocol. No other module parses
//! either.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};

use crowsnest_apimachinery::status::ApiError;

/// Subprotocol that carries a token: browsers cannot set other headers on WebSocket requests.
const BEARER_SUBPROTOCOL: &str = crowsnest_apimachinery::request::BEARER_SUBPROTOCOL;

/// Reason why a request's bearer token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BearerError {
    #[error("more than one Authorization header")]
    DuplicateHeader,
    /// The request presented a credential, so it is not anonymous.
    #[error("cannot decode the bearer token")]
    Malformed,
}

impl From<BearerError> for ApiError {
    fn from(error: BearerError) -> Self {
        match error {
            BearerError::DuplicateHeader => Self::bad_request(error.to_string()),
            BearerError::Malformed => ApiError::unauthorized(),
        }
    }
}

/// The bearer token of a request. As in kube-apiserver, an Authorization header with another scheme is ignored, and the
/// Authorization header takes precedence over the subprotocol.
pub fn bearer_token(headers: &HeaderMap) -> Result<Option<String>, BearerError> {
    match authorization_token(headers)? {
        Some(token) => Ok(Some(token)),
        None => websocket_token(headers),
    }
}

fn authorization_token(headers: &HeaderMap) -> Result<Option<String>, BearerError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(BearerError::DuplicateHeader);
    }
    let mut parts = value.as_bytes().trim_ascii().splitn(3, |byte| *byte == b' ');
    let (Some(scheme), Some(token)) = (parts.next(), parts.next()) else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case(b"bearer") || token.is_empty() {
        return Ok(None);
    }
    let token = std::str::from_utf8(token).map_err(|_| BearerError::Malformed)?;
    Ok(Some(token.to_owned()))
}

/// The token of a WebSocket request. Like kube-apiserver, requires exactly one token and at least one other
/// subprotocol.
fn websocket_token(headers: &HeaderMap) -> Result<Option<String>, BearerError> {
    if !is_websocket(headers) {
        return Ok(None);
    }
    let (mut tokens, mut has_others) = (Vec::new(), false);
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
        let Ok(value) = value.to_str() else { return Err(BearerError::Malformed) };
        for protocol in value.split(',').map(str::trim) {
            match protocol.strip_prefix(BEARER_SUBPROTOCOL) {
                Some(encoded) => tokens.push(encoded),
                None => has_others = true,
            }
        }
    }
    match tokens.as_slice() {
        [] => Ok(None),
        [encoded] if has_others => {
            let token = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            token.filter(|token| !token.is_empty()).map(Some).ok_or(BearerError::Malformed)
        }
        _ => Err(BearerError::Malformed),
    }
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let has_token = |name, expected: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case(expected))
    };
    has_token(CONNECTION, "upgrade") && has_token(UPGRADE, "websocket")
}

/// Removes the bearer token of an authenticated request, so that it is not forwarded.
pub fn strip_bearer(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    let values: Vec<HeaderValue> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().cloned().collect();
    let has_token = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).contains(BEARER_SUBPROTOCOL);
    if !values.iter().any(has_token) {
        return;
    }
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    for value in values.iter().filter_map(|value| value.to_str().ok()) {
        let others: Vec<&str> =
            value.split(',').map(str::trim).filter(|protocol| !protocol.starts_with(BEARER_SUBPROTOCOL)).collect();
        if let Ok(value) = HeaderValue::from_str(&others.join(", "))
            && !value.is_empty()
        {
            headers.append(SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
}

/// Warning for a client whose bearer token is ignored because extra spaces precede it.
pub fn bearer_warning(headers: &HeaderMap) -> Option<&'static str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let text = "the provided Authorization header contains extra space before the bearer token, and is ignored";
    (scheme.eq_ignore_ascii_case("bearer") && token.starts_with(' ')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn headers(fields: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[rstest]
    #[case("Bearer t", Ok(Some("t")), false)]
    #[case("bearer t u", Ok(Some("t")), false)]
    #[case("Bearer  t", Ok(None), true)]
    #[case("Bearer ", Ok(None), false)]
    #[case("Basic dXNlcjpwYXNz", Ok(None), false)]
    #[case("t", Ok(None), false)]
    #[case("Basic \u{ff}", Ok(None), false)]
    #[case("Bearer \u{ff}", Err(BearerError::Malformed), false)]
    fn other_schemes_are_ignored(
        #[case] header: &str,
        #[case] token: Result<Option<&str>, BearerError>,
        #[case] has_warning: bool,
    ) {
        let bytes: Vec<u8> = header.chars().map(|c| c as u8).collect();
        let headers = headers(&[("authorization", &bytes)]);
        assert_eq!(bearer_token(&headers), token.map(|token| token.map(str::to_owned)));
        assert_eq!(bearer_warning(&headers).is_some(), has_warning);
    }

    #[test]
    fn repeated_authorization_headers_are_rejected() {
        for second in [b"Bearer t" as &[u8], b"Bearer u", b"Basic x", b""] {
            let headers = headers(&[("authorization", b"Bearer t"), ("authorization", second)]);
            assert_eq!(bearer_token(&headers), Err(BearerError::DuplicateHeader));
        }
    }

    const TOKEN: &str = "base64url.bearer.authorization.k8s.io.dA";

    #[rstest]
    #[case::first(&["base64url.bearer.authorization.k8s.io.dA, v4.channel.k8s.io"], Ok(Some("t")))]
    #[case::last(&["v4.channel.k8s.io", TOKEN], Ok(Some("t")))]
    #[case::none(&["v4.channel.k8s.io"], Ok(None))]
    #[case::alone(&[TOKEN], Err(BearerError::Malformed))]
    #[case::twice(&["v4.channel.k8s.io", TOKEN, TOKEN], Err(BearerError::Malformed))]
    #[case::empty(&["x", "base64url.bearer.authorization.k8s.io."], Err(BearerError::Malformed))]
    #[case::padded(&["x", "base64url.bearer.authorization.k8s.io.dA=="], Err(BearerError::Malformed))]
    #[case::not_utf8(&["x", "base64url.bearer.authorization.k8s.io._w"], Err(BearerError::Malformed))]
    fn websocket_tokens_are_read_from_the_subprotocol(
        #[case] protocols: &[&str],
        #[case] expected: Result<Option<&str>, BearerError>,
    ) {
        let mut fields = headers(&[("connection", b"keep-alive, Upgrade"), ("upgrade", b"WebSocket")]);
        for protocol in protocols {
            fields.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).unwrap());
        }
        assert_eq!(bearer_token(&fields), expected.map(|token| token.map(str::to_owned)));
        fields.remove(UPGRADE);
        assert_eq!(bearer_token(&fields), Ok(None), "it is not a WebSocket request");
    }

    #[test]
    fn bearer_tokens_are_stripped() {
        let both = format!("a.k8s.io, {TOKEN}");
        let mut fields = headers(&[
            ("authorization", b"Bearer t"),
            ("sec-websocket-protocol", both.as_bytes()),
            ("sec-websocket-protocol", TOKEN.as_bytes()),
            ("sec-websocket-protocol", b"b.k8s.io"),
        ]);
        strip_bearer(&mut fields);
        assert!(!fields.contains_key(AUTHORIZATION));
        let remaining: Vec<&HeaderValue> = fields.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(remaining, ["a.k8s.io", "b.k8s.io"]);
    }
}
