//! `history`: the revisions of an object that are kept, newest first; with `seq` the manifest of one.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_index::Object;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::call::{SearchCall, typed_response};
use super::definition;
use super::hits::time;
use super::object::{find_revision, get_revisions};
use super::openapi::{Parameter, ResponseSchemas, name_of};
use super::operation::SearchOperation;
use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{self, JSON, body, boolean, integer, list, object, string};
use crowsnest_process::reply::json as json_response;

pub(super) struct History;

impl SearchOperation for History {
    const DEFINITION: Definition = definition("history", "ObjectHistory");
    const SUMMARY: &str =
        "The revisions of an object that are kept, newest first; with seq, the manifest of one revision.";
    const PARAMETERS: &[Parameter] = &[Parameter::integer("seq", "The seq of a revision.")];
    const NAMES_OBJECT: bool = true;
    const RESPONSES: ResponseSchemas = &[(JSON, &["ObjectHistory", "Object"])];

    fn add_schemas(document: &mut Document) {
        let version = json!({"seq": integer(), "resourceVersion": string(), "generation": integer(), "from": schema::date_time(),
            "until": schema::date_time(), "deleted": boolean()});
        let version = object(version, &["until", "deleted"]);
        let history = json!({"keptForSeconds": integer(), "versions": list(version)});
        document.add_schema(name_of("ObjectHistory"), body("ObjectHistory", history, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, .. } = call;
        let key = parameters.object()?;
        let revisions = get_revisions(&running.cache, user, &key).await?;
        if let Some(seq) = parameters.number("seq")? {
            let object = find_revision(&revisions, &seq.to_string(), &key)?;
            return Ok(json_response(StatusCode::OK, &object.parse().map_err(ApiError::internal)?));
        }
        let entry = |object: &Object, until: Option<i64>, deleted: bool| {
            let record = &object.record;
            let mut entry = Map::new();
            entry.insert("seq".into(), json!(record.seq));
            entry.insert("resourceVersion".into(), json!(record.resource_version));
            entry.insert("generation".into(), json!(record.generation));
            entry.insert("from".into(), time(Some(record.changed_at / 1000)));
            if let Some(until) = until {
                entry.insert("until".into(), time(Some(until / 1000)));
            }
            if deleted {
                entry.insert("deleted".into(), json!(true));
            }
            Value::Object(entry)
        };
        let current = revisions.current.iter().map(|object| entry(object, None, false));
        let earlier =
            revisions.versions.iter().map(|version| entry(&version.object, Some(version.ended_at), version.deleted));
        let retention_seconds = running.cache.options().history.max_age.as_secs();
        let versions: Vec<Value> = current.chain(earlier).collect();
        typed_response("ObjectHistory", &json!({"versions": versions, "keptForSeconds": retention_seconds}))
    }
}
