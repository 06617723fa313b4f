//! Rows of cached objects, as `kubectl get` asks for them.
//!
//! Kinds of the core group print as a cluster prints them, with a column that names the cluster. Other kinds have
//! Karmada's columns: name and creation time.

use crowsnest_apimachinery::printers::columns::{self, Doc};
use crowsnest_index::Object;
use http::{HeaderMap, header};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Error;
use crate::object::{Form, mark};

/// What a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Objects(Form),
    Table(Include),
}

/// `includeObject` of a table request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Shape {
    /// The first media type we can give.
    pub fn of(headers: &HeaderMap, include: &str) -> Self {
        let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for media in accepts.flat_map(|accept| accept.split(',')) {
            let parameters: Vec<&str> = media.split(';').map(str::trim).collect();
            if parameters[0] != "application/json"
                || (parameters.contains(&"as=Table") && !parameters.contains(&"v=v1"))
            {
                continue;
            }
            let shape = parameters.iter().find_map(|parameter| match *parameter {
                "as=Table" => Some(Self::Table(match include {
                    "None" => Include::None,
                    "Object" => Include::Object,
                    _ => Include::Metadata,
                })),
                "as=PartialObjectMetadataList" | "as=PartialObjectMetadata" => Some(Self::Objects(Form::Metadata)),
                _ => None,
            });
            return shape.unwrap_or(Self::Objects(Form::Whole));
        }
        Self::Objects(Form::Whole)
    }
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

    #[rstest::rstest]
    #[case("application/json", Shape::Objects(Form::Whole))]
    #[case("application/vnd.kubernetes.protobuf,application/json", Shape::Objects(Form::Whole))]
    #[case("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Shape::Table(Include::Metadata))]
    #[case("application/json;as=Table;g=meta.k8s.io;v=v1beta1,application/json", Shape::Objects(Form::Whole))]
    #[case("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Shape::Objects(Form::Metadata))]
    #[case("", Shape::Objects(Form::Whole))]
    fn accepted_forms(#[case] accept: &str, #[case] expected: Shape) {
        let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
        assert_eq!(Shape::of(&headers, ""), expected);
    }
}
