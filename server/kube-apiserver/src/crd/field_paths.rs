//! Field paths in CRDs (`.spec.a['x.y']`), resolved in a schema. Has no side effects.

use serde_json::Value;

use super::structural::get;

/// Result of resolving a path.
#[derive(Debug)]
pub(super) struct ResolvedPath<'a> {
    /// Path as errors print it: `spec.a[x.y]`.
    pub display: String,
    pub schema: &'a Value,
}

/// Resolves a path; errors have kube-apiserver's wording.
pub(super) fn resolve<'a>(path: &str, schema: &'a Value, allows_brackets: bool) -> Result<ResolvedPath<'a>, String> {
    const UNEXPECTED_END: &str = "unexpected end of JSON path";
    let mut tokens = tokenize(path).into_iter();
    let mut resolved = ResolvedPath { display: String::new(), schema };
    while let Some(token) = tokens.next() {
        match token {
            "[" if !allows_brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or(UNEXPECTED_END)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                resolved.enter(&unescape(inner)?)?;
                match tokens.next().ok_or(UNEXPECTED_END)? {
                    "]" => {}
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => resolved.enter(tokens.next().ok_or(UNEXPECTED_END)?)?,
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(resolved)
}

impl ResolvedPath<'_> {
    /// Moves to the field `name` of the current schema.
    fn enter(&mut self, name: &str) -> Result<(), String> {
        const UNKNOWN_FIELD: &str = "does not refer to a valid field";
        if let Some(properties) = get(self.schema, "properties") {
            self.schema = properties.get(name).ok_or(UNKNOWN_FIELD)?;
            let dot = if self.display.is_empty() { "" } else { "." };
            self.display.push_str(&format!("{dot}{name}"));
        } else {
            self.schema = get(self.schema, "additionalProperties").ok_or(UNKNOWN_FIELD)?;
            self.display.push_str(&format!("[{name}]"));
        }
        Ok(())
    }
}

/// Splits a path into dots, brackets, quoted strings and names.
fn tokenize(path: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '.' | '[' | ']' => 1,
            '\'' => {
                let bytes = rest.as_bytes();
                let end = (1..bytes.len()).find(|at| bytes[*at] == b'\'' && bytes[at - 1] != b'\\');
                end.map_or(rest.len(), |end| end + 1)
            }
            _ => rest.find(['.', '[', ']']).unwrap_or(rest.len()),
        };
        tokens.push(&rest[..length]);
        rest = &rest[length..];
    }
    tokens
}

fn unescape(text: &str) -> Result<String, String> {
    let mut unescaped = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            unescaped.push(letter);
            continue;
        }
        let Some(next) = letters.next() else {
            unescaped.push(letter);
            break;
        };
        unescaped.push(match next {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\'' | '\\' => next,
            other => return Err(format!("invalid string literal: invalid escape char \\{other}")),
        });
    }
    Ok(unescaped)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn paths_are_resolved_with_errors_of_kubernetes() {
        let schema = json!({"properties": {"spec": {"properties": {
            "a": {"type": "string"}, "x.y": {"type": "string"}, "m": {"additionalProperties": {"type": "string"}}}}}});
        for (path, expected) in [
            (".spec.a", "spec.a"),
            (".spec['x.y']", "spec.x.y"),
            (".spec.m['it\\'s']", "spec.m[it's]"),
            (".spec.m.k", "spec.m[k]"),
            ("spec.a", "expected [ or . but got: spec"),
            (".spec.b", "does not refer to a valid field"),
            (".spec.a.b", "does not refer to a valid field"),
            (".spec[0]", "expected single quoted string but got 0"),
            (".spec['a'", "unexpected end of JSON path"),
            (".spec.", "unexpected end of JSON path"),
            (".spec['\\q']", "invalid string literal: invalid escape char \\q"),
        ] {
            let resolved =
                super::resolve(path, &schema, true).map_or_else(|reason| reason, |resolved| resolved.display);
            assert_eq!(resolved, expected, "{path}");
        }
        assert_eq!(super::resolve(".spec['a']", &schema, false).unwrap_err(), "array notation is not allowed");
    }
}
