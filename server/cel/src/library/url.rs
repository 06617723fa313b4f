//! URLs as Go's `net/url` parses them, with its error messages: `url`, `isURL` and the accessors of parsed URLs.
//!
//! URLs are not normalized: default ports and empty paths are kept.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::cel::cel::extractors::This;
use kube::core::cel::cel::objects::{Key, Map, Opaque};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::{Outcome, address, bool_result};

/// Maximum number of query parameters.
const MAX_PARAMETERS: usize = 10_000;

/// A parsed URL. URLs with the same text form are equal, regardless of unnecessary escapes.
#[derive(Debug, Clone, Default)]
pub(super) struct Url {
    scheme: String,
    /// The part after the scheme if it does not start with a slash.
    opaque: String,
    user: Option<String>,
    host: String,
    /// True if the scheme is followed by a single slash.
    has_single_slash: bool,
    /// The path as written.
    path: String,
    query: String,
    /// True for a trailing question mark without a query.
    force_query: bool,
    fragment: String,
}

impl PartialEq for Url {
    fn eq(&self, other: &Self) -> bool {
        self.to_text() == other.to_text()
    }
}

impl Eq for Url {}

impl Opaque for Url {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.URL"
    }
}

/// Component of a URL, which determines the allowed characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UrlComponent {
    Host,
    Zone,
    User,
    Path,
    Query,
    Fragment,
}

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function("url", |text: Arc<String>| -> Outcome {
        let url = parse_url(&text).map_err(|reason| {
            ExecutionError::function_error("url", format!("URL parse error during conversion from string: {reason}"))
        })?;
        Ok(Cel::Opaque(Arc::new(url)))
    });
    context.add_function("isURL", |text: Arc<String>| bool_result(parse_request_uri(&text).is_ok()));
    context.add_function("getScheme", |This(url): This<Cel>| url_part(&url, |url| url.scheme.clone()));
    context.add_function("getHost", |This(url): This<Cel>| url_part(&url, |url| url.host.clone()));
    context.add_function("getHostname", |This(url): This<Cel>| url_part(&url, |url| url.hostname().to_owned()));
    context.add_function("getPort", |This(url): This<Cel>| url_part(&url, |url| url.port().to_owned()));
    context.add_function("getEscapedPath", |This(url): This<Cel>| url_part(&url, Url::escaped_path));
    context.add_function("getQuery", |This(url): This<Cel>| -> Outcome { Ok(downcast_url(&url)?.query_parameters()) });
}

fn downcast_url(value: &Cel) -> Result<&Url, ExecutionError> {
    let Cel::Opaque(opaque) = value else { return Err(ExecutionError::NoSuchOverload) };
    opaque.downcast_ref::<Url>().ok_or(ExecutionError::NoSuchOverload)
}

fn url_part(value: &Cel, part: impl FnOnce(&Url) -> String) -> Outcome {
    Ok(Cel::String(Arc::new(part(downcast_url(value)?))))
}

/// Parses an absolute URL or an absolute path, with an optional fragment.
fn parse_url(text: &str) -> Result<Url, String> {
    parse_request_uri(text)?;
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let mut url = parse(rest, false).map_err(|reason| format!("parse {}: {reason}", quote(rest)))?;
    unescape(fragment, UrlComponent::Fragment).map_err(|reason| format!("parse {}: {reason}", quote(text)))?;
    fragment.clone_into(&mut url.fragment);
    Ok(url)
}

/// Quotes a text like Go's `%q`.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            '\u{0}'..' ' | '\u{7f}' if !matches!(letter, '\n' | '\r' | '\t') => {
                out.push_str(&format!("\\x{:02x}", u32::from(letter)));
            }
            '\'' => out.push('\''),
            _ => out.extend(letter.escape_debug()),
        }
    }
    out + "\""
}

/// Parses a request URI.
pub(super) fn parse_request_uri(text: &str) -> Result<Url, String> {
    parse(text, true).map_err(|reason| format!("parse {}: {reason}", quote(text)))
}

fn parse(text: &str, absolute: bool) -> Result<Url, String> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    if text.is_empty() && absolute {
        return Err("empty url".into());
    }
    let mut url = Url::default();
    if text == "*" {
        text.clone_into(&mut url.path);
        return Ok(url);
    }
    let (scheme, rest) = split_scheme(text)?;
    url.scheme = scheme.to_ascii_lowercase();
    let (mut rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    url.force_query = query == Some("");
    query.unwrap_or_default().clone_into(&mut url.query);
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            rest.clone_into(&mut url.opaque);
            return Ok(url);
        }
        if absolute {
            return Err("invalid URI for request".into());
        }
        if rest.split('/').next().is_some_and(|first| first.contains(':')) {
            return Err("first path segment in URL cannot contain colon".into());
        }
    }
    let may_have_host = !scheme.is_empty() || !absolute && !rest.starts_with("///");
    if may_have_host && let Some(after) = rest.strip_prefix("//") {
        let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
        rest = path;
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        url.host = parse_host(host, &url.scheme)?;
        url.user = user.map(parse_user).transpose()?;
    } else {
        url.has_single_slash = !scheme.is_empty();
    }
    unescape(rest, UrlComponent::Path)?;
    rest.clone_into(&mut url.path);
    Ok(url)
}

/// Splits the scheme from the rest; the scheme may be empty.
fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    match end.map(|end| (end, text.split_at(end))) {
        Some((0, (_, rest))) if rest.starts_with(':') => Err("missing protocol scheme".into()),
        Some((_, (scheme, rest))) if rest.starts_with(':') && scheme.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Ok((scheme, &rest[1..]))
        }
        _ => Ok(("", text)),
    }
}

fn parse_user(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !text.chars().all(allowed) {
        return Err("net/url: invalid userinfo".into());
    }
    text.split(':').try_for_each(|part| unescape(part, UrlComponent::User).map(drop))?;
    Ok(text.to_owned())
}

/// Parses a host with an optional port.
fn parse_host(text: &str, scheme: &str) -> Result<String, String> {
    let check_port = |port: &str| match is_port(port) {
        true => Ok(()),
        false => Err(format!("invalid port {port:?} after host")),
    };
    if let Some(open) = text.rfind('[') {
        if open > 0 {
            return Err("invalid IP-literal".into());
        }
        let close = text.rfind(']').ok_or("missing ']' in host")?;
        let port = &text[close + 1..];
        check_port(port)?;
        let literal = text.get(open + 1..close).unwrap_or_default();
        let (address, zone) = literal.split_at(literal.find("%25").unwrap_or(literal.len()));
        let literal = to_utf8([unescape(address, UrlComponent::Host)?, unescape(zone, UrlComponent::Zone)?].concat());
        let address = address::parse(&literal).map_err(|reason| format!("invalid host: {reason}"))?;
        if address.is_ipv4() {
            return Err("invalid IP-literal".into());
        }
        return Ok(format!("[{literal}]{port}"));
    }
    // Lists of hosts are common in other schemes.
    let colon = if ["http", "https"].contains(&scheme) { text.find(':') } else { text.rfind(':') };
    colon.map_or(Ok(()), |colon| check_port(&text[colon..]))?;
    unescape(text, UrlComponent::Host).map(to_utf8)
}

/// True for an empty text, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// True if a character must be written as `%XX` in a component.
fn must_escape(byte: u8, component: UrlComponent) -> bool {
    if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        return false;
    }
    match component {
        UrlComponent::Host | UrlComponent::Zone => !b"!$&'()*+,;=:[]<>\"".contains(&byte),
        UrlComponent::User => !b"$&+,;=".contains(&byte),
        UrlComponent::Path => !b"$&+,/:;=@".contains(&byte),
        UrlComponent::Query => true,
        UrlComponent::Fragment => !b"$&+,/:;=?@!()*".contains(&byte),
    }
}

/// Converts bytes to a text. Invalid UTF-8, which Go keeps, is replaced, because CEL strings cannot contain it.
fn to_utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned())
}

fn escape(bytes: &[u8], component: UrlComponent) -> String {
    let escape = |byte: &u8| match must_escape(*byte, component) {
        true => format!("%{byte:02X}"),
        false => char::from(*byte).to_string(),
    };
    bytes.iter().map(escape).collect()
}

/// The text as written if it needs no escaping.
fn escape_if_needed(text: &str, component: UrlComponent) -> String {
    let allowed = |byte: u8| b"!$&'()*+,;=:@[]%".contains(&byte) || !must_escape(byte, component);
    if text.bytes().all(allowed) {
        return text.to_owned();
    }
    // Text that cannot be unescaped is dropped.
    escape(&unescape(text, component).unwrap_or_default(), component)
}

fn unescape(text: &str, component: UrlComponent) -> Result<Vec<u8>, String> {
    let is_host = matches!(component, UrlComponent::Host | UrlComponent::Zone);
    let (mut out, mut at, bytes) = (Vec::with_capacity(text.len()), 0, text.as_bytes());
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let code = bytes.get(at + 1..at + 3).and_then(|code| std::str::from_utf8(code).ok());
                let value = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let value = value.and_then(|code| u8::from_str_radix(code, 16).ok());
                let sequence = String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 3)]);
                let escape_error = || format!("invalid URL escape {sequence:?}");
                let value = value.ok_or_else(escape_error)?;
                let is_percent = sequence == "%25";
                // In a host, only non-ASCII characters can be escaped; in its zone, also characters that are not
                // allowed there.
                if component == UrlComponent::Host && value < 0x80 && !is_percent
                    || component == UrlComponent::Zone
                        && !is_percent
                        && value != b' '
                        && must_escape(value, UrlComponent::Host)
                {
                    return Err(escape_error());
                }
                out.push(value);
                at += 3;
            }
            b'+' if component == UrlComponent::Query => {
                out.push(b' ');
                at += 1;
            }
            byte if is_host && byte < 0x80 && must_escape(byte, component) => {
                return Err(format!("invalid character {:?} in host name", char::from(byte).to_string()));
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Ok(out)
}

impl Url {
    fn split_host(&self) -> (&str, &str) {
        match self.host.rfind(':').map(|colon| self.host.split_at(colon)) {
            Some((host, port)) if is_port(port) => (host, &port[1..]),
            _ => (&self.host, ""),
        }
    }

    /// The host without brackets.
    fn hostname(&self) -> &str {
        let host = self.split_host().0;
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    fn port(&self) -> &str {
        self.split_host().1
    }

    fn escaped_path(&self) -> String {
        escape_if_needed(&self.path, UrlComponent::Path)
    }

    /// The text form of Go.
    fn to_text(&self) -> String {
        let mut text = if self.scheme.is_empty() { String::new() } else { format!("{}:", self.scheme) };
        if self.opaque.is_empty() {
            let has_no_authority = self.host.is_empty() && self.user.is_none();
            let path = self.escaped_path();
            if !(has_no_authority && (self.scheme.is_empty() || self.has_single_slash || path.is_empty())) {
                text += "//";
            }
            if let Some(user) = &self.user {
                let part =
                    |part: &str| escape(&unescape(part, UrlComponent::User).unwrap_or_default(), UrlComponent::User);
                let (name, password) =
                    user.split_once(':').map_or((&**user, None), |(name, password)| (name, Some(password)));
                text += &part(name);
                text.extend(password.map(|password| format!(":{}", part(password))));
                text.push('@');
            }
            text += &escape(self.host.as_bytes(), UrlComponent::Host);
            text += &path;
        } else {
            text += &self.opaque;
        }
        if self.force_query || !self.query.is_empty() {
            text = text + "?" + &self.query;
        }
        if !self.fragment.is_empty() {
            text = text + "#" + &escape_if_needed(&self.fragment, UrlComponent::Fragment);
        }
        text
    }

    /// The values of each parameter, in order. Parameters with invalid escapes are skipped.
    fn query_parameters(&self) -> Cel {
        let mut all: HashMap<Key, Vec<Cel>> = HashMap::new();
        let pairs: Vec<&str> = self.query.split('&').collect();
        let pairs = if pairs.len() > MAX_PARAMETERS { Vec::new() } else { pairs };
        for pair in pairs.into_iter().filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Ok(key), Ok(value)) = (unescape(key, UrlComponent::Query), unescape(value, UrlComponent::Query))
            else {
                continue;
            };
            all.entry(Key::String(Arc::new(to_utf8(key)))).or_default().push(Cel::String(Arc::new(to_utf8(value))));
        }
        let all = all.into_iter().map(|(key, values)| (key, Cel::List(Arc::new(values))));
        Cel::Map(Map { map: Arc::new(all.collect()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", "empty url")]
    #[case("../relative-path", "invalid URI for request")]
    #[case("example.com", "invalid URI for request")]
    #[case(":foo", "missing protocol scheme")]
    #[case("https://a:b:c/", "invalid port \":b:c\" after host")]
    #[case("ftp://a:b:c/", "invalid port \":c\" after host")]
    #[case("https://a b/", "invalid character \" \" in host name")]
    #[case("https://[::1/", "missing ']' in host")]
    #[case("https://[1.2.3.4]/", "invalid IP-literal")]
    #[case("https://example.com[::1]/", "invalid IP-literal")]
    #[case("https://]a[/", "invalid IP-literal")]
    #[case(
        "https://[::g]/",
        "invalid host: ParseAddr(\"::g\"): each colon-separated field must have at least one digit (at \"g\")"
    )]
    #[case("https://example.com/%zz", "invalid URL escape \"%zz\"")]
    #[case("https://example.com/%", "invalid URL escape \"%\"")]
    #[case("https://ex%41mple.com/", "invalid URL escape \"%41\"")]
    #[case("https://us{er@example.com/", "net/url: invalid userinfo")]
    #[case("https://example.com/\n", "net/url: invalid control character in URL")]
    fn invalid_urls_are_rejected(#[case] text: &str, #[case] reason: &str) {
        assert_eq!(parse_url(text), Err(format!("parse {}: {reason}", quote(text))));
    }

    /// Examples from kube-apiserver's documentation.
    #[rstest]
    #[case("/path", ["", "", "", "", "/path"])]
    #[case("//host/path", ["", "host", "host", "", "/path"])]
    #[case("https://user:pass@example.com:80/path?query=val#fragment", ["https", "example.com:80", "example.com", "80", "/path"])]
    #[case("HTTP://localhost/x", ["http", "localhost", "localhost", "", "/x"])]
    #[case("http://Example.com:80", ["http", "Example.com:80", "Example.com", "80", ""])]
    #[case("https://[::1]:80/", ["https", "[::1]:80", "::1", "80", "/"])]
    #[case("https://[::1]/", ["https", "[::1]", "::1", "", "/"])]
    #[case("https://[fe80::1%25eth0]/", ["https", "[fe80::1%eth0]", "fe80::1%eth0", "", "/"])]
    #[case("https://example.com/path with spaces/", ["https", "example.com", "example.com", "", "/path%20with%20spaces/"])]
    #[case("https://example.com/a%2Fb(c)", ["https", "example.com", "example.com", "", "/a%2Fb(c)"])]
    #[case("https://example.com/ä", ["https", "example.com", "example.com", "", "/%C3%A4"])]
    #[case("mailto:a@b.c", ["mailto", "", "", "", ""])]
    #[case("*", ["", "", "", "", "*"])]
    fn urls_are_split_into_parts(#[case] text: &str, #[case] expected: [&str; 5]) {
        let url = parse_url(text).unwrap();
        let path = url.escaped_path();
        assert_eq!([&url.scheme, &url.host, url.hostname(), url.port(), &path], expected);
    }

    #[rstest]
    #[case("https://us%65r:a%40b@h/a b?q#f", "https://user:a%40b@h/a%20b?q#f", true)]
    #[case("https://h/a%62", "https://h/ab", false)]
    #[case("https://h/a?", "https://h/a", false)]
    #[case("s:/x", "s:///x", false)]
    #[case("https://h/%FF a", "https://h/%FE a", false)]
    #[case("https://h/#a b", "https://h/#a%20b", true)]
    #[case("HTTPS://h", "https://h", true)]
    #[case("https://h:443", "https://h", false)]
    #[case("mailto:a", "mailto:a?", false)]
    fn urls_are_equal_if_their_text_is_equal(#[case] one: &str, #[case] other: &str, #[case] expected: bool) {
        let (one, other) = (parse_url(one).unwrap(), parse_url(other).unwrap());
        assert_eq!(one == other, expected, "{} {}", one.to_text(), other.to_text());
    }

    #[rstest]
    #[case("/path")]
    #[case("//host/path")]
    #[case("https://user:pass@example.com:80/path?query=val#fragment")]
    #[case("https://[fe80::1%25eth0]/")]
    #[case("https://example.com/a%2Fb(c)?")]
    #[case("mailto:a@b.c?subject=x")]
    #[case("file:///x")]
    #[case("s:/x")]
    #[case("*")]
    fn valid_urls_are_printed_unchanged(#[case] text: &str) {
        assert_eq!(parse_url(text).unwrap().to_text(), text);
    }
}
