//! Tables for `kubectl get`, built from cached objects or merged from the tables of members.
//!
//! Cached objects of the core group have the columns that a cluster prints and a column with the cluster's name. Other
//! kinds have Karmada's columns: name and creation time. Tables merged from members have the members' columns and a
//! column with the cluster's name.

use crowsnest_apimachinery::content_negotiation::{self, Offer, Representation};
use crowsnest_apimachinery::printers::columns::{self, ColumnDescription};
use crowsnest_apimachinery::request::Query;
use crowsnest_index::Record;
use http::{HeaderMap, header};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Error;
use crate::object::{Form, MetaVersion, annotate};

/// The response form that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Objects(Form),
    Table(TableForm),
}

/// Form of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableForm {
    pub include: Include,
    pub meta: MetaVersion,
}

/// Content of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Object,
    List,
    Watch,
}

/// `includeObject` of a table request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl TableForm {
    /// Form of the objects in rows; `None` if rows have no objects.
    pub fn object_form(self) -> Option<Form> {
        match self.include {
            Include::None => None,
            Include::Metadata => Some(Form::Metadata(self.meta)),
            Include::Object => Some(Form::Full),
        }
    }

    /// The fields of a table without its rows.
    pub fn head(self, metadata: Value, columns: Option<Value>) -> Value {
        json!({
            "kind": "Table", "apiVersion": self.meta.api_version(), "metadata": metadata, "columnDefinitions": columns,
        })
    }
}

#[cfg(test)]
impl From<Include> for TableForm {
    fn from(include: Include) -> Self {
        Self { include, meta: MetaVersion::V1 }
    }
}

impl Shape {
    /// The form of the first clause of `Accept` that can be served. For a watch, the metadata forms of lists and of
    /// objects are equivalent.
    pub fn from_accept_header(headers: &HeaderMap, query: &Query, content: Content) -> Result<Self, Error> {
        let offer = match content {
            Content::Object | Content::List => Offer::Merged,
            Content::Watch => Offer::MergedStream,
        };
        let Representation { shape, is_beta, .. } = negotiate_representation(headers, offer)?;
        let meta = if is_beta { MetaVersion::V1beta1 } else { MetaVersion::V1 };
        match shape {
            content_negotiation::Shape::Table => {
                let include = match query.get("includeObject") {
                    Some("None") => Include::None,
                    Some("Object") => Include::Object,
                    _ => Include::Metadata,
                };
                Ok(Self::Table(TableForm { include, meta }))
            }
            content_negotiation::Shape::PartialMetadata if content == Content::List => {
                Err(Error::NotAcceptable(content_negotiation::list_not_acceptable("unstructured.UnstructuredList")))
            }
            content_negotiation::Shape::PartialMetadataList if content == Content::Object => {
                Err(Error::NotAcceptable(content_negotiation::object_not_acceptable("unstructured.Unstructured")))
            }
            content_negotiation::Shape::PartialMetadata | content_negotiation::Shape::PartialMetadataList => {
                Ok(Self::Objects(Form::Metadata(meta)))
            }
            content_negotiation::Shape::Object | content_negotiation::Shape::AggregatedDiscovery { .. } => {
                Ok(Self::Objects(Form::Full))
            }
        }
    }
}

/// The form that a client accepts among those offered.
fn negotiate_representation(headers: &HeaderMap, offer: Offer) -> Result<Representation, Error> {
    let clauses: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    content_negotiation::choose_representation(Some(&clauses.join(",")), offer).map_err(Error::NotAcceptable)
}

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// `columnDefinitions` of a kind.
pub fn columns(group: &str, kind: &str) -> Value {
    if !group.is_empty() {
        return json!([
            {"name": "Name", "type": "string", "format": "name", "description": NAME, "priority": 0},
            {"name": "Created At", "type": "date", "format": "", "description": CREATED, "priority": 0},
        ]);
    }
    let resource_columns = columns::columns(group, kind).iter().map(|column| {
        let description = match column.description {
            ColumnDescription::Text(text) => text,
            ColumnDescription::Field(..) => column.name,
        };
        json!({
            "name": column.name, "type": column.value_type, "format": column.format, "description": description,
            "priority": column.priority,
        })
    });
    Value::Array(insert_cluster(resource_columns.collect(), cluster_column()))
}

fn cluster_column() -> Value {
    json!({"name": "Cluster", "type": "string", "format": "", "description": "The member cluster the object is in.", "priority": 0})
}

/// Inserts the column or cell of the cluster in second place.
fn insert_cluster(mut cells: Vec<Value>, cluster: Value) -> Vec<Value> {
    cells.insert(1.min(cells.len()), cluster);
    cells
}

/// The columns of a member's table and the column of the cluster.
pub fn merged_columns(columns: &[Value]) -> Value {
    Value::Array(insert_cluster(columns.to_vec(), cluster_column()))
}

/// Cells of a member's row in the order of `merged_columns`, the columns of the merged table. Cells are matched by the names of
/// their columns, since members of different versions have different columns; missing ones are null.
pub fn merged_cells(cells: Vec<Value>, columns: &[Value], merged_columns: &[Value], cluster: &str) -> Vec<Value> {
    let names = |columns: &[Value]| columns.iter().map(|column| column["name"].clone()).collect::<Vec<Value>>();
    let (member_names, mut merged_names) = (names(columns), names(merged_columns));
    // Members do not have the second column, that of the cluster.
    if merged_names.len() > 1 {
        merged_names.remove(1);
    }
    let cells = match member_names == merged_names {
        true => cells,
        false => {
            let cell = |name: &Value| {
                member_names.iter().position(|member_name| member_name == name).and_then(|at| cells.get(at).cloned())
            };
            merged_names.iter().map(|name| cell(name).unwrap_or_default()).collect()
        }
    };
    insert_cluster(cells, cluster.into())
}

/// An encoded row. `object` is None if it was not requested.
pub fn encode_row(cells: Vec<Value>, object: Option<&[u8]>) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(serde::Serialize)]
    struct Row<'a> {
        cells: Vec<Value>,
        object: Option<&'a RawValue>,
    }
    let object = object.map(serde_json::from_slice).transpose()?;
    serde_json::to_vec(&Row { cells, object })
}

/// An encoded row of a cached object. Its body is only used if the rows of the table have objects.
pub fn row(record: &Record, body: &[u8], version: &str, table: TableForm, now_seconds: i64) -> Result<Vec<u8>, Error> {
    let cluster = record.key.cluster().as_str();
    let cells: Vec<Value> = if record.key.resource().group.is_empty() {
        let cells = record.printed_object()?.cells.iter().map(|cell| cell.render(now_seconds)).collect();
        insert_cluster(cells, cluster.into())
    } else {
        let created = record.created.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        vec![json!(&*record.key.name), created.map_or(Value::Null, |at| at.to_string().into())]
    };
    let object = match table.object_form() {
        Some(form) => Some(annotate(body, cluster, Some(version), form)?),
        None => None,
    };
    Ok(encode_row(cells, object.as_deref())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Shape = Shape::Objects(Form::Full);
    const METADATA: Shape = Shape::Objects(Form::Metadata(MetaVersion::V1));
    const TABLE: Shape = Shape::Table(TableForm { include: Include::Metadata, meta: MetaVersion::V1 });
    const OLD_METADATA: Shape = Shape::Objects(Form::Metadata(MetaVersion::V1beta1));
    const OLD_TABLE: Shape = Shape::Table(TableForm { include: Include::Metadata, meta: MetaVersion::V1beta1 });

    #[rstest::rstest]
    #[case::no_clause("", [Some(FULL); 3])]
    #[case::anything("*/*", [Some(FULL); 3])]
    #[case::json("application/json", [Some(FULL); 3])]
    #[case::json_and_protobuf("application/vnd.kubernetes.protobuf,application/json", [Some(FULL); 3])]
    #[case::table("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", [Some(TABLE); 3])]
    #[case::old_table("application/json;as=Table;g=meta.k8s.io;v=v1beta1,application/json", [Some(OLD_TABLE); 3])]
    #[case::old_table_alone("application/json;as=Table;g=meta.k8s.io;v=v1beta1", [Some(OLD_TABLE); 3])]
    #[case::unknown_table("application/json;as=Table;g=meta.k8s.io;v=v2,application/json", [Some(FULL); 3])]
    #[case::unknown_table_alone("application/json;as=Table;g=meta.k8s.io;v=v2", [None; 3])]
    #[case::old_metadata_of_lists(
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1",
        [None, Some(OLD_METADATA), Some(OLD_METADATA)]
    )]
    #[case::old_metadata_of_objects(
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1",
        [Some(OLD_METADATA), None, Some(OLD_METADATA)]
    )]
    #[case::metadata_of_lists(
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", [None, Some(METADATA), Some(METADATA)]
    )]
    #[case::metadata_of_objects(
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", [Some(METADATA), None, Some(METADATA)]
    )]
    #[case::metadata_client(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        [None, Some(METADATA), Some(METADATA)]
    )]
    #[case::metadata_in_protobuf_alone(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", [None; 3]
    )]
    #[case::by_quality(
        "application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io", [Some(TABLE); 3]
    )]
    #[case::protobuf("application/vnd.kubernetes.protobuf", [None; 3])]
    #[case::yaml("application/yaml", [None; 3])]
    #[case::another_type("text/plain", [None; 3])]
    fn the_first_form_that_can_be_served_is_negotiated(#[case] accept: &str, #[case] expected: [Option<Shape>; 3]) {
        let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
        for (content, expected) in [Content::Object, Content::List, Content::Watch].into_iter().zip(expected) {
            let shape = Shape::from_accept_header(&headers, &Query::parse(None), content);
            let refused = shape.as_ref().err().map(|error| error.code_and_reason().0.as_u16());
            assert_eq!((shape.ok(), refused), (expected, expected.is_none().then_some(406)), "{content:?}");
        }
    }

    #[rstest::rstest]
    #[case::same(&["Name", "Ready", "Age"], json!(["a", "1/1", "5s"]), json!(["a", "m1", "1/1", "5s"]))]
    #[case::another_order(&["Name", "Age", "Ready"], json!(["a", "5s", "1/1"]), json!(["a", "m1", "1/1", "5s"]))]
    #[case::more(&["Name", "IP", "Ready", "Age"], json!(["a", "::1", "1/1", "5s"]), json!(["a", "m1", "1/1", "5s"]))]
    #[case::fewer(&["Name", "Age"], json!(["a", "5s"]), json!(["a", "m1", null, "5s"]))]
    #[case::short_row(&["Age", "Name"], json!(["5s"]), json!([null, "m1", null, "5s"]))]
    fn rows_of_members_have_the_merged_columns(
        #[case] columns: &[&str],
        #[case] cells: Value,
        #[case] expected: Value,
    ) {
        let column = |name: &&str| json!({"name": name, "type": "string"});
        let merged = merged_columns(&["Name", "Ready", "Age"].iter().map(column).collect::<Vec<_>>());
        let columns: Vec<Value> = columns.iter().map(column).collect();
        let cells = cells.as_array().unwrap().clone();
        assert_eq!(json!(merged_cells(cells, &columns, merged.as_array().unwrap(), "m1")), expected);
    }

    #[test]
    fn a_row_without_an_object_has_a_null_object() {
        let row = encode_row(vec!["a".into()], None).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&row).unwrap(), json!({"cells": ["a"], "object": null}));
    }
}
