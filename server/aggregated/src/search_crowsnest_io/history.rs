//! `history`: the revisions of an object that are kept, newest first; with `seq` the manifest of one.

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_index::Object;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::call::{Call, typed};
use super::definition;
use super::hits::time;
use super::object::{past, version};
use super::openapi::{Operation, named};
use crate::request::context::RequestContext;
use crate::resource::openapi::Document;
use crate::resource::schema::{self, JSON, body, flag, list, number, object, text};
use crate::resource::{Definition, Resource};
use crate::server::Aggregated;
use crowsnest_process::reply::json as json_response;

const OPERATION: Operation = Operation {
    summary: "The versions of an object that are kept, newest first; with seq the manifest of one.",
    parameters: &[("seq", "integer", "A version, by the change that began it.", false)],
    object: true,
    answers: &[(JSON, &["ObjectHistory", "Object"])],
};

pub(super) struct History;

#[async_trait]
impl Resource for History {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("history", "ObjectHistory");
        &DEFINITION
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        OPERATION.describe("history", document);
        let version = json!({"seq": number(), "resourceVersion": text(), "generation": number(), "from": schema::time(),
            "until": schema::time(), "deleted": flag()});
        let version = object(version, &["until", "deleted"]);
        let history = json!({"keptForSeconds": number(), "versions": list(version)});
        document.schema(named("ObjectHistory"), body("ObjectHistory", history, &[]));
    }

    async fn serve(
        &self,
        server: &Aggregated,
        context: &RequestContext,
        _request: Request,
    ) -> Result<Response, ApiError> {
        let Call { running, user, parameters } = Call::new(server, context).await?;
        let key = parameters.object()?;
        let past = past(&running.index, user, &key).await?;
        if let Some(seq) = parameters.number("seq")? {
            let object = version(&past, &seq.to_string(), &key)?;
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
        let now = past.now.iter().map(|object| line(object, None, false));
        let before = past.versions.iter().map(|version| line(&version.object, Some(version.ended_at), version.deleted));
        let kept = running.index.options().history.kept_for.as_secs();
        let versions: Vec<Value> = now.chain(before).collect();
        typed("ObjectHistory", &json!({"versions": versions, "keptForSeconds": kept}))
    }
}
