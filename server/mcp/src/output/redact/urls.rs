//! Finds secrets in URLs and similar addresses.

use std::sync::LazyLock;

use regex::Regex;

use super::REDACTED;
use super::text::{Secrets, compile, sort};

/// Maximum number of digits of a port.
const MAX_PORT_DIGITS: usize = 5;

/// Scheme and user of a URL with a password, or scheme and host of one with a port.
static URL_USER: LazyLock<Regex> = LazyLock::new(|| compile(r#"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:\[\]"'<>,\\]*:"#));

/// User information that is a token instead of a name, and the password of a data source of Go's MySQL driver, such as
/// `app:password@tcp(db:3306)/shop`.
static USER_INFO: LazyLock<[Regex; 2]> = LazyLock::new(|| {
    [r"(?i)\bhttps?://([a-z0-9_.~%+=-]{16,})@", r#"[A-Za-z0-9_.-]+:([^\s"'\\/][^\s"'\\]*)@(?:tcp|udp|unix)\("#]
        .map(compile)
});

/// Finds passwords after the user of a URL.
pub(super) fn find_url_passwords(text: &str) -> Secrets {
    let (mut secrets, mut at) = (Secrets::new(), 0);
    while let Some(user) = URL_USER.find_at(text, at) {
        at = user.end();
        let rest = &text[at..];
        if begins_with_port(rest) {
            continue;
        }
        let is_end = |character: char| character.is_whitespace() || "\"'<>`\\".contains(character);
        let url = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        let start = at;
        // Continue after the word: its last `@` ends the password, and without `@` it has none.
        at += url.len();
        if let Some(length) = password_length(url) {
            secrets.push(start..start + length);
        }
    }
    secrets
}

/// True for the part of a URL after its host, such as `8080/path`.
fn begins_with_port(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_end = |character: char| character.is_whitespace() || "/,;\"'<>()[]{}`\\".contains(character);
    (1..=MAX_PORT_DIGITS).contains(&digits) && text[digits..].chars().next().is_none_or(is_end)
}

/// Length of the password at the start of the rest of a URL. Passwords may contain `@` and `/`, so that the last `@` before
/// the query ends it. `None` if there is no password, such as in `nginx:1.27@sha256:…`.
fn password_length(url: &str) -> Option<usize> {
    let query = url.find(['?', '#']).unwrap_or(url.len());
    let length = url[..query].rfind('@').or_else(|| url.rfind('@'))?;
    let is_digest = url[length..].starts_with("@sha256:");
    (length > 0 && &url[..length] != REDACTED && !is_digest).then_some(length)
}

/// Finds tokens in place of a user, and passwords of data sources, which have no scheme.
pub(super) fn find_user_info(text: &str) -> Secrets {
    let is_digit = |byte: u8| byte.is_ascii_digit();
    let [token, password] = &*USER_INFO;
    let tokens = token.captures_iter(text).filter_map(|found| found.get(1));
    let passwords = password.captures_iter(text).filter_map(|found| found.get(1));
    // A token is random: it has digits, other than most names.
    let tokens = tokens.filter(|found| found.as_str().bytes().any(is_digit));
    let passwords = passwords.filter(|found| found.as_str() != REDACTED);
    let mut secrets: Secrets = tokens.chain(passwords).map(|found| found.range()).collect();
    sort(&mut secrets);
    secrets
}
