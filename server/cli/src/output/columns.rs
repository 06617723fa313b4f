//! `custom-columns`: tables of JSONPath results, such as `NAME:.metadata.name,RSRC:.metadata.resourceVersion`. Has no
//! side effects.

use std::io::{self, Write};

use crowsnest_apimachinery::jsonpath::{self, JsonPath};
use serde_json::Value;

use crate::columns;

const NONE: &str = "<none>";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CustomColumns(Vec<(String, JsonPath)>);

impl CustomColumns {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let column = |part: &str| {
            let (head, path) = part
                .split_once(':')
                .ok_or_else(|| format!("unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>"))?;
            Ok((head.to_owned(), parse_relaxed_path(path)?))
        };
        split_columns(text).into_iter().map(column).collect::<Result<_, String>>().map(Self)
    }

    /// Parses a `custom-columns-file`: headers in the first line, paths in the second, separated by blanks.
    pub(super) fn parse_file(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let mut words = || lines.next().unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (headers, paths) = (words(), words());
        if headers.is_empty() || headers.len() != paths.len() {
            let (headers, paths) = (headers.len(), paths.len());
            return Err(format!(
                "number of headers and field specifications do not match: {headers} headers and {paths} fields"
            ));
        }
        let columns = headers.into_iter().zip(&paths).map(|(head, path)| Ok((head, parse_relaxed_path(path)?)));
        columns.collect::<Result<_, String>>().map(Self)
    }

    pub(crate) fn write(&self, out: &mut impl Write, items: &[Value], has_header: bool) -> io::Result<()> {
        let head = has_header.then(|| self.0.iter().map(|(name, _)| name.clone()).collect());
        let rows = items.iter().map(|item| self.0.iter().map(|(_, path)| cell(path, item)).collect());
        columns::write(out, &head.into_iter().chain(rows).collect::<Vec<_>>())
    }
}

/// Splits at commas outside of brackets.
fn split_columns(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'(' => depth += 1,
            b']' | b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// Parses a path as kubectl does in this format: braces and the leading dot are optional.
pub(crate) fn parse_relaxed_path(text: &str) -> Result<JsonPath, String> {
    let inner = text.trim();
    let inner = inner.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(inner);
    let dotted = if inner.starts_with(['.', '[', '$', '@']) { inner.to_owned() } else { format!(".{inner}") };
    JsonPath::parse(&dotted).map_err(|error| format!("error parsing jsonpath {text}, {error}"))
}

fn cell(path: &JsonPath, item: &Value) -> String {
    let found = path.find(item);
    let format_value = |value: &&Value| match value {
        Value::Null => NONE.to_owned(),
        value => jsonpath::to_text(value).replace('\n', "\\n"),
    };
    if found.is_empty() { NONE.to_owned() } else { found.iter().map(format_value).collect::<Vec<_>>().join(",") }
}
