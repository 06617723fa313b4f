//! How an edited customization is printed: kubectl's `-o`, of which Go's templates are missing.

use std::io::Write;
use std::str::FromStr;

use anyhow::Context;
use crowsnest_api::jsonpath::{self, JsonPath};
use crowsnest_controllers::plan::overriding::yaml;
use serde_json::Value;

/// An output format by kubectl's name.
#[derive(Debug, Clone)]
pub(super) enum Output {
    Json,
    Name,
    Yaml,
    JsonPath(Template),
    JsonPathAsJson(Template),
}

const KNOWN: &str = "json, jsonpath, jsonpath-as-json, jsonpath-file, name, yaml";

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, template) = text.split_once('=').map_or((text, None), |(format, rest)| (format, Some(rest)));
        let given =
            || template.filter(|text| !text.is_empty()).ok_or("template format specified but no template given");
        let read = |text: &str| Template::parse(text).map_err(|why| format!("error parsing jsonpath {text}, {why}"));
        match (format, template) {
            ("json", None) => Ok(Output::Json),
            ("name", None) => Ok(Output::Name),
            ("yaml", None) => Ok(Output::Yaml),
            ("jsonpath", _) => read(given()?).map(Output::JsonPath),
            ("jsonpath-as-json", _) => read(given()?).map(Output::JsonPathAsJson),
            ("jsonpath-file", _) => {
                let file = given()?;
                let text =
                    std::fs::read_to_string(file).map_err(|error| format!("error reading template {file}, {error}"))?;
                read(&text).map(Output::JsonPath)
            }
            _ => Err(format!(
                "unable to match a printer suitable for the output format {text:?}, allowed formats are: {KNOWN}"
            )),
        }
    }
}

impl Output {
    /// Prints a customization; `name` is how it is named on the command line.
    pub(super) fn print(&self, name: &str, body: &Value, out: &mut impl Write) -> anyhow::Result<()> {
        match self {
            Output::Name => writeln!(out, "{name}")?,
            Output::Json => writeln!(out, "{body:#}")?,
            Output::Yaml => out.write_all(yaml::written(body).as_bytes())?,
            Output::JsonPath(template) => out.write_all(template.filled(body).as_bytes())?,
            Output::JsonPathAsJson(template) => {
                let found: Vec<&Value> = template.found(body);
                let text = serde_json::to_string_pretty(&found).context("printing what was found")?;
                writeln!(out, "{text}")?;
            }
        }
        Ok(())
    }
}

/// A text with JSONPaths in braces: `{.metadata.name}{"\n"}{range .spec.items[*]}{.name} {end}`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Path(JsonPath),
    /// What is in it once for each thing that is found.
    Range(JsonPath, Vec<Part>),
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        // Ranges that are open, the outermost first, with what is before the next one.
        let mut open: Vec<(JsonPath, Vec<Part>)> = Vec::new();
        let mut parts = Vec::new();
        // A path may stand without braces.
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
        if open.is_empty() { Ok(Template(parts)) } else { Err("unclosed range".to_owned()) }
    }

    fn filled(&self, root: &Value) -> String {
        filled(&self.0, root)
    }

    fn found<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        found(&self.0, root)
    }
}

/// What is up to the brace that closes an action, and what is behind it. Braces in quotes close nothing.
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

/// A text in quotes, with what is escaped as Go has it.
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
        Part::Range(over, inner) => path_items(over, root).map(|item| filled(inner, item)).collect(),
    };
    parts.iter().map(part).collect()
}

fn found<'v>(parts: &[Part], root: &'v Value) -> Vec<&'v Value> {
    let part = |part: &Part| match part {
        Part::Text(_) => Vec::new(),
        Part::Path(path) => path.find(root),
        Part::Range(over, inner) => path_items(over, root).flat_map(|item| found(inner, item)).collect(),
    };
    parts.iter().flat_map(part).collect()
}

fn path_items<'v>(path: &JsonPath, root: &'v Value) -> impl Iterator<Item = &'v Value> + use<'v> {
    path.find(root).into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn printed(format: &str) -> Result<String, String> {
        let body = json!({"metadata": {"name": "c"}, "spec": {"items": [{"a": 1}, {"a": "b"}]}});
        let mut out = Vec::new();
        let output: Output = format.parse()?;
        output.print("kind/c", &body, &mut out).map_err(|error| error.to_string())?;
        String::from_utf8(out).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case("name", "kind/c\n")]
    #[case("jsonpath={.metadata.name}", "c")]
    #[case("jsonpath=.metadata.name", "c")]
    #[case("jsonpath=it is {.metadata.name}{'\\n'}", "it is c\n")]
    #[case("jsonpath={.spec.items[*].a}", "1 b")]
    #[case("jsonpath={range .spec.items[*]}<{.a}{\"}\\t\"}{end}.", "<1}\t<b}\t.")]
    #[case("jsonpath={.spec.nothing}", "")]
    #[case("jsonpath-as-json={.spec.items[1].a}", "[\n  \"b\"\n]\n")]
    fn formats(#[case] format: &str, #[case] expected: &str) {
        assert_eq!(printed(format).as_deref(), Ok(expected));
    }

    #[rstest]
    #[case("wide", "unable to match a printer suitable for the output format \"wide\", allowed formats are: json, ")]
    #[case("go-template={{.}}", "unable to match a printer suitable for the output format")]
    #[case("jsonpath", "template format specified but no template given")]
    #[case("jsonpath={.a", "error parsing jsonpath {.a, unclosed action")]
    #[case("jsonpath={end}", "error parsing jsonpath {end}, not in range, nothing to end")]
    #[case("jsonpath={range .a}", "error parsing jsonpath {range .a}, unclosed range")]
    #[case("jsonpath-file=no/such/file", "error reading template no/such/file, ")]
    fn what_makes_no_sense_is_refused(#[case] format: &str, #[case] expected: &str) {
        let refused = printed(format).unwrap_err();
        assert!(refused.starts_with(expected), "{refused}");
    }
}
