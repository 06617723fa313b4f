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
        parse(text).map_err(|why| format!("error parsing jsonpath {text}, {why}"))
    }

    /// The text of the template for an object.
    pub(super) fn render(&self, root: &Value) -> String {
        render(&self.0, root)
    }

    /// The values of all paths of the template, in order.
    pub(super) fn find<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        find_values(&self.0, root)
    }
}

fn parse(text: &str) -> Result<PathTemplate, String> {
    // Open ranges, outermost first, with the parts before each.
    let mut open: Vec<(JsonPath, Vec<Part>)> = Vec::new();
    let mut parts = Vec::new();
    // A bare path needs no braces.
    let braced = if text.contains('{') { text.to_owned() } else { format!("{{{text}}}") };
    let mut rest = braced.as_str();
    while let Some((before, inside)) = rest.split_once('{') {
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        let (action, after) = split_action(inside).ok_or("unclosed action")?;
        rest = after;
        let path = |text: &str| JsonPath::parse(text.trim()).map_err(|error| error.to_string());
        match action.trim() {
            "end" => {
                let (over, outer) = open.pop().ok_or("not in range, nothing to end")?;
                let inner = std::mem::replace(&mut parts, outer);
                parts.push(Part::Range(over, inner));
            }
            quoted if quoted.starts_with(['"', '\'']) => parts.push(Part::Text(unquote(quoted)?)),
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
fn split_action(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(own), _) if own == character => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '}') => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Removes the quotes and resolves Go's escape sequences.
fn unquote(text: &str) -> Result<String, String> {
    let quote = text.chars().next().unwrap_or_default();
    let inner = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let mut characters = inner.ok_or("unterminated quoted string")?.chars();
    let mut unquoted = String::new();
    while let Some(character) = characters.next() {
        unquoted.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(other @ ('\\' | '"' | '\'')) => other,
                _ => return Err(format!("invalid syntax in {text}")),
            },
            other => other,
        });
    }
    Ok(unquoted)
}

fn render(parts: &[Part], root: &Value) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(path) => path.find(root).into_iter().map(jsonpath::print).collect::<Vec<_>>().join(" "),
        Part::Range(over, inner) => over.find(root).into_iter().map(|item| render(inner, item)).collect(),
    };
    parts.iter().map(part).collect()
}

fn find_values<'v>(parts: &[Part], root: &'v Value) -> Vec<&'v Value> {
    let part = |part: &Part| match part {
        Part::Text(_) => Vec::new(),
        Part::Path(path) => path.find(root),
        Part::Range(over, inner) => over.find(root).into_iter().flat_map(|item| find_values(inner, item)).collect(),
    };
    parts.iter().flat_map(part).collect()
}
