//! `jsonpath` templates: text with JSONPath expressions and ranges in braces, `{.metadata.name}{"\n"}{range
//! .spec.items[*]}{.name} {end}`. Pure.

use crowsnest_apimachinery::jsonpath::{self, JsonPath};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PathTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Path(JsonPath),
    /// A `range` block: its parts are printed for each value of the path.
    Range(JsonPath, Vec<Part>),
}

impl PathTemplate {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        read(text).map_err(|why| format!("error parsing jsonpath {text}, {why}"))
    }

    pub(super) fn filled(&self, root: &Value) -> String {
        filled(&self.0, root)
    }

    pub(super) fn found<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        found(&self.0, root)
    }
}

fn read(text: &str) -> Result<PathTemplate, String> {
    // Open ranges, outermost first, with the parts before each.
    let mut open: Vec<(JsonPath, Vec<Part>)> = Vec::new();
    let mut parts = Vec::new();
    // A bare path needs no braces.
    let braced = if text.contains('{') { text.to_owned() } else { format!("{{{text}}}") };
    let mut rest = braced.as_str();
    while let Some((before, behind)) = rest.split_once('{') {
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        let (action, after) = action(behind).ok_or("unclosed action")?;
        rest = after;
        let path = |text: &str| JsonPath::parse(text.trim()).map_err(|error| error.to_string());
        match action.trim() {
            "end" => {
                let (over, outer) = open.pop().ok_or("not in range, nothing to end")?;
                let inner = std::mem::replace(&mut parts, outer);
                parts.push(Part::Range(over, inner));
            }
            quoted if quoted.starts_with(['"', '\'']) => parts.push(Part::Text(unquoted(quoted)?)),
            action => match action.strip_prefix("range ") {
                Some(over) => open.push((path(over)?, std::mem::take(&mut parts))),
                None => parts.push(Part::Path(path(action)?)),
            },
        }
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    if open.is_empty() { Ok(PathTemplate(parts)) } else { Err("unclosed range".to_owned()) }
}

/// Splits at the brace that closes an action; braces in quotes do not count.
fn action(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let mut escaped = false;
    for (at, one) in text.char_indices() {
        match (quote, one) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(own), _) if own == one => quote = None,
            (None, '"' | '\'') => quote = Some(one),
            (None, '}') => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Removes the quotes and resolves Go's escape sequences.
fn unquoted(text: &str) -> Result<String, String> {
    let quote = text.chars().next().unwrap_or_default();
    let inner = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let mut left = inner.ok_or("unterminated quoted string")?.chars();
    let mut plain = String::new();
    while let Some(one) = left.next() {
        plain.push(match one {
            '\\' => match left.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(other @ ('\\' | '"' | '\'')) => other,
                _ => return Err(format!("invalid syntax in {text}")),
            },
            other => other,
        });
    }
    Ok(plain)
}

fn filled(parts: &[Part], root: &Value) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(path) => path.find(root).into_iter().map(jsonpath::print).collect::<Vec<_>>().join(" "),
        Part::Range(over, inner) => over.find(root).into_iter().map(|item| filled(inner, item)).collect(),
    };
    parts.iter().map(part).collect()
}

fn found<'v>(parts: &[Part], root: &'v Value) -> Vec<&'v Value> {
    let part = |part: &Part| match part {
        Part::Text(_) => Vec::new(),
        Part::Path(path) => path.find(root),
        Part::Range(over, inner) => over.find(root).into_iter().flat_map(|item| found(inner, item)).collect(),
    };
    parts.iter().flat_map(part).collect()
}
