//! Merges the tables of several API servers: rows carry their cluster, cells are matched by column name. Has no side
//! effects.

use crowsnest_apimachinery::printers::human_duration;
use serde_json::Value;

use super::extra_columns::{ExtraColumns, SortKey};

/// Column that tables of the fleet-wide proxy contain already.
const CLUSTER: &str = "Cluster";
const NONE: &str = "<none>";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Column {
    name: String,
    /// Shown with `-o wide` only.
    is_wide: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    cluster: String,
    namespace: String,
    cells: Vec<String>,
    /// Cells of the additional columns.
    extra_columns: Vec<String>,
    /// Sort key of the row.
    pub(super) key: SortKey,
}

/// A table as one API server returned it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

impl Table {
    /// Parses a `Table`, or objects of servers without table support. `cluster` is the member that responded; `None` is
    /// the fleet-wide proxy, whose rows contain the cluster. Tables of a watch without columns use the columns of the
    /// previous table.
    pub(super) fn parse(
        response: &Value,
        cluster: Option<&str>,
        previous_columns: &[Column],
        extra_columns: &ExtraColumns,
        now: jiff::Timestamp,
    ) -> Self {
        let list = |field: &str| response.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if response.get("kind").and_then(Value::as_str) != Some("Table") {
            let objects = response.get("items").and_then(Value::as_array);
            let objects = objects.map_or_else(|| std::slice::from_ref(response), Vec::as_slice);
            return Self::from_objects(objects, cluster, extra_columns, now);
        }
        let mut columns: Vec<Column> = list("columnDefinitions").iter().map(parse_column).collect();
        let mut rows: Vec<Row> = list("rows").iter().filter_map(|row| parse_row(row, cluster, extra_columns)).collect();
        let cluster_index = columns.iter().position(|column| column.name == CLUSTER).filter(|_| cluster.is_none());
        if columns.is_empty() {
            columns = previous_columns.to_vec();
            // The previous columns lack the cluster, which is the cell after the name.
            let at = 1;
            rows.iter_mut()
                .filter(|row| cluster.is_none() && row.cells.len() > at)
                .for_each(|row| row.take_cluster(at));
        } else if let Some(at) = cluster_index {
            columns.remove(at);
            rows.iter_mut().filter(|row| row.cells.len() > at).for_each(|row| row.take_cluster(at));
        }
        Self { columns, rows }
    }

    fn from_objects(
        objects: &[Value],
        cluster: Option<&str>,
        extra_columns: &ExtraColumns,
        now: jiff::Timestamp,
    ) -> Self {
        let columns = ["Name", "Age"].map(|name| Column { name: name.to_owned(), is_wide: false }).to_vec();
        let row = |object: &Value| {
            let metadata_field = |field: &str| object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
            let created = metadata_field("creationTimestamp").and_then(|time| time.parse::<jiff::Timestamp>().ok());
            let age =
                created.map_or_else(|| "<unknown>".to_owned(), |at| human_duration(now.as_second() - at.as_second()));
            Row {
                cluster: cluster.unwrap_or_default().to_owned(),
                namespace: metadata_field("namespace").unwrap_or_default().to_owned(),
                cells: vec![metadata_field("name").unwrap_or_default().to_owned(), age],
                extra_columns: extra_columns.cells(object, cluster.unwrap_or_default()),
                key: extra_columns.sort_key(object),
            }
        };
        Self { columns, rows: objects.iter().map(row).collect() }
    }
}

impl Row {
    fn take_cluster(&mut self, at: usize) {
        let cluster = self.cells.remove(at);
        if self.cluster.is_empty() {
            self.cluster = cluster;
        }
    }
}

fn parse_column(column: &Value) -> Column {
    let name = column.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    Column { name, is_wide: column.get("priority").and_then(Value::as_i64).unwrap_or_default() > 0 }
}

/// Parses a row; `None` for rows without an object, such as bookmarks.
fn parse_row(row: &Value, cluster: Option<&str>, extra_columns: &ExtraColumns) -> Option<Row> {
    let cells = row.get("cells").and_then(Value::as_array).filter(|cells| !cells.is_empty())?;
    let text_at = |path: &str| row.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let cluster = cluster.map_or_else(
        || text_at("/object/metadata/annotations/resource.karmada.io~1cached-from-cluster"),
        str::to_owned,
    );
    let (extra_columns, key) = (extra_columns.cells(&row["object"], &cluster), extra_columns.sort_key(&row["object"]));
    let namespace = text_at("/object/metadata/namespace");
    Some(Row { cluster, namespace, cells: cells.iter().map(format_cell).collect(), extra_columns, key })
}

/// The first line of a string; other values as JSON.
fn format_cell(cell: &Value) -> String {
    match cell {
        Value::Null => NONE.to_owned(),
        Value::String(text) => match text.split_once('\n') {
            Some((first, _)) => format!("{first}..."),
            None => text.clone(),
        },
        other => other.to_string(),
    }
}

/// The printed columns in order: event type, namespace (for several namespaces), name, cluster, the server's columns,
/// additional columns.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    pub(super) has_event: bool,
    pub(super) has_namespace: bool,
    pub(super) is_wide: bool,
    /// Prefix of names if several kinds are printed.
    pub(super) kind: Option<String>,
    /// Headers of the additional columns.
    pub(super) extra_columns: Vec<String>,
    pub(super) columns: Vec<Column>,
}

impl Layout {
    /// Sets the columns of a table.
    pub(super) fn with_columns(mut self, columns: &[Column]) -> Self {
        self.columns = columns.iter().filter(|column| self.is_wide || !column.is_wide).cloned().collect();
        self
    }

    pub(super) fn header(&self) -> Vec<String> {
        let columns = self.columns.iter().map(|column| column.name.to_uppercase()).collect();
        self.arrange("EVENT", "NAMESPACE", columns, &CLUSTER.to_uppercase(), &self.extra_columns)
    }

    /// Arranges a row for this layout; its API server may have other columns.
    pub(super) fn row(&self, columns: &[Column], row: &Row, event: &str) -> Vec<String> {
        let cell_in = |shown: &Column| {
            let at = columns.iter().position(|column| column.name == shown.name);
            at.and_then(|at| row.cells.get(at)).cloned().unwrap_or_else(|| NONE.to_owned())
        };
        let mut cells: Vec<String> = self.columns.iter().map(cell_in).collect();
        if let (Some(kind), Some(name)) = (&self.kind, cells.first_mut()) {
            *name = format!("{kind}/{name}");
        }
        self.arrange(event, &row.namespace, cells, &row.cluster, &row.extra_columns)
    }

    fn arrange(
        &self,
        event: &str,
        namespace: &str,
        mut cells: Vec<String>,
        cluster: &str,
        extra_columns: &[String],
    ) -> Vec<String> {
        cells.insert(1.min(cells.len()), cluster.to_owned());
        let event = self.has_event.then(|| event.to_owned());
        let namespace = self.has_namespace.then(|| namespace.to_owned());
        event.into_iter().chain(namespace).chain(cells).chain(extra_columns.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: jiff::Timestamp = jiff::Timestamp::UNIX_EPOCH;

    fn table(columns: &[(&str, i64)], rows: Vec<Value>) -> Value {
        let columns: Vec<Value> =
            columns.iter().map(|(name, priority)| json!({"name": name, "priority": priority})).collect();
        let object = json!({"metadata": {"namespace": "shop", "annotations": {}}});
        let rows: Vec<Value> = rows.into_iter().map(|cells| json!({"cells": cells, "object": object})).collect();
        json!({"kind": "Table", "columnDefinitions": columns, "rows": rows})
    }

    fn printed(responses: &[(Option<&str>, Value)], has_namespace: bool, is_wide: bool) -> Vec<String> {
        let tables: Vec<Table> = responses
            .iter()
            .map(|(cluster, response)| Table::parse(response, *cluster, &[], &ExtraColumns::default(), NOW))
            .collect();
        let layout = Layout { has_namespace, is_wide, ..Layout::default() }.with_columns(&tables[0].columns);
        let rows = tables.iter().flat_map(|table| table.rows.iter().map(|row| layout.row(&table.columns, row, "")));
        std::iter::once(layout.header()).chain(rows).map(|row| row.join(" ")).collect()
    }

    #[test]
    fn tables_of_members_are_merged() {
        let new =
            table(&[("Name", 0), ("Ready", 0), ("Restarts", 0), ("Node", 1)], vec![json!(["web", "1/1", 3, "n1"])]);
        let old = table(&[("Name", 0), ("Node", 1), ("Ready", 0)], vec![json!(["db", "n2", "0/1\nsoon"])]);
        let responses = [(Some("m1"), new), (Some("m2"), old)];
        assert_eq!(
            printed(&responses, false, false),
            ["NAME CLUSTER READY RESTARTS", "web m1 1/1 3", "db m2 0/1... <none>"]
        );
        assert_eq!(
            printed(&responses, true, true),
            ["NAMESPACE NAME CLUSTER READY RESTARTS NODE", "shop web m1 1/1 3 n1", "shop db m2 0/1... <none> n2"]
        );
    }

    #[test]
    fn fleet_tables_contain_the_cluster() {
        let fleet_table = table(
            &[("Name", 0), ("Cluster", 0), ("Age", 0)],
            vec![json!(["web", "m1", "5s"]), json!(["web", "m2", null])],
        );
        assert_eq!(
            printed(&[(None, fleet_table.clone())], false, false),
            ["NAME CLUSTER AGE", "web m1 5s", "web m2 <none>"]
        );
        // Only the first table of a watch has columns.
        let read = |response: &Value, previous_columns: &[Column]| {
            Table::parse(response, None, previous_columns, &ExtraColumns::default(), NOW)
        };
        let first = read(&fleet_table, &[]);
        let later = read(&table(&[], vec![json!(["web", "m1", "6s"])]), &first.columns);
        let layout = Layout::default().with_columns(&first.columns);
        assert_eq!(layout.row(&later.columns, &later.rows[0], ""), ["web", "m1", "6s"]);
        assert_eq!(read(&table(&[], vec![json!([])]), &first.columns).rows, []);
    }

    #[test]
    fn a_column_named_cluster_is_kept() {
        let backups = table(&[("Name", 0), ("Cluster", 0)], vec![json!(["nightly", "db-1"])]);
        assert_eq!(printed(&[(Some("m1"), backups)], false, false), ["NAME CLUSTER CLUSTER", "nightly m1 db-1"]);
    }

    #[test]
    fn kinds_and_events_are_optional_columns() {
        let printed =
            Table::parse(&table(&[("Name", 0)], vec![json!(["web"])]), Some("m1"), &[], &ExtraColumns::default(), NOW);
        let layout = Layout { has_event: true, kind: Some("deployment.apps".to_owned()), ..Layout::default() };
        let layout = layout.with_columns(&printed.columns);
        assert_eq!(layout.header(), ["EVENT", "NAME", "CLUSTER"]);
        assert_eq!(layout.row(&printed.columns, &printed.rows[0], "ADDED"), ["ADDED", "deployment.apps/web", "m1"]);
    }

    #[test]
    fn objects_without_tables_show_names() {
        let object =
            json!({"kind": "PodMetrics", "metadata": {"name": "web", "creationTimestamp": "1969-12-31T23:59:00Z"}});
        let list = json!({"kind": "PodMetricsList", "items": [object]});
        for response in [object, list] {
            assert_eq!(printed(&[(Some("m1"), response)], false, false), ["NAME CLUSTER AGE", "web m1 60s"]);
        }
    }
}
