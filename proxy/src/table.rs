//! Tables of cached objects for `kubectl get`.
//!
//! Kinds of the core group have the columns of a cluster and a column with the cluster's name. Other kinds have
//! Karmada's columns: name and creation time.

use crowsnest_apimachinery::negotiate::{self, Offer};
use crowsnest_apimachinery::printers::columns::{self, Doc};
use crowsnest_apimachinery::request::Query;
use crowsnest_index::Object;
use http::{HeaderMap, header};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Error;
use crate::object::{Form, mark};

/// The response form that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Objects(Form),
    Table(Include),
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

impl Shape {
    /// The form of the first clause of `Accept` that can be served. For a watch, the metadata forms of lists and of
    /// objects are equivalent.
    pub fn of(headers: &HeaderMap, query: &Query, content: Content) -> Result<Self, Error> {
        let offer = match content {
            Content::Object | Content::List => Offer::Merged,
            Content::Watch => Offer::MergedStream,
        };
        match accepted(headers, offer)? {
            negotiate::Shape::Table => Ok(Self::Table(match query.get("includeObject") {
                Some("None") => Include::None,
                Some("Object") => Include::Object,
                _ => Include::Metadata,
            })),
            negotiate::Shape::PartialMetadata if content == Content::List => {
                Err(Error::NotAcceptable(negotiate::list_not_acceptable("unstructured.UnstructuredList")))
            }
            negotiate::Shape::PartialMetadataList if content == Content::Object => {
                Err(Error::NotAcceptable(negotiate::object_not_acceptable("unstructured.Unstructured")))
            }
            negotiate::Shape::PartialMetadata | negotiate::Shape::PartialMetadataList => {
                Ok(Self::Objects(Form::Metadata))
            }
            negotiate::Shape::Object | negotiate::Shape::Aggregated { .. } => Ok(Self::Objects(Form::Whole)),
        }
    }
}

/// The form that a client accepts among those offered.
pub(crate) fn accepted(headers: &HeaderMap, offer: Offer) -> Result<negotiate::Shape, Error> {
    let clauses: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let accepted = negotiate::accept(Some(&clauses.join(",")), offer).map_err(Error::NotAcceptable)?;
    Ok(accepted.shape)
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
    let own = columns::columns(group, kind).iter().map(|column| {
        let description = match column.doc {
            Doc::Text(text) => text,
            Doc::Field(..) => column.name,
        };
        json!({
            "name": column.name, "type": column.kind, "format": column.format, "description": description,
            "priority": column.priority,
        })
    });
    let mut columns: Vec<Value> = own.collect();
    let cluster = json!({"name": "Cluster", "type": "string", "format": "", "description": "The member cluster the object is in.", "priority": 0});
    columns.insert(1.min(columns.len()), cluster);
    Value::Array(columns)
}

/// One row. `now` is in Unix seconds.
pub fn row(object: &Object, version: &str, include: Include, now: i64) -> Result<Vec<u8>, Error> {
    let record = &object.record;
    let cluster = record.key.cluster().as_str();
    let cells: Vec<Value> = if record.key.resource().group.is_empty() {
        let mut cells: Vec<Value> = record.printed()?.cells.iter().map(|cell| cell.render(now)).collect();
        cells.insert(1.min(cells.len()), cluster.into());
        cells
    } else {
        let created = record.created.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        vec![json!(&*record.key.name), created.map_or(Value::Null, |at| at.to_string().into())]
    };
    let form = match include {
        Include::None => return Ok(serde_json::to_vec(&json!({"cells": cells, "object": null}))?),
        Include::Metadata => Form::Metadata,
        Include::Object => Form::Whole,
    };
    let marked = mark(&object.body, cluster, Some(version), form)?;
    let raw: &RawValue = serde_json::from_slice(&marked)?;
    #[derive(serde::Serialize)]
    struct Row<'a> {
        cells: Vec<Value>,
        object: &'a RawValue,
    }
    Ok(serde_json::to_vec(&Row { cells, object: raw })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Shape = Shape::Objects(Form::Whole);
    const METADATA: Shape = Shape::Objects(Form::Metadata);
    const TABLE: Shape = Shape::Table(Include::Metadata);

    #[rstest::rstest]
    #[case::nothing("", [Some(WHOLE); 3])]
    #[case::anything("*/*", [Some(WHOLE); 3])]
    #[case::json("application/json", [Some(WHOLE); 3])]
    #[case::json_beside_protobuf("application/vnd.kubernetes.protobuf,application/json", [Some(WHOLE); 3])]
    #[case::table("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", [Some(TABLE); 3])]
    #[case::old_table("application/json;as=Table;g=meta.k8s.io;v=v1beta1,application/json", [Some(WHOLE); 3])]
    #[case::old_table_alone("application/json;as=Table;g=meta.k8s.io;v=v1beta1", [None; 3])]
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
    fn accepted_forms(#[case] accept: &str, #[case] expected: [Option<Shape>; 3]) {
        let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
        for (content, expected) in [Content::Object, Content::List, Content::Watch].into_iter().zip(expected) {
            let shape = Shape::of(&headers, &Query::parse(None), content);
            let refused = shape.as_ref().err().map(|error| error.reason().0.as_u16());
            assert_eq!((shape.ok(), refused), (expected, expected.is_none().then_some(406)), "{content:?}");
        }
    }
}
