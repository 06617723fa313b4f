//! `User-Agent` of requests. API servers derive the field manager of writes from it.

use http::header::{HeaderMap, HeaderValue, USER_AGENT};

/// The header of this program's requests: `crowsnest/VERSION`.
pub fn value() -> HeaderValue {
    HeaderValue::from_static(concat!("crowsnest/", env!("CARGO_PKG_VERSION")))
}

/// Sets the header if a request has none. Requests on behalf of a caller keep the caller's header.
pub fn set(headers: &mut HeaderMap) {
    headers.entry(USER_AGENT).or_insert_with(value);
}

/// Sets the header of the requests with a client configuration, if it has none.
pub fn set_in_config(config: &mut kube::Config) {
    if config.headers.iter().all(|(name, _)| *name != USER_AGENT) {
        config.headers.push((USER_AGENT, value()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_without_a_user_agent_are_changed() {
        let mut headers = HeaderMap::new();
        set(&mut headers);
        assert!(headers[USER_AGENT].to_str().unwrap().starts_with("crowsnest/"));
        headers.insert(USER_AGENT, HeaderValue::from_static("kubectl/v1.36.0"));
        set(&mut headers);
        assert_eq!(headers[USER_AGENT], "kubectl/v1.36.0");
    }

    #[test]
    fn configurations_get_one_user_agent() {
        let mut config = kube::Config::new(http::Uri::from_static("https://cp"));
        set_in_config(&mut config);
        set_in_config(&mut config);
        assert_eq!(config.headers, [(USER_AGENT, value())]);
    }
}
