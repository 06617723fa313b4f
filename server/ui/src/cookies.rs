//! The UI's cookies: none of them can be read by scripts. Has no side effects.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::StatusResponse;
use http::{HeaderMap, HeaderValue, header};

use crowsnest_process::reply::Body;

/// The `SameSite` attribute of a cookie: whether browsers send it with cross-site requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SameSite {
    /// Not sent with cross-site requests.
    Strict,
    /// Sent only with those cross-site requests that navigate to a page.
    Lax,
}

/// Cookie to be set.
#[derive(Clone)]
pub(super) struct Cookie {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) same_site: SameSite,
    /// Lifetime in seconds; `None` lasts until the browser closes.
    pub(super) max_age: Option<i64>,
    /// True if browsers send the cookie over HTTPS only.
    pub(super) is_secure: bool,
}

impl Cookie {
    /// Name with the prefix `__Host-` if the cookie is secure: browsers accept such a cookie only from the host itself, over
    /// HTTPS.
    pub(super) fn full_name(&self) -> String {
        if self.is_secure { format!("__Host-{}", self.name) } else { self.name.to_owned() }
    }

    /// A cookie that deletes this one in the browser.
    pub(super) fn into_deletion(mut self) -> Self {
        self.value.clear();
        self.max_age = Some(0);
        self
    }

    fn to_header(&self) -> String {
        let same_site = match self.same_site {
            SameSite::Strict => "Strict",
            SameSite::Lax => "Lax",
        };
        let age = self.max_age.map(|seconds| format!("; Max-Age={seconds}")).unwrap_or_default();
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!("{}={}; Path=/; HttpOnly; SameSite={same_site}{age}{secure}", self.full_name(), self.value)
    }
}

/// The value of a request's cookie; `None` if several have that name. Other ports and paths of the same host can set a
/// cookie that a browser sends first, so none of them can be trusted.
pub(super) fn find_value(headers: &HeaderMap, full_name: &str) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut values = cookies
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == full_name);
    let value = values.next().map(|(_, value)| value).filter(|value| !value.is_empty())?;
    values.next().is_none().then(|| value.to_owned())
}

/// Adds cookies to a response.
pub(super) fn add_cookies(mut response: Response<Body>, cookies: &[Cookie]) -> Response<Body> {
    for cookie in cookies {
        match HeaderValue::from_str(&cookie.to_header()) {
            Ok(value) => response.headers_mut().append(header::SET_COOKIE, value),
            Err(error) => return ApiError::internal(error).into_response(),
        };
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("theme=dark; crowsnest-session=abc.def; x=y"));
        assert_eq!(find_value(&headers, "crowsnest-session").as_deref(), Some("abc.def"));
        assert_eq!(find_value(&headers, "session"), None);
        assert_eq!(find_value(&HeaderMap::new(), "x"), None);
    }

    #[rstest::rstest]
    #[case::one(&["a=1"], Some("1"))]
    #[case::beside_others(&["b=2; a=1;c=3"], Some("1"))]
    #[case::over_http2(&["b=2", "a=1"], Some("1"))]
    #[case::twice(&["a=1; a=2"], None)]
    #[case::twice_the_same(&["a=1; a=1"], None)]
    #[case::twice_over_http2(&["a=1", "a=2"], None)]
    #[case::emptied(&["a=; a=2"], None)]
    #[case::empty(&["a="], None)]
    #[case::another_case(&["A=1"], None)]
    #[case::no_pair(&["a"], None)]
    #[case::prefixed(&["__Host-a=1"], None)]
    fn duplicate_cookies_are_ignored(#[case] sent: &[&'static str], #[case] expected: Option<&str>) {
        let mut headers = HeaderMap::new();
        for value in sent {
            headers.append(header::COOKIE, HeaderValue::from_static(value));
        }
        assert_eq!(find_value(&headers, "a").as_deref(), expected);
    }

    proptest::proptest! {
        /// Any header bytes are parsed without a panic, and a found value was in the header.
        #[test]
        fn arbitrary_cookie_headers_are_parsed(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let headers = HeaderMap::from_iter([(header::COOKIE, value)]);
                if let Some(found) = find_value(&headers, "a") {
                    let pair = format!("a={found}");
                    proptest::prop_assert!(String::from_utf8_lossy(&bytes).contains(&pair));
                }
            }
        }
    }

    #[test]
    fn cookies_are_http_only_and_same_site() {
        let cookie =
            |same_site, max_age, is_secure| Cookie { name: "a", value: "b".into(), same_site, max_age, is_secure };
        let cases = [
            (cookie(SameSite::Strict, None, false), "a=b; Path=/; HttpOnly; SameSite=Strict"),
            (cookie(SameSite::Lax, Some(600), true), "__Host-a=b; Path=/; HttpOnly; SameSite=Lax; Max-Age=600; Secure"),
            (
                cookie(SameSite::Lax, None, true).into_deletion(),
                "__Host-a=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0; Secure",
            ),
        ];
        for (cookie, expected) in cases {
            assert_eq!(cookie.to_header(), expected);
        }
    }
}
