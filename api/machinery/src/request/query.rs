//! The query string of a request.

use std::borrow::Cow;

use percent_encoding::{NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};

use crate::list_options::{self, ParseIntegerError};

/// Query parameters in the order of the request, names and values decoded once (`application/x-www-form-urlencoded`).
///
/// Bytes that are not UTF-8 become U+FFFD. As in Go's `url.ParseQuery`, a parameter with a semicolon or an invalid escape is
/// left out, and the first value of a repeated parameter is used: an API server to which the query is forwarded must derive
/// the same verb and selectors from it.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the part of a URI after the question mark.
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.filter(|pair| !pair.contains(';') && has_valid_escapes(pair));
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(pairs.map(|(name, value)| (decode(name), decode(value))).collect())
    }

    /// The parameters as a raw query that every server parses in the same way.
    pub fn encode(&self) -> String {
        query_string(self.0.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }

    /// Number of parameters, repeated ones included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes parameters from a raw query; `is_removed` selects them by their decoded names. The rest is returned unchanged.
    pub fn remove_parameters(query: &str, is_removed: impl Fn(&str) -> bool) -> String {
        let parts = query.split('&').filter(|part| !part.is_empty() && !is_removed(&decode(raw_name(part))));
        parts.collect::<Vec<_>>().join("&")
    }

    /// Replaces the values of parameters in a raw query with `REDACTED`, and adds it to those without a value; `is_redacted`
    /// selects them by their decoded names. The rest is returned unchanged.
    pub fn redact_parameters(query: &str, is_redacted: impl Fn(&str) -> bool) -> String {
        let parts = query.split('&').map(|part| match is_redacted(&decode(raw_name(part))) {
            true => Cow::Owned(format!("{}=REDACTED", raw_name(part))),
            false => Cow::Borrowed(part),
        });
        parts.collect::<Vec<_>>().join("&")
    }

    /// First value of a parameter; `None` if the parameter is absent or that value is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.first(name).filter(|value| !value.is_empty())
    }

    /// First value of a parameter, which may be empty.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of a parameter.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// True if a parameter is present.
    pub fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }

    /// A boolean as Go converts query values: true if the parameter is present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.first(name).is_some_and(list_options::parse_boolean)
    }

    /// An integer; `None` if the parameter is absent or empty.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, ParseIntegerError> {
        self.get(name).map(list_options::parse_integer).transpose()
    }
}

/// Percent-encodes every byte that is not an ASCII letter or digit. The result is safe as a value of a query and, for servers that
/// split a path before they decode it, as a segment; for names in paths of the Kubernetes API see [`super::path_segment`].
pub fn percent_encode(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

/// Parameters as a raw query, without its question mark.
pub fn query_string<'n, 'v>(parameters: impl IntoIterator<Item = (&'n str, &'v str)>) -> String {
    let pairs =
        parameters.into_iter().map(|(name, value)| format!("{}={}", percent_encode(name), percent_encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Name of one parameter, not decoded.
fn raw_name(part: &str) -> &str {
    part.split_once('=').map_or(part, |(name, _)| name)
}

/// True if each percent sign is followed by two hexadecimal digits.
fn has_valid_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("watch=true", true)]
    #[case("watch", true)]
    #[case("watch=", true)]
    #[case("%77atch=true", true)]
    #[case("watch=1&watch=false", true)]
    #[case("watch=false&watch=true", false)]
    #[case("watch=0", false)]
    #[case("Watch=true", false)]
    #[case("watch%3Dtrue", false)]
    #[case("watch=true;limit=1", false)]
    #[case("a=1;watch=true", false)]
    #[case("watch=%zz", false)]
    #[case("w%atch=true", false)]
    #[case("watch=true%", false)]
    #[case("watch=%zz&watch=1", true)]
    fn booleans_are_parsed_as_by_go(#[case] query: &str, #[case] expected: bool) {
        assert_eq!(Query::parse(Some(query)).flag("watch"), expected);
    }

    #[rstest]
    #[case("limit=1&a=%20b&continue=x", "a=%20b")]
    #[case("l%69mit=1&&a", "a")]
    #[case("limits=1&a=limit=2", "limits=1&a=limit=2")]
    #[case("", "")]
    fn parameters_are_removed_by_name(#[case] query: &str, #[case] expected: &str) {
        assert_eq!(Query::remove_parameters(query, |name| matches!(name, "limit" | "continue")), expected);
    }

    #[test]
    fn encoding_keeps_the_parameters() {
        let query = Query::parse(Some("a=1+2&a=%2525&b=&c;d=1&e&=f&g=x=y%26&%zz=1"));
        assert_eq!(query.encode(), "a=1%202&a=%2525&b=&e=&=f&g=x%3Dy%26");
        assert_eq!(Query::parse(Some(&query.encode())).0, query.0);
    }

    #[test]
    fn values_are_decoded_once() {
        let query = Query::parse(Some("a=1+2&a=%2525&b=&c=x%ffy"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1 2", "%25"]);
        assert_eq!((query.first("b"), query.get("b"), query.get("d")), (Some(""), None, None));
        assert_eq!(query.first("c"), Some("x\u{fffd}y"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_query(text in ".{0,200}") {
            let query = Query::parse(Some(&text));
            proptest::prop_assert!(query.0.len() <= text.matches('&').count() + 1);
        }
    }
}
