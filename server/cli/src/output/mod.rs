//! `-o`: kubectl's output formats, with kubectl's error texts. Tables are rendered by the verbs themselves.

use std::io::{self, Write};

use anyhow::{Context, anyhow};
use crowsnest_apimachinery::jsonpath::Template;
use crowsnest_apimachinery::yaml;
use serde_json::Value;

use columns::CustomColumns;
pub(crate) use columns::parse_relaxed_path;
use go::GoTemplate;
use path::parse_template;

pub(crate) mod color;
mod columns;
mod go;
mod kyaml;
mod path;
pub mod terminal;

/// Formats that all verbs accept: JSON, and those with a template.
const TEMPLATE_FORMATS: [&str; 8] = [
    "go-template",
    "go-template-file",
    "jsonpath",
    "jsonpath-as-json",
    "jsonpath-file",
    "template",
    "templatefile",
    "json",
];

/// A parsed output format.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
    Jsonl,
    Yaml,
    Kyaml,
    Csv,
    Name,
    JsonPath(Template),
    JsonPathAsJson(Template),
    GoTemplate(GoTemplate),
    CustomColumns(CustomColumns),
}

impl Format {
    /// Parses a format of `kubectl get`.
    pub(crate) fn parse_for_objects(text: &str) -> Result<Self, String> {
        Self::parse(text, &["custom-columns", "custom-columns-file", "kyaml", "name", "wide", "yaml"])
    }

    /// Parses a format of verbs that print single objects, such as `kubectl apply`.
    pub(crate) fn parse_for_object(text: &str) -> Result<Self, String> {
        Self::parse(text, &["kyaml", "name", "yaml"])
    }

    /// Parses a format of verbs that print search hits.
    pub(crate) fn parse_for_hits(text: &str) -> Result<Self, String> {
        Self::parse(
            text,
            &["csv", "custom-columns", "custom-columns-file", "jsonl", "kyaml", "name", "table", "wide", "yaml"],
        )
    }

    fn parse(text: &str, additional: &[&str]) -> Result<Self, String> {
        let (format, template) = text.split_once('=').map_or((text, None), |(format, rest)| (format, Some(rest)));
        if !TEMPLATE_FORMATS.contains(&format) && !additional.contains(&format) {
            return Err(unknown_format_error(text, additional));
        }
        match format {
            "custom-columns" | "custom-columns-file" => {
                let required_template = template.filter(|text| !text.is_empty());
                let required_template =
                    required_template.ok_or("custom-columns format specified but no custom columns given")?;
                return match format {
                    "custom-columns" => CustomColumns::parse(required_template),
                    _ => CustomColumns::parse_file(&read_template_file(required_template)?),
                }
                .map(Self::CustomColumns);
            }
            _ => {}
        }
        let required_template =
            || template.filter(|text| !text.is_empty()).ok_or("template format specified but no template given");
        match (format, template) {
            ("json", None) => Ok(Self::Json),
            ("jsonl", None) => Ok(Self::Jsonl),
            ("yaml", None) => Ok(Self::Yaml),
            ("kyaml", None) => Ok(Self::Kyaml),
            ("csv", None) => Ok(Self::Csv),
            ("name", None) => Ok(Self::Name),
            ("wide", None) => Ok(Self::Wide),
            ("table", None) => Ok(Self::Table),
            ("jsonpath", _) => parse_template(required_template()?).map(Self::JsonPath),
            ("jsonpath-as-json", _) => parse_template(required_template()?).map(Self::JsonPathAsJson),
            ("jsonpath-file", _) => parse_template(&read_template_file(required_template()?)?).map(Self::JsonPath),
            ("go-template" | "template", _) => GoTemplate::parse(required_template()?).map(Self::GoTemplate),
            ("go-template-file" | "templatefile", _) => {
                GoTemplate::parse(&read_template_file(required_template()?)?).map(Self::GoTemplate)
            }
            _ => Err(unknown_format_error(text, additional)),
        }
    }

    /// True for formats that print rows instead of documents.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    /// Prints a document: an object or a List. `name` returns an object's name on the command line (`kind/name`).
    pub(crate) fn print(
        &self,
        out: &mut impl Write,
        document: &Value,
        name: impl Fn(&Value) -> String,
    ) -> anyhow::Result<()> {
        match self {
            Self::Json | Self::Table | Self::Wide | Self::Csv => writeln!(out, "{document:#}")?,
            Self::Jsonl => items(document).iter().try_for_each(|item| writeln!(out, "{item}"))?,
            Self::Yaml => out.write_all(yaml::to_yaml(document).as_bytes())?,
            Self::Kyaml => out.write_all(kyaml::render(document).as_bytes())?,
            Self::Name => items(document).iter().try_for_each(|item| writeln!(out, "{}", name(item)))?,
            Self::JsonPath(template) => out.write_all(template.render(document).as_bytes())?,
            Self::JsonPathAsJson(template) => {
                let found = serde_json::to_string_pretty(&template.find(document));
                writeln!(out, "{}", found.context("cannot print the result")?)?;
            }
            Self::GoTemplate(template) => {
                let filled = template.render(document).map_err(|error| anyhow!("error executing template: {error}"))?;
                out.write_all(filled.as_bytes())?;
            }
            Self::CustomColumns(columns) => columns.write(out, items(document), true)?,
        }
        Ok(())
    }

    /// Prints one more document of a stream of documents.
    pub(crate) fn print_next(
        &self,
        out: &mut impl Write,
        document: &Value,
        first: bool,
        name: impl Fn(&Value) -> String,
    ) -> anyhow::Result<()> {
        match self {
            Self::Yaml => out.write_all(b"---\n")?,
            Self::CustomColumns(columns) => return Ok(columns.write(out, items(document), first)?),
            _ => {}
        }
        self.print(out, document, name)
    }
}

/// The items of a List, or the object itself.
pub(crate) fn items(document: &Value) -> &[Value] {
    let is_list = document.get("kind").and_then(Value::as_str).is_none_or(|kind| kind.ends_with("List"));
    match document.get("items").and_then(Value::as_array) {
        Some(items) if is_list => items,
        _ => std::slice::from_ref(document),
    }
}

fn read_template_file(name: &str) -> Result<String, String> {
    std::fs::read_to_string(name).map_err(|error| format!("error reading template {name}, {error}"))
}

fn unknown_format_error(text: &str, additional: &[&str]) -> String {
    let mut formats: Vec<&str> = TEMPLATE_FORMATS.iter().chain(additional).copied().collect();
    formats.sort_unstable();
    let formats = formats.join(", ");
    format!("unable to match a printer suitable for the output format {text:?}, allowed formats are: {formats}")
}

/// Writes a line of CSV; cells with commas, quotes or line breaks are quoted.
pub(crate) fn write_csv_line(out: &mut impl Write, cells: &[String]) -> io::Result<()> {
    let quoted = |cell: &String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    writeln!(out, "{}", cells.iter().map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn print(format: &str, document: &Value) -> Result<String, String> {
        let mut out = Vec::new();
        let object_name = |item: &Value| format!("kind/{}", item["metadata"]["name"].as_str().unwrap_or_default());
        let format = Format::parse(format, &["csv", "custom-columns", "jsonl", "name", "wide", "yaml"])?;
        format.print(&mut out, document, object_name).map_err(|error| error.to_string())?;
        String::from_utf8(out).map_err(|error| error.to_string())
    }

    fn object() -> Value {
        json!({"metadata": {"name": "c", "labels": {"a.b/c": "d"}}, "spec": {"items": [{"a": 1}, {"a": "b"}], "on": true}})
    }

    fn list() -> Value {
        json!({"kind": "List", "items": [object(), {"metadata": {"name": "e"}}]})
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
    #[case("go-template={{.metadata.name}}{{\"\\n\"}}", "c\n")]
    #[case("template={{range .spec.items}}<{{.a}}>{{end}}", "<1><b>")]
    #[case("go-template={{.metadata.nothing}}", "<no value>")]
    #[case("go-template={{if exists . \"spec\" \"on\"}}yes{{end}}{{if exists . \"spec\" \"off\"}}no{{end}}", "yes")]
    #[case("go-template={{index .metadata.labels \"a.b/c\"}} {{base64decode \"aGk=\"}}", "d hi")]
    #[case(
        "custom-columns=NAME:.metadata.name,A:.spec.items[*].a,ON:{.spec.on}",
        "NAME   A     ON\nc      1,b   true\n"
    )]
    #[case("custom-columns=L:metadata.labels.a\\.b/c,X:.spec.x", "L   X\nd   <none>\n")]
    fn objects_are_printed(#[case] format: &str, #[case] expected: &str) {
        assert_eq!(print(format, &object()).as_deref(), Ok(expected));
    }

    #[rstest]
    #[case("name", "kind/c\nkind/e\n")]
    #[case("jsonpath={.items[*].metadata.name}", "c e")]
    #[case("go-template={{range .items}}{{.metadata.name}} {{end}}", "c e ")]
    #[case("custom-columns=NAME:.metadata.name", "NAME\nc\ne\n")]
    fn lists_are_printed(#[case] format: &str, #[case] expected: &str) {
        assert_eq!(print(format, &list()).as_deref(), Ok(expected));
    }

    #[rstest]
    #[case("table", "unable to match a printer suitable for the output format \"table\", allowed formats are: csv, ")]
    #[case("json=x", "unable to match a printer suitable for the output format \"json=x\"")]
    #[case("jsonpath", "template format specified but no template given")]
    #[case("jsonpath={.a", "error parsing jsonpath {.a, unclosed action")]
    #[case("jsonpath={end}", "error parsing jsonpath {end}, not in range, nothing to end")]
    #[case("jsonpath={range .a}", "error parsing jsonpath {range .a}, unclosed range")]
    #[case("jsonpath-file=no/such/file", "error reading template no/such/file, ")]
    #[case("go-template={{.a", "error parsing template {{.a, template: output:1:")]
    #[case("go-template={{nosuch .}}", "error executing template: undefined function: nosuch")]
    #[case("custom-columns=", "custom-columns format specified but no custom columns given")]
    #[case("custom-columns=NAME", "unexpected custom-columns spec: NAME, expected <header>:<json-path-expr>")]
    fn invalid_formats_are_rejected(#[case] format: &str, #[case] expected: &str) {
        let refused = print(format, &object()).unwrap_err();
        assert!(refused.starts_with(expected), "{refused}");
    }

    #[test]
    fn column_files_are_parsed() {
        let columns = CustomColumns::parse_file("NAME           ON\nmetadata.name  {.spec.on}\n").unwrap();
        let mut out = Vec::new();
        columns.write(&mut out, &[object()], true).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME   ON\nc      true\n");
        assert!(CustomColumns::parse_file("A B\n.a\n").unwrap_err().contains("2 headers and 1"));
    }

    #[test]
    fn documents_are_separated() {
        let render = |format: &str| {
            let mut out = Vec::new();
            let format = Format::parse_for_objects(format).unwrap();
            for (at, name) in ["a", "b"].into_iter().enumerate() {
                format.print_next(&mut out, &json!({"metadata": {"name": name}}), at == 0, |_| String::new()).unwrap();
            }
            String::from_utf8(out).unwrap()
        };
        assert_eq!(render("yaml"), "---\nmetadata:\n  name: a\n---\nmetadata:\n  name: b\n");
        assert_eq!(render("custom-columns=N:.metadata.name"), "N\na\nb\n");
    }

    #[test]
    fn csv_cells_are_quoted_if_necessary() {
        let mut out = Vec::new();
        write_csv_line(&mut out, &["a".to_owned(), "b,\"c\"".to_owned(), String::new()]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a,\"b,\"\"c\"\"\",\n");
    }
}
