//! Compiles regular expressions in the syntax of Go's `regexp`, which users write in schemas and CEL. Pure.
//!
//! Both syntaxes are those of RE2, with two differences: in the `regex` crate, `[` within a character class starts a
//! nested class and `&&`, `--` and `~~` combine classes; and Go has `\Q…\E` for literal text.

use std::borrow::Cow;

use regex::Regex;

/// Compiles a pattern in Go's syntax.
pub fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&translate(pattern))
}

/// Translates a pattern to the syntax of the `regex` crate.
fn translate(pattern: &str) -> Cow<'_, str> {
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
                let (escape, left) = split_escape(rest);
                out.push('\\');
                out.push_str(escape);
                rest = left;
            }
            '[' => rest = translate_class(rest, &mut out),
            _ => out.push(next),
        }
    }
    out.into()
}

/// Splits `rest`, which follows a backslash, after the escaped character.
fn split_escape(rest: &str) -> (&str, &str) {
    rest.split_at(rest.chars().next().map_or(0, char::len_utf8))
}

/// Translates the character class that starts before `rest`; returns the remainder.
fn translate_class<'a>(rest: &'a str, out: &mut String) -> &'a str {
    out.push('[');
    let mut rest = rest;
    if let Some(negated) = rest.strip_prefix('^') {
        out.push('^');
        rest = negated;
    }
    let mut is_first = true;
    while let Some(next) = rest.chars().next() {
        let left = &rest[next.len_utf8()..];
        match next {
            ']' if !is_first => {
                out.push(']');
                return left;
            }
            '\\' => {
                let (escape, left) = split_escape(left);
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
            // A leading `-` is literal; between two characters it denotes a range.
            '-' if is_first => {
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
        is_first = false;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_classes_match_go() {
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
