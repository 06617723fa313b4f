//! Requested columns in addition to the fields of a hit: the time of the last change, values of labels, printed columns
//! of kubectl, and values at a path of the manifest. Has no side effects.

use crowsnest_apimachinery::printers::columns::columns;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_index::{Error, Object};
use crowsnest_search::ManifestPath;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::hits::time;
use super::parameters::invalid_parameter;

/// Maximum number of columns in one response.
const MAX_COLUMNS: usize = 32;
/// Maximum number of characters of a value in a response; longer values are truncated. Exports are not truncated.
const MAX_VALUE_CHARACTERS: usize = 256;
/// Name for all printed columns of the hit's kind.
const ALL_PRINTED: &str = "*";
/// Name of the time of the last change, as in the query language.
const CHANGED: &str = "changed";

// Tools of the Model Context Protocol rely on complete values up to this size.
const _: () = assert!(MAX_VALUE_CHARACTERS >= crowsnest_mcp::MAX_COMPLETE_COLUMN_BYTES);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Column {
    /// `label:KEY`.
    Label(String),
    /// `print:NAME`: a column of kubectl, including columns of wide output.
    Printed(String),
    /// `changed`: the time at which the cache received this version of the object, in RFC 3339.
    Changed,
    /// `.spec.replicas`: a path, as in the query language.
    Path(String, ManifestPath),
}

impl Column {
    /// Parses the name of a column; `None` for fields of a hit and for unknown names.
    pub(super) fn parse(name: &str) -> Option<Self> {
        if name == CHANGED {
            return Some(Self::Changed);
        }
        if name.starts_with('.') {
            return ManifestPath::new(name).map(|path| Self::Path(name.to_owned(), path));
        }
        let (kind, argument) = name.split_once(':').filter(|(_, argument)| !argument.is_empty())?;
        match kind {
            "label" => Some(Self::Label(argument.to_owned())),
            "print" => Some(Self::Printed(argument.to_owned())),
            _ => None,
        }
    }

    /// True if the value is read from the manifest.
    pub(super) fn reads_manifests(&self) -> bool {
        matches!(self, Self::Path(..))
    }

    /// Values of an object, with the names of their columns.
    fn values(&self, object: &Object, manifest: &Value, now: Timestamp) -> Result<Vec<(String, String)>, Error> {
        let record = &object.record;
        match self {
            Self::Label(key) => {
                let value = record.labels.get(key);
                Ok(value.map(|value| (format!("label:{key}"), value.clone())).into_iter().collect())
            }
            Self::Printed(printed_name) => {
                let columns = columns(&record.key.resource().group, &record.kind);
                let cells = &record.printed_object()?.cells;
                let selected = columns
                    .iter()
                    .zip(cells)
                    .filter(|(column, _)| printed_name == ALL_PRINTED || column.name == printed_name);
                let texts = selected.filter_map(|(column, cell)| {
                    let text = match cell.render(now.as_second()) {
                        Value::Null => return None,
                        Value::String(text) => text,
                        other => other.to_string(),
                    };
                    Some((format!("print:{}", column.name), text))
                });
                Ok(texts.collect())
            }
            Self::Changed => {
                let changed = time(Some(record.changed_at / 1000));
                Ok(changed.as_str().map(|text| (CHANGED.to_owned(), text.to_owned())).into_iter().collect())
            }
            Self::Path(name, path) => {
                let values = path.values(manifest);
                Ok(if values.is_empty() { Vec::new() } else { vec![(name.clone(), values.join(", "))] })
            }
        }
    }

    /// The complete value of an object; empty if there is none.
    pub(super) fn cell(&self, object: &Object, now: Timestamp) -> Result<String, Error> {
        let manifest = if self.reads_manifests() { object.parse()? } else { Value::Null };
        Ok(self.values(object, &manifest, now)?.into_iter().next().map(|(_, text)| text).unwrap_or_default())
    }
}

/// Requested columns of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Columns(Vec<Column>);

impl Columns {
    /// Parses the parameter `columns`: names, separated by commas.
    pub(super) fn parse(names: Option<&str>) -> Result<Self, ApiError> {
        let selected = names.unwrap_or_default().split(',').filter(|name| !name.is_empty());
        let column = |name: &str| {
            let invalid = || {
                let reason = "valid are changed, label:KEY, print:NAME and .PATH";
                invalid_parameter("columns", name, reason)
            };
            Column::parse(name).ok_or_else(invalid)
        };
        let columns = selected.map(column).collect::<Result<Vec<_>, _>>()?;
        if columns.len() > MAX_COLUMNS {
            let reason = format!("{} columns are requested, and at most {MAX_COLUMNS} are allowed", columns.len());
            return Err(invalid_parameter("columns", names.unwrap_or_default(), reason));
        }
        Ok(Self(columns))
    }

    /// True if a column is read from manifests.
    pub(super) fn read_manifests(&self) -> bool {
        self.0.iter().any(Column::reads_manifests)
    }

    /// Values of an object by the names of columns; `None` if no columns are requested.
    pub(super) fn values(&self, object: &Object, now: Timestamp) -> Result<Option<Value>, Error> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let manifest = if self.read_manifests() { object.parse()? } else { Value::Null };
        let mut values = Map::new();
        for column in &self.0 {
            let texts = column.values(object, &manifest, now)?.into_iter();
            values.extend(
                texts.map(|(name, text)| (name, text.chars().take(MAX_VALUE_CHARACTERS).collect::<String>().into())),
            );
        }
        Ok(Some(Value::Object(values)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn path(name: &str) -> Column {
        Column::Path(name.to_owned(), ManifestPath::new(name).unwrap())
    }

    #[rstest]
    #[case::none(None, Ok(vec![]))]
    #[case::some(
        Some("label:app.kubernetes.io/name,print:Up-to-date,"),
        Ok(vec![Column::Label("app.kubernetes.io/name".into()), Column::Printed("Up-to-date".into())])
    )]
    #[case::time_of_the_last_change(Some("changed,.spec.replicas"), Ok(vec![Column::Changed, path(".spec.replicas")]))]
    #[case::a_field(Some("name"), Err("invalid columns=\"name\": valid are changed, label:KEY, print:NAME and .PATH"))]
    #[case::no_path(Some(".spec["), Err("invalid columns=\".spec[\": valid are changed, label:KEY"))]
    #[case::no_key(Some("label:"), Err("invalid columns=\"label:\": valid are changed, label:KEY"))]
    fn names_of_columns_are_parsed(#[case] names: Option<&str>, #[case] expected: Result<Vec<Column>, &str>) {
        match (Columns::parse(names), expected) {
            (Ok(Columns(parsed)), Ok(expected)) => assert_eq!(parsed, expected),
            (Err(failure), Err(prefix)) => {
                let message = failure.message;
                assert!(message.starts_with(prefix), "{message}");
            }
            (parsed, expected) => panic!("{} instead of {expected:?}", parsed.is_ok()),
        }
    }

    #[test]
    fn only_paths_need_manifests() {
        for (names, expected) in [("label:app,print:Age,changed", false), ("label:app,.spec.replicas", true)] {
            assert_eq!(Columns::parse(Some(names)).is_ok_and(|columns| columns.read_manifests()), expected, "{names}");
        }
    }

    #[test]
    fn number_of_columns_is_limited() {
        let names = vec!["label:a"; MAX_COLUMNS + 1].join(",");
        assert!(Columns::parse(Some(&names)).is_err());
    }
}
