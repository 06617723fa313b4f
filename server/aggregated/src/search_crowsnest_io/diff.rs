//! `diff`: differences between two revisions of an object (`from`, `to`: a seq or `now`; by default the last change),
//! or between it and the object of that name in another cluster (`with`).

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_index::Object;
use serde_json::{Value, json};

use super::call::{SearchCall, typed_response};
use super::definition;
use super::hits::identity;
use super::object::{find_revision, get_revisions};
use super::openapi::{self, Parameter, name_of, ref_to};
use super::operation::SearchOperation;

use crate::resource::Definition;
use crate::resource::openapi::Document;
use crate::resource::schema::{body, boolean, integer, list, object, string};

pub(super) struct Diff;

impl SearchOperation for Diff {
    const DEFINITION: Definition = definition("diff", "ObjectDiff");
    const SUMMARY: &str = "Differences between two revisions of an object, or between it and the object of the same name in another cluster.";
    const PARAMETERS: &[Parameter] = &[
        Parameter::string("from", "Older revision: a seq, or now (default: the previous revision)."),
        Parameter::string("to", "Newer revision: a seq, or now."),
        Parameter::string("with", "Another cluster."),
    ];
    const NAMES_OBJECT: bool = true;

    fn add_schemas(document: &mut Document) {
        let mut side = openapi::identity();
        side["seq"] = integer();
        side["resourceVersion"] = string();
        document.add_schema(name_of("Side"), object(side, &["namespace"]));
        let difference = object(json!({"path": string(), "before": {}, "after": {}}), &["before", "after"]);
        let fields =
            json!({"from": ref_to("Side"), "to": ref_to("Side"), "more": boolean(), "differences": list(difference)});
        document.add_schema(name_of("ObjectDiff"), body("ObjectDiff", fields, &[]));
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, .. } = call;
        let key = parameters.object()?;
        let revisions = get_revisions(&running.cache, user, &key).await?;
        let (from, to) = match parameters.get("with") {
            Some(_) => {
                let mut compared_key = key.clone();
                compared_key.collection.cluster = parameters.cluster("with")?;
                let compared_revisions = get_revisions(&running.cache, user, &compared_key).await?;
                (
                    find_revision(&revisions, "now", &key)?.clone(),
                    find_revision(&compared_revisions, "now", &compared_key)?.clone(),
                )
            }
            None => {
                let last = revisions.versions.first().map(|version| version.object.record.seq.to_string());
                let from = parameters.get("from").map(str::to_owned).or(last).unwrap_or_else(|| "now".to_owned());
                let to = parameters.get("to").unwrap_or("now");
                (find_revision(&revisions, &from, &key)?.clone(), find_revision(&revisions, to, &key)?.clone())
            }
        };
        let diff = crowsnest_search::Diff::between(&from, &to).map_err(ApiError::internal)?;
        let side = |object: &Object| {
            let mut side = identity(object);
            side.insert("seq".into(), json!(object.record.seq));
            side.insert("resourceVersion".into(), json!(object.record.resource_version));
            Value::Object(side)
        };
        typed_response(
            "ObjectDiff",
            &json!({"from": side(&from), "to": side(&to), "differences": diff.differences, "more": diff.has_more}),
        )
    }
}
