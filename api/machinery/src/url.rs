//! URLs as Go parses them: the parts that validation checks, and Go's errors.

use crate::field::FieldError;

/// The parts of a URL. Absent parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url<'u> {
    /// In lower case.
    pub scheme: String,
    pub user: Option<&'u str>,
    pub host: &'u str,
    pub query: &'u str,
    pub fragment: &'u str,
}

impl<'u> Url<'u> {
    /// Fails with Go's message for an invalid URL.
    pub fn parse(text: &'u str) -> Result<Self, String> {
        Self::parse_parts(text).map_err(|problem| format!("parse {text:?}: {problem}"))
    }

    fn parse_parts(text: &'u str) -> Result<Self, String> {
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let (scheme, rest) = split_scheme(rest)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Self { scheme: scheme.to_ascii_lowercase(), query, fragment, ..Self::default() };
        let Some(authority) = rest.strip_prefix("//") else {
            let first = rest.split('/').next().unwrap_or_default();
            if scheme.is_empty() && first.contains(':') {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
            return Ok(url);
        };
        let authority = authority.split('/').next().unwrap_or_default();
        let host = match authority.rsplit_once('@') {
            None => authority,
            Some((user, host)) => {
                url.user = Some(user);
                host
            }
        };
        url.host = check_host(host)?;
        Ok(url)
    }

    /// Errors for parts that the URL of an API server or a webhook must not have.
    pub fn forbidden_part_errors(&self, field: &str) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let Some(user) = self.user {
            errors.push(FieldError::invalid(field, user, "user information is not permitted in the URL"));
        }
        if !self.fragment.is_empty() {
            errors.push(FieldError::invalid(field, self.fragment, "fragments are not permitted in the URL"));
        }
        if !self.query.is_empty() {
            errors.push(FieldError::invalid(field, self.query, "query parameters are not permitted in the URL"));
        }
        errors
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (index, character) in text.char_indices() {
        match character {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if index > 0 => {}
            ':' if index == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..index], &text[index + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<&str, String> {
    if let Some(character) =
        host.chars().find(|character| matches!(character, ' ' | '"' | '<' | '>' | '\\' | '^' | '`'))
    {
        return Err(format!("invalid character {:?} in host name", character.to_string()));
    }
    let port = match (host.strip_prefix('['), host.rfind(']'), host.rfind(':')) {
        (Some(_), None, _) => return Err("missing ']' in host".to_owned()),
        (Some(_), Some(end), _) => &host[end + 1..],
        (None, _, Some(colon)) => &host[colon..],
        (None, _, None) => "",
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return Err(format!("invalid port {port:?} after host"));
    }
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://u:p@h:1/x?q=1#f", Ok(Url { scheme: "https".into(), user: Some("u:p"), host: "h:1", query: "q=1", fragment: "f" }))]
    #[case("HTTPS:///x", Ok(Url { scheme: "https".into(), ..Url::default() }))]
    #[case("https://[::1]:443", Ok(Url { scheme: "https".into(), host: "[::1]:443", ..Url::default() }))]
    #[case("host", Ok(Url::default()))]
    #[case("1.2.3.4:6443", Err("parse \"1.2.3.4:6443\": first path segment in URL cannot contain colon"))]
    #[case("https://h:x", Err("parse \"https://h:x\": invalid port \":x\" after host"))]
    #[case("http://[::]a", Err("parse \"http://[::]a\": invalid port \"a\" after host"))]
    #[case("http://[::1", Err("parse \"http://[::1\": missing ']' in host"))]
    #[case("http://[::1]:", Ok(Url { scheme: "http".into(), host: "[::1]:", ..Url::default() }))]
    #[case(":x", Err("parse \":x\": missing protocol scheme"))]
    fn urls_are_parsed_as_in_go(#[case] text: &str, #[case] expected: Result<Url<'_>, &str>) {
        assert_eq!(Url::parse(text), expected.map_err(str::to_owned));
    }
}
