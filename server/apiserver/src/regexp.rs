//! Regular expressions as Go's `regexp` reads them, for patterns that users write: of schemas and of CEL. Pure.
//!
//! Both languages are RE2's but for sets: here a `[` within one begins another, and `&&`, `--` and `~~` combine them; and for
//! `\Q…\E`, which is text in Go.

use std::borrow::Cow;

use regex::Regex;

/// Compiles a pattern of Go.
pub fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&translated(pattern))
}

/// The same in this language.
fn translated(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains('[') && !pattern.contains("\\Q") {
        return pattern.into();
    }
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match next {
            '\\' if rest.starts_with('Q') => {
                let (text, left) = rest[1..].split_once("\\E").unwrap_or((&rest[1..], ""));
                out.push_str(&regex::escape(text));
                rest = left;
            }
            '\\' => {
                let (escape, left) = escape(rest);
                out.push('\\');
                out.push_str(escape);
                rest = left;
            }
            '[' => rest = set(rest, &mut out),
            _ => out.push(next),
        }
    }
    out.into()
}

/// The letter that a backslash stands before, and what is behind it.
fn escape(rest: &str) -> (&str, &str) {
    rest.split_at(rest.chars().next().map_or(0, char::len_utf8))
}

/// The set that begins before `rest`; returns what is behind it.
fn set<'a>(rest: &'a str, out: &mut String) -> &'a str {
    out.push('[');
    let mut rest = rest;
    if let Some(negated) = rest.strip_prefix('^') {
        out.push('^');
        rest = negated;
    }
    let mut first = true;
    while let Some(next) = rest.chars().next() {
        let left = &rest[next.len_utf8()..];
        match next {
            ']' if !first => {
                out.push(']');
                return left;
            }
            '\\' => {
                let (escape, left) = escape(left);
                out.push('\\');
                out.push_str(escape);
                rest = left;
            }
            '[' => match left.strip_prefix(':').and_then(|named| named.find(":]")) {
                Some(end) => {
                    let (named, left) = rest.split_at(end + 4);
                    out.push_str(named);
                    rest = left;
                }
                None => {
                    out.push_str("\\[");
                    rest = left;
                }
            },
            ']' | '&' | '~' => {
                out.push('\\');
                out.push(next);
                rest = left;
            }
            // The first of a set is itself; of two others one spans to the other.
            '-' if first => {
                out.push_str("\\-");
                rest = left;
            }
            '-' if left.starts_with('-') => {
                out.push_str("-\\-");
                rest = &left[1..];
            }
            _ => {
                out.push(next);
                rest = left;
            }
        }
        first = false;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_those_of_go() {
        for (pattern, matching, other) in [
            (r"^[^()<>@,;:\\/[\]?={} \t]+$", "token", "a[b"),
            (r"^[[]$", "[", "]"),
            (r"^[]a]$", "]", "b"),
            (r"^[^]a]$", "b", "]"),
            (r"^[a&&b]$", "&", "c"),
            (r"^[a~~b]$", "~", "c"),
            (r"^[+--]$", ",", "."),
            (r"^[[:alpha:][:digit:]-]+$", "a-1", "a_1"),
            (r"^\[[a-c]\]$", "[b]", "b"),
            (r"^[\w.[\]-]+$", "a[0].b", "a b"),
            (r"^\Q[\Ea$", "[a", "a"),
            ("^a[b$", "", ""),
        ] {
            match compile(pattern) {
                Ok(compiled) => {
                    assert!(compiled.is_match(matching), "{pattern} {matching}");
                    assert!(!compiled.is_match(other), "{pattern} {other}");
                }
                Err(_) => assert_eq!(pattern, "^a[b$"),
            }
        }
    }
}
