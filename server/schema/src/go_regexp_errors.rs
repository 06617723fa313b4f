//! Errors of invalid regular expressions with the messages of Go's `regexp`. Has no side effects.

/// Maximum repeat count in Go.
const MAX_REPEAT: u32 = 1000;

/// The error of an invalid pattern; `None` if it is valid.
pub fn pattern_error(pattern: &str) -> Option<String> {
    let message = match crowsnest_apiserver::regexp::compile(pattern) {
        Err(error) => go_message(pattern, &error.to_string()),
        Ok(_) => find_invalid_repetition(pattern)?,
    };
    Some(format!("error parsing regexp: {message}"))
}

/// Message after "error parsing regexp: " for an error of the `regex` crate.
fn go_message(pattern: &str, error: &str) -> String {
    let has = |part: &str| error.contains(part);
    let marked = || marked_part(error).unwrap_or_default();
    if has("unclosed character class") {
        format!("missing closing ]: `{}`", pattern.find('[').map_or("", |from| &pattern[from..]))
    } else if has("unclosed group") && pattern.contains("(?P<") && !pattern.contains('>') {
        format!("invalid named capture: `{}`", pattern.find("(?P<").map_or("", |from| &pattern[from..]))
    } else if has("unclosed group") {
        format!("missing closing ): `{pattern}`")
    } else if has("unopened group") {
        format!("unexpected ): `{pattern}`")
    } else if has("repetition operator missing expression") {
        let operator = pattern.chars().find(|c| matches!(c, '*' | '+' | '?')).map_or_else(String::new, String::from);
        format!("missing argument to repetition operator: `{operator}`")
    } else if has("look-around") {
        let from = pattern.find("(?").unwrap_or(0);
        let length = if pattern[from..].starts_with("(?<") { 4 } else { 3 };
        format!("invalid or unsupported Perl syntax: `{}`", pattern.get(from..from + length).unwrap_or("(?"))
    } else if has("capture group name") || has("named capture") {
        let from = pattern.find("(?P<").unwrap_or(0);
        let to = pattern[from..].find('>').map_or(pattern.len(), |to| from + to + 1);
        format!("invalid named capture: `{}`", &pattern[from..to])
    } else if has("invalid character class range") {
        format!("invalid character class range: `{}`", marked())
    } else if has("incomplete escape sequence") {
        "trailing backslash at end of expression: ``".to_owned()
    } else if has("unrecognized escape sequence") || has("backreferences") {
        format!("invalid escape sequence: `{}`", marked())
    } else if has("invalid repetition count range") {
        format!("invalid repeat count: `{}`", marked())
    } else {
        error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    }
}

/// The part of the pattern that the error marks.
fn marked_part(error: &str) -> Option<&str> {
    let mut lines = error.lines().skip_while(|line| !line.contains("regex parse error")).skip(1);
    let (pattern, mark) = (lines.next()?, lines.next()?);
    let from = mark.find('^')?;
    pattern.get(from..from + mark.matches('^').count())
}

/// Finds a repetition that Go rejects: a nested one, or a count above [`MAX_REPEAT`]. Returns the message.
fn find_invalid_repetition(pattern: &str) -> Option<String> {
    let (mut at, mut in_class) = (0, false);
    // Start of the repetition operator that ends at `at`, if there is one.
    let mut previous_repetition: Option<usize> = None;
    while let Some(next) = pattern[at..].chars().next() {
        let here = at;
        at += next.len_utf8();
        match next {
            '\\' => at += pattern[at..].chars().next().map_or(0, char::len_utf8),
            '[' if !in_class => in_class = true,
            ']' if in_class => in_class = false,
            '*' | '+' | '?' | '{' if !in_class && here > 0 => {
                if next == '{' {
                    let Some((length, counts)) = parse_counts(&pattern[here..]) else {
                        previous_repetition = None;
                        continue;
                    };
                    at = here + length;
                    if counts.iter().any(|count| *count > MAX_REPEAT) {
                        return Some(format!("invalid repeat count: `{}`", &pattern[here..at]));
                    }
                }
                if pattern[at..].starts_with('?') {
                    at += 1;
                }
                if let Some(from) = previous_repetition {
                    return Some(format!("invalid nested repetition operator: `{}`", &pattern[from..at]));
                }
                // The `?` after `(` starts a group.
                previous_repetition = (!pattern[..here].ends_with('(')).then_some(here);
                continue;
            }
            _ => {}
        }
        previous_repetition = None;
    }
    None
}

/// Parses `{2}`, `{2,}` or `{2,3}`; returns length and counts.
fn parse_counts(text: &str) -> Option<(usize, Vec<u32>)> {
    let end = text.find('}')?;
    let parts = text[1..end].split(',').enumerate();
    let counts: Option<Vec<u32>> =
        parts.filter(|(index, part)| !(*index == 1 && part.is_empty())).map(|(_, part)| part.parse().ok()).collect();
    counts.filter(|counts| (1..=2).contains(&counts.len())).map(|counts| (end + 1, counts))
}

#[cfg(test)]
mod tests {
    #[test]
    fn messages_match_go() {
        for (pattern, expected) in [
            ("[a-z", "missing closing ]: `[a-z`"),
            ("(a", "missing closing ): `(a`"),
            ("a)", "unexpected ): `a)`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            (r"\y", r"invalid escape sequence: `\y`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("(?P<a", "invalid named capture: `(?P<a`"),
        ] {
            assert_eq!(super::pattern_error(pattern), Some(format!("error parsing regexp: {expected}")));
        }
        for pattern in ["a+?b*", "(?:a|b)?", "[*+?]{2,3}x+", r"\*+", "^(?i)a{1000}$"] {
            assert_eq!(super::pattern_error(pattern), None, "{pattern}");
        }
    }
}
