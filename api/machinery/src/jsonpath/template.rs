//! JSONPath templates of client-go: text with expressions, quoted text and ranges in braces,
//! `{.metadata.name}{"\n"}{range .spec.items[*]}{.name} {end}`.

use serde_json::Value;

use super::{JsonPath, ParseError, to_text};

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Path(JsonPath),
    /// A `range` block: its parts are printed for each value of the path.
    Range(JsonPath, Vec<Part>),
}

/// Reason why a text is not a valid template, in client-go's wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error(transparent)]
    Path(#[from] ParseError),
    #[error("not in range, nothing to end")]
    UnexpectedEnd,
    #[error("unclosed range")]
    UnclosedRange,
    #[error("invalid syntax in {0}")]
    InvalidEscape(String),
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        // Ranges without their `end` so far, outermost first, each with the parts before it.
        let mut unclosed_ranges: Vec<(JsonPath, Vec<Part>)> = Vec::new();
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, inside)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (action, after) = split_action(inside).ok_or(ParseError::UnclosedAction)?;
            rest = after;
            match action.trim() {
                "end" => {
                    let (over, outer) = unclosed_ranges.pop().ok_or(TemplateError::UnexpectedEnd)?;
                    let inner = std::mem::replace(&mut parts, outer);
                    parts.push(Part::Range(over, inner));
                }
                quoted if quoted.starts_with(['"', '\'']) => parts.push(Part::Text(unquote(quoted)?)),
                action => match action.strip_prefix("range ") {
                    Some(over) => unclosed_ranges.push((JsonPath::parse(over.trim())?, std::mem::take(&mut parts))),
                    None => parts.push(Part::Path(JsonPath::parse(action)?)),
                },
            }
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        if unclosed_ranges.is_empty() { Ok(Self(parts)) } else { Err(TemplateError::UnclosedRange) }
    }

    /// Renders the template for an object. A path without a value prints nothing.
    pub fn render(&self, root: &Value) -> String {
        render(&self.0, root)
    }

    /// Renders the template for an object; `None` if a path has no value.
    pub fn render_required(&self, root: &Value) -> Option<String> {
        has_all_values(&self.0, root).then(|| self.render(root))
    }

    /// The values of all paths of the template, in order.
    pub fn find<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        find_values(&self.0, root)
    }
}

/// Splits at the brace that closes an action; braces in quotes do not count.
fn split_action(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(opening), _) if opening == character => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '}') => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Removes the quotes and resolves Go's escape sequences.
fn unquote(text: &str) -> Result<String, TemplateError> {
    let quote = text.chars().next().unwrap_or_default();
    let inner = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let mut characters = inner.ok_or(ParseError::UnterminatedString)?.chars();
    let mut unquoted = String::new();
    while let Some(character) = characters.next() {
        unquoted.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(other @ ('\\' | '"' | '\'')) => other,
                _ => return Err(TemplateError::InvalidEscape(text.to_owned())),
            },
            other => other,
        });
    }
    Ok(unquoted)
}

fn render(parts: &[Part], root: &Value) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(path) => path.find(root).into_iter().map(to_text).collect::<Vec<_>>().join(" "),
        Part::Range(over, inner) => over.find(root).into_iter().map(|item| render(inner, item)).collect(),
    };
    parts.iter().map(part).collect()
}

fn has_all_values(parts: &[Part], root: &Value) -> bool {
    parts.iter().all(|part| match part {
        Part::Text(_) => true,
        Part::Path(path) => !path.find(root).is_empty(),
        Part::Range(over, inner) => over.find(root).into_iter().all(|item| has_all_values(inner, item)),
    })
}

fn find_values<'v>(parts: &[Part], root: &'v Value) -> Vec<&'v Value> {
    let part = |part: &Part| match part {
        Part::Text(_) => Vec::new(),
        Part::Path(path) => path.find(root),
        Part::Range(over, inner) => over.find(root).into_iter().flat_map(|item| find_values(inner, item)).collect(),
    };
    parts.iter().flat_map(part).collect()
}
