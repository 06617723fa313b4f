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
    const PARAMETERS: &[Parameter] = &[("seq", "integer", "The seq of a revision.", false)];
    const NAMES_OBJECT: bool = true;
    const RESPONSES: ResponseSchemas = &[(JSON, &["ObjectHistory", "Object"])];

    fn schemas(document: &mut Document) {
        let version = json!({"seq": integer(), "resourceVersion": string(), "generation": integer(), "from": schema::date_time(),
            "until": schema::date_time(), "deleted": boolean()});
        let version = object(version, &["until", "deleted"]);
        let history = json!({"keptForSeconds": integer(), "versions": list(version)});
        document.schema(name_of("ObjectHistory"), body("ObjectHistory", history, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, .. } = call;
        let key = parameters.object()?;
        let revisions = get_revisions(&running.cache, user, &key).await?;
        if let Some(seq) = parameters.number("seq")? {
            let object = find_revision(&revisions, &seq.to_string(), &key)?;
            return Ok(json_response(StatusCode::OK, &object.parse().map_err(ApiError::internal)?));
        }
        let line = |object: &Object, until: Option<i64>, deleted: bool| {
            let record = &object.record;
            let mut line = Map::new();
            line.insert("seq".into(), json!(record.seq));
            line.insert("resourceVersion".into(), json!(record.resource_version));
            line.insert("generation".into(), json!(record.generation));
            line.insert("from".into(), time(Some(record.changed_at / 1000)));
            if let Some(until) = until {
                line.insert("until".into(), time(Some(until / 1000)));
            }
            if deleted {
                line.insert("deleted".into(), json!(true));
            }
            Value::Object(line)
        };
        let now = revisions.current.iter().map(|object| line(object, None, false));
        let before =
            revisions.versions.iter().map(|version| line(&version.object, Some(version.ended_at), version.deleted));
        let retention_seconds = running.cache.options().history.max_age.as_secs();
        let versions: Vec<Value> = now.chain(before).collect();
        typed_response("ObjectHistory", &json!({"versions": versions, "keptForSeconds": retention_seconds}))
    }
}
