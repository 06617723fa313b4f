//! Compiles regular expressions in the syntax of Go's `regexp`, which users write in schemas and CEL. Has no side effects.
//!
//! Both syntaxes are those of RE2, with three differences: in the `regex` crate, `[` within a character class starts a
//! nested class and `&&`, `--` and `~~` combine classes; Go has `\Q…\E` for literal text; and `\d`, `\s`, `\w`, `\b` and
//! `\B` refer to ASCII characters in Go, and to those of Unicode in the crate.

use std::borrow::Cow;

use regex::Regex;

/// Compiles a pattern in Go's syntax.
pub fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&translate(pattern))
}

/// Translates a pattern to the syntax of the `regex` crate.
fn translate(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains(['[', '\\']) {
        return pattern.into();
    }
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match next {
            '\\' if rest.starts_with('Q') => {
                let (text, remaining) = rest[1..].split_once("\\E").unwrap_or((&rest[1..], ""));
                out.push_str(&regex::escape(text));
                rest = remaining;
            }
            '\\' => {
                let (escape, remaining) = split_escape(rest);
                push_escape(escape, &mut out);
                rest = remaining;
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

/// True if an escape that denotes a class of ASCII characters follows.
fn starts_with_escaped_class(rest: &str) -> bool {
    rest.strip_prefix('\\').is_some_and(|escape| escape.starts_with(['d', 'D', 's', 'S', 'w', 'W']))
}

/// Adds an escaped character. A class of ASCII characters may be nested in another one.
fn push_escape(escape: &str, out: &mut String) {
    match escape {
        "d" => out.push_str("[0-9]"),
        "D" => out.push_str("[^0-9]"),
        "s" => out.push_str("[\\t\\n\\f\\r ]"),
        "S" => out.push_str("[^\\t\\n\\f\\r ]"),
        "w" => out.push_str("[0-9A-Za-z_]"),
        "W" => out.push_str("[^0-9A-Za-z_]"),
        "b" => out.push_str("(?-u:\\b)"),
        "B" => out.push_str("(?-u:\\B)"),
        _ => {
            out.push('\\');
            out.push_str(escape);
        }
    }
}

/// Translates the character class that starts before `rest`; returns the remainder.
fn translate_class<'a>(rest: &'a str, out: &mut String) -> &'a str {
    out.push('[');
    let mut rest = rest;
    if let Some(after_caret) = rest.strip_prefix('^') {
        out.push('^');
        rest = after_caret;
    }
    let mut is_first = true;
    let (mut may_start_range, mut ends_range) = (false, false);
    while let Some(next) = rest.chars().next() {
        let remaining = &rest[next.len_utf8()..];
        match next {
            ']' if !is_first => {
                out.push(']');
                return remaining;
            }
            '\\' => {
                let (escape, remaining) = split_escape(remaining);
                push_escape(escape, out);
                rest = remaining;
            }
            '[' => match remaining.strip_prefix(':').and_then(|class_name| class_name.find(":]")) {
                Some(end) => {
                    let (class_name, remaining) = rest.split_at(end + 4);
                    out.push_str(class_name);
                    rest = remaining;
                }
                None => {
                    out.push_str("\\[");
                    rest = remaining;
                }
            },
            ']' | '&' | '~' => {
                out.push('\\');
                out.push(next);
                rest = remaining;
            }
            // A leading `-` is literal; between two characters it denotes a range.
            '-' if is_first => {
                out.push_str("\\-");
                rest = remaining;
            }
            // A range cannot end with a class: the crate rejects it as Go does.
            '-' if may_start_range && starts_with_escaped_class(remaining) => {
                let (class, remaining) = remaining.split_at(2);
                out.push('-');
                out.push_str(class);
                rest = remaining;
            }
            '-' if remaining.starts_with('-') => {
                out.push_str("-\\-");
                rest = &remaining[1..];
            }
            _ => {
                out.push(next);
                rest = remaining;
            }
        }
        let is_class = out.ends_with(']') && !out.ends_with("\\]");
        let is_range = next == '-' && may_start_range;
        may_start_range = !(is_class || is_range || ends_range);
        ends_range = is_range;
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
            (r"^\d$", "1", "\u{661}"),
            (r"^[\d-.]$", "-", "\u{661}"),
            (r"^\D$", "\u{661}", "1"),
            (r"^[^\w]$", "\u{e4}", "a"),
            (r"^[\W]$", "\u{e4}", "_"),
            (r"^\s$", "\u{c}", "\u{b}"),
            (r"^\S$", "\u{a0}", " "),
            (r"^.\b", "a", "\u{e4}"),
            (r"^.\B", "\u{e4}", "a"),
            (r"^[a-c-\d]+$", "b-1", "d"),
            (r"^[\d-\w]+$", "1-a", "."),
            (r"^[[:alpha:]-\d]+$", "a-1", "."),
            (r"^[A-\d]$", "", ""),
            (r"^[-+-\w]$", "", ""),
            ("^a[b$", "", ""),
        ] {
            match compile(pattern) {
                Ok(compiled) => {
                    assert!(compiled.is_match(matching), "{pattern} {matching}");
                    assert!(!compiled.is_match(other), "{pattern} {other}");
                }
                Err(error) => assert!(matching.is_empty(), "{pattern}: {error}"),
            }
        }
    }
}
