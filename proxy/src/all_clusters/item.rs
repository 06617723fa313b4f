//! Objects and rows of members' lists and watches.

use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Error;
use crate::merged::Heading;
use crate::object::{annotate, compact, own_version};
use crate::table::{Shape, encode_row, merged_cells, merged_columns};

/// An object of a member.
#[derive(Debug)]
pub struct Item {
    pub cluster: ClusterName,
    /// Encoded object; empty for a row without one.
    body: Vec<u8>,
    row: Option<Row>,
}

/// A row of a member's table.
#[derive(Debug)]
struct Row {
    cells: Vec<Value>,
    columns: Arc<Vec<Value>>,
}

impl Item {
    /// The object's resourceVersion.
    pub fn own_version(&self) -> Option<String> {
        own_version(&self.body)
    }

    /// The object or row with the cluster annotation and `version` as its resourceVersion; `None` keeps it.
    /// The columns of a merged table are those of its first row.
    pub fn encode(&self, shape: Shape, heading: &mut Heading, version: Option<&str>) -> Result<Vec<u8>, Error> {
        let cluster = self.cluster.as_str();
        match (shape, &self.row) {
            (Shape::Objects(form), _) => Ok(annotate(&self.body, cluster, version, form)?),
            (Shape::Table(_), None) => Ok(encode_row(Vec::new(), None)?),
            (Shape::Table(table), Some(row)) => {
                let columns = heading.columns.get_or_insert_with(|| merged_columns(&row.columns));
                let columns = columns.as_array().map(Vec::as_slice).unwrap_or_default();
                let cells = merged_cells(row.cells.clone(), &row.columns, columns, cluster);
                let form = table.object_form().filter(|_| !self.body.is_empty());
                let object = form.map(|form| annotate(&self.body, cluster, version, form)).transpose()?;
                Ok(encode_row(cells, object.as_deref())?)
            }
        }
    }
}

/// A list or table of a member, or an event's table.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct Document {
    pub kind: String,
    pub api_version: String,
    pub metadata: ListMetadata,
    items: Option<Vec<Box<RawValue>>>,
    rows: Option<Vec<MemberRow>>,
    pub column_definitions: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMetadata {
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub token: String,
}

#[derive(Deserialize)]
struct MemberRow {
    #[serde(default)]
    cells: Option<Vec<Value>>,
    #[serde(default)]
    object: Option<Box<RawValue>>,
}

impl Document {
    /// The items or rows. Only the first table of a watch has column definitions: `columns` contains those of the earlier
    /// tables of this member and is replaced by those of this table.
    pub fn into_items(self, cluster: &ClusterName, columns: &mut Arc<Vec<Value>>) -> Vec<Item> {
        if let Some(definitions) = self.column_definitions.filter(|definitions| !definitions.is_empty()) {
            *columns = Arc::new(definitions);
        }
        let objects = self.items.into_iter().flatten().map(|object| Item::from_object(cluster, &object));
        let rows = self.rows.into_iter().flatten().map(|MemberRow { cells, object }| Item {
            row: Some(Row { cells: cells.unwrap_or_default(), columns: Arc::clone(columns) }),
            body: object.map(|object| compact(object.get().as_bytes()).into_owned()).unwrap_or_default(),
            cluster: cluster.clone(),
        });
        objects.chain(rows).collect()
    }
}

impl Item {
    /// Adds `kind` and `apiVersion` to an object without a kind: the items of most lists have none, but the objects of
    /// watch events do.
    pub fn set_kind(&mut self, api_version: &str, kind: &str) {
        #[derive(Deserialize)]
        struct Kind {
            kind: Option<serde::de::IgnoredAny>,
        }
        let has_kind = serde_json::from_slice::<Kind>(&self.body).is_ok_and(|object| object.kind.is_some());
        if has_kind || self.body.len() < 2 {
            return;
        }
        let head = json!({"kind": kind, "apiVersion": api_version}).to_string();
        let members = self.body.split_off(1);
        self.body = head.into_bytes();
        self.body.pop();
        if members != b"}" {
            self.body.push(b',');
        }
        self.body.extend_from_slice(&members);
    }

    pub fn from_object(cluster: &ClusterName, object: &RawValue) -> Self {
        let body = compact(object.get().as_bytes()).into_owned();
        Self { cluster: cluster.clone(), body, row: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Form, MetaVersion};
    use crate::table::Include;

    const ANNOTATION: &str = "resource.karmada.io/cached-from-cluster";

    fn items(document: &Value, columns: &mut Arc<Vec<Value>>) -> Vec<Item> {
        let document: Document = serde_json::from_str(&document.to_string()).unwrap();
        document.into_items(&ClusterName::parse("m1").unwrap(), columns)
    }

    fn encode(item: &Item, shape: Shape, heading: &mut Heading) -> Value {
        serde_json::from_slice(&item.encode(shape, heading, Some("v")).unwrap()).unwrap()
    }

    #[rstest::rstest]
    #[case::complete(Form::Full, json!({"data": {"k": "v"}}))]
    #[case::metadata(Form::Metadata(MetaVersion::V1), json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}))]
    fn objects_have_the_requested_form(#[case] form: Form, #[case] mut expected: Value) {
        let list = json!({"kind": "ConfigMapList", "items": [
            {"metadata": {"name": "a", "resourceVersion": "7"}, "data": {"k": "v"}},
        ]});
        let items = items(&list, &mut Arc::default());
        assert_eq!(items[0].own_version().as_deref(), Some("7"));
        expected["metadata"] = json!({"name": "a", "resourceVersion": "v", "annotations": {ANNOTATION: "m1"}});
        assert_eq!(encode(&items[0], Shape::Objects(form), &mut Heading::default()), expected);
    }

    #[test]
    fn rows_keep_the_columns_of_earlier_tables() {
        let object = json!({"kind": "PartialObjectMetadata", "metadata": {"name": "a", "resourceVersion": "7"}});
        let row = json!({"cells": ["a", 1], "object": object});
        let columns = json!([{"name": "Name"}, {"name": "Data"}]);
        let (mut columns_so_far, mut heading) = (Arc::default(), Heading::default());
        for columns in [columns, Value::Null] {
            let items = items(&json!({"columnDefinitions": columns, "rows": [row]}), &mut columns_so_far);
            let row = encode(&items[0], Shape::Table(Include::Metadata.into()), &mut heading);
            assert_eq!(row["cells"], json!(["a", "m1", 1]));
            assert_eq!(row["object"]["metadata"]["annotations"], json!({ANNOTATION: "m1"}));
            let row = encode(&items[0], Shape::Table(Include::None.into()), &mut heading);
            assert_eq!(row, json!({"cells": ["a", "m1", 1], "object": null}));
        }
        let names: Vec<Value> =
            heading.columns.unwrap().as_array().unwrap().iter().map(|column| column["name"].clone()).collect();
        assert_eq!(names, ["Name", "Cluster", "Data"]);
    }

    #[rstest::rstest]
    #[case(json!({"items": null}))]
    #[case(json!({"rows": null, "columnDefinitions": null}))]
    #[case(json!({}))]
    fn lists_without_items_are_empty(#[case] list: Value) {
        assert!(items(&list, &mut Arc::default()).is_empty());
    }

    #[rstest::rstest]
    #[case(json!({"metadata": {"name": "a"}}), json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}))]
    #[case(json!({"kind": "X", "metadata": {}}), json!({"kind": "X", "metadata": {}}))]
    #[case(json!({}), json!({"kind": "Pod", "apiVersion": "v1"}))]
    fn objects_of_lists_get_a_kind(#[case] object: Value, #[case] expected: Value) {
        let mut item = items(&json!({"items": [object]}), &mut Arc::default()).remove(0);
        item.set_kind("v1", "Pod");
        assert_eq!(serde_json::from_slice::<Value>(&item.body).unwrap(), expected);
    }
}
