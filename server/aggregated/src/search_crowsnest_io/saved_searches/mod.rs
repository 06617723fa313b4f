//! `savedsearches`: queries that users save for themselves or for all. They are objects of the internal group in the
//! control plane; [`crowsnest_search::saved_search`] decides which users see and change one.

mod admission;
mod body;

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use axum::response::Response;
use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_UID};
use crowsnest_api::storage::{SAVED_SEARCHES, SavedSearchSpec, StoredSearch};
use crowsnest_apimachinery::request::options::{ListOptions, WriteOptions};
use crowsnest_apimachinery::request::path_segment;
use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_component_base::client_errors::api_error;
use crowsnest_search::saved_search::{self, AccessLevel, SavedSearchDraft, access};
use http::{Method, StatusCode};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use admission::SearchAdmission;
use body::{Patch, SavedSearchBody, list_options, write_options};

use super::openapi::{FAILURES, ROOT, name_of, ref_to};
use super::{API_VERSION, NAME as GROUP};
use crate::admission::with_warnings;
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, body, boolean, list, object, responses, status, string};
use crate::resource::{Call, Definition, Paths, Resource};
use crate::stored::forward::MAX_ATTEMPTS;
use crowsnest_process::reply::json as reply;

const PLURAL: &str = "savedsearches";

pub(super) struct SavedSearches;

impl Resource for SavedSearches {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            singular: "savedsearch",
            ..Definition::new(
                PLURAL,
                "SavedSearch",
                &["create", "delete", "get", "list", "patch", "update"],
                Paths::CollectionAndObject,
            )
        };
        &DEFINITION
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        for (path, item) in paths() {
            document.add_path(path, item);
        }
        let spec = json!({"title": string(), "query": string(), "description": string(), "shared": boolean(), "owner": string(),
            "syntax": string()});
        let spec = object(spec, &["description", "shared", "owner", "syntax"]);
        let saved = json!({"metadata": ref_to("Object"), "spec": spec});
        let optional = &["kind", "apiVersion", "metadata"];
        document.add_schema(name_of("SavedSearch"), body("SavedSearch", saved, optional));
        let all = json!({"metadata": ref_to("Object"), "items": list(ref_to("SavedSearch"))});
        document.add_schema(name_of("SavedSearchList"), body("SavedSearchList", all, &[]));
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let Call { server, context, request } = call;
            let query = context.query();
            let admission = SearchAdmission::new(server, context);
            let (api, caller) = (Api::all(server.control_plane.clone()), &context.user);
            let saved = SavedSearchHandler { api, caller, admission: Some(&admission) };
            let method = request.method().clone();
            let response = match (&method, context.name()) {
                _ if context.attributes.authz.verb == "watch" => {
                    Err(ApiError::method_not_supported(GROUP, PLURAL, "watch"))
                }
                (&Method::GET, "") => saved.list(&list_options(query)?).await,
                (&Method::GET, name) => Ok(reply(StatusCode::OK, &to_public(&saved.get_visible(name).await?))),
                (&Method::POST, "") => {
                    let options = write_options("CreateOptions", query)?;
                    saved.create(SavedSearchBody::read(request, options.field_validation).await?, &options).await
                }
                (&Method::PUT, name) if !name.is_empty() => {
                    let options = write_options("UpdateOptions", query)?;
                    saved.replace(name, SavedSearchBody::read(request, options.field_validation).await?, &options).await
                }
                (&Method::PATCH, name) if !name.is_empty() => {
                    let options = write_options("PatchOptions", query)?;
                    saved.patch(name, &Patch::read(request).await?, &options).await
                }
                (&Method::DELETE, name) if !name.is_empty() => {
                    saved.delete(name, body::delete_params(request, query).await?).await
                }
                _ => Err(ApiError::method_not_allowed()),
            };
            with_warnings(response, &admission.into_warnings())
        })
    }
}

/// Paths of the list and of one saved search.
fn paths() -> [(String, Value); 2] {
    let content = |schema: Value| json!({JSON: {"schema": schema}});
    let operation = |verb: &str, summary: &str, has_body: bool, (code, answer): (&str, Value)| {
        let mut operation = json!({"operationId": format!("savedsearches-{verb}"), "summary": summary, "tags": ["search"],
            "responses": responses(code, content(answer), &FAILURES)});
        if ["create", "patch", "update"].contains(&verb) {
            let conflict = json!({"description": "A search of this name exists, or it has changed since it was read.",
                "content": content(status())});
            operation["responses"]["409"] = conflict;
            for (code, description) in
                [("413", "The body is too large."), ("415", "The media type of the body is not accepted.")]
            {
                operation["responses"][code] = json!({"description": description, "content": content(status())});
            }
        }
        if verb == "patch" {
            let types = body::PATCH_MEDIA_TYPES.map(|media_type| (media_type.to_owned(), json!({"schema": {}})));
            operation["requestBody"] = json!({"required": true, "content": serde_json::Map::from_iter(types)});
        } else if has_body {
            operation["requestBody"] = json!({"required": true, "content": content(ref_to("SavedSearch"))});
        }
        operation
    };
    let (item, list) = (("200", ref_to("SavedSearch")), ("200", ref_to("SavedSearchList")));
    let all = json!({
        "get": operation("list", "Lists the saved searches that the caller can see: own and shared ones.", false, list),
        "post": operation("create", "Saves a search; the caller is its owner.", true, ("201", ref_to("SavedSearch"))),
    });
    let item = json!({
        "parameters": [{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}],
        "get": operation("get", "Reads a saved search.", false, item.clone()),
        "put": operation("update", "Replaces a saved search; allowed for its owner only.", true, item.clone()),
        "patch": operation("patch", "Patches a saved search; allowed for its owner only.", true, item),
        "delete": operation("delete", "Deletes a saved search; allowed for its owner only.", false, ("200", status())),
    });
    [(format!("{ROOT}/savedsearches"), all), (format!("{ROOT}/savedsearches/{{name}}"), item)]
}

/// Queries that the caller may use as `scope:`, by name and title.
pub(super) async fn scopes(
    control_plane: &kube::Client,
    caller: &UserInfo,
) -> Result<BTreeMap<String, String>, ApiError> {
    let saved = SavedSearchHandler { api: Api::all(control_plane.clone()), caller, admission: None };
    let all = saved.list_visible().await?.into_iter();
    Ok(saved_search::scopes(all.map(|search| (search.metadata.name.unwrap_or_default(), search.spec)), caller))
}

struct SavedSearchHandler<'r> {
    api: Api<StoredSearch>,
    caller: &'r UserInfo,
    /// Admission of writes; `None` for reads.
    admission: Option<&'r SearchAdmission<'r>>,
}

/// Translates an error of the control plane to the names of this group.
fn translate_error(error: kube::Error) -> ApiError {
    match error {
        kube::Error::Api(mut status) => {
            status.message = SAVED_SEARCHES.public_text(&status.message);
            if let Some(details) = &mut status.details {
                details.group = GROUP.to_owned();
                details.kind = SAVED_SEARCHES.public_text(&details.kind);
            }
            api_error(kube::Error::Api(status))
        }
        other => api_error(other),
    }
}

/// The search as clients see it. A migrated search has its original UID and creation time.
fn to_public(saved: &StoredSearch) -> Value {
    let annotations = saved.metadata.annotations.iter().flatten();
    let annotations: BTreeMap<&String, &String> =
        annotations.filter(|(key, _)| !body::is_migration_annotation(key)).collect();
    let mut metadata = json!({"name": saved.metadata.name, "uid": saved.metadata.uid,
        "resourceVersion": saved.metadata.resource_version, "creationTimestamp": saved.metadata.creation_timestamp});
    for (field, key) in [("uid", MIGRATED_UID), ("creationTimestamp", MIGRATED_CREATED)] {
        if let Some(value) = annotation_value(saved, key) {
            metadata[field] = value.into();
        }
    }
    if let Some(labels) = saved.metadata.labels.as_ref().filter(|labels| !labels.is_empty()) {
        metadata["labels"] = json!(labels);
    }
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    json!({"kind": "SavedSearch", "apiVersion": API_VERSION, "metadata": metadata, "spec": saved.spec})
}

fn annotation_value<'a>(saved: &'a StoredSearch, key: &str) -> Option<&'a str> {
    saved.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn validate_spec(draft: SavedSearchDraft, name: &str, owner: &str) -> Result<SavedSearchSpec, ApiError> {
    saved_search::validate(draft, owner).map_err(|errors| ApiError::invalid(GROUP, "SavedSearch", name, errors))
}

fn post_params(options: &WriteOptions) -> PostParams {
    PostParams { dry_run: options.dry_run, ..PostParams::default() }
}

impl SavedSearchHandler<'_> {
    fn may_see(&self, saved: &StoredSearch) -> bool {
        access(&saved.spec, self.caller) >= AccessLevel::Read
    }

    async fn list_visible(&self) -> Result<Vec<StoredSearch>, ApiError> {
        let all = self.api.list(&ListParams::default()).await.map_err(translate_error)?;
        Ok(all.items.into_iter().filter(|saved| self.may_see(saved)).collect())
    }

    async fn list(&self, options: &ListOptions) -> Result<Response, ApiError> {
        let mut items = self.list_visible().await?;
        items.retain(|saved| body::selects(options, &saved.metadata));
        items.sort_by(|a, b| a.spec.title.cmp(&b.spec.title));
        let items: Vec<Value> = items.iter().map(to_public).collect();
        let list = json!({"kind": "SavedSearchList", "apiVersion": API_VERSION, "metadata": {}, "items": items});
        Ok(reply(StatusCode::OK, &list))
    }

    /// Reads a search. Fails with 404 if it does not exist or the caller cannot see it.
    async fn get_visible(&self, name: &str) -> Result<StoredSearch, ApiError> {
        let found =
            self.api.get_opt(&path_segment(name)).await.map_err(translate_error)?.filter(|saved| self.may_see(saved));
        found.ok_or_else(|| {
            ApiError::new(Reason::NotFound, format!("{PLURAL}.{GROUP} {name:?} not found"))
                .with_object(GROUP, PLURAL, name)
        })
    }

    /// Reads a search that the caller may change. Fails with 403 or 404 for others.
    async fn get_writable(&self, name: &str) -> Result<StoredSearch, ApiError> {
        let saved = self.get_visible(name).await?;
        if access(&saved.spec, self.caller) == AccessLevel::Write {
            return Ok(saved);
        }
        let message = format!("{PLURAL}.{GROUP} {name:?} is forbidden: it belongs to {:?}", saved.spec.owner);
        Err(ApiError::new(Reason::Forbidden, message).with_object(GROUP, PLURAL, name))
    }

    async fn create(&self, sent: SavedSearchBody, options: &WriteOptions) -> Result<Response, ApiError> {
        let owner = &self.caller.name;
        let name = match sent.metadata.name.as_str() {
            "" => saved_search::derive_name(&sent.spec.title, owner),
            name => name.to_owned(),
        };
        let spec = validate_spec(sent.spec, &name, owner)?;
        let count = self.list_visible().await?.iter().filter(|saved| saved.spec.owner == *owner).count();
        if !saved_search::can_add(count) {
            let message = format!("{owner:?} has {count} searches, the maximum; delete one first");
            return Err(ApiError::new(Reason::Forbidden, message).with_object(GROUP, PLURAL, &name));
        }
        let mut saved = StoredSearch { spec, ..StoredSearch::default() };
        sent.metadata.apply_to(&mut saved.metadata);
        saved.metadata.name = Some(name);
        if let Some(admission) = self.admission {
            saved = admission.admit_write(saved, None, options).await?;
        }
        let saved = self.api.create(&post_params(options), &saved).await.map_err(translate_error)?;
        Ok(reply(StatusCode::CREATED, &to_public(&saved)))
    }

    async fn replace(&self, name: &str, sent: SavedSearchBody, options: &WriteOptions) -> Result<Response, ApiError> {
        let saved = self.get_writable(name).await?;
        let saved = self.write(name, saved, sent, options).await?;
        Ok(reply(StatusCode::OK, &to_public(&saved)))
    }

    /// Applies a patch to the public form of the search. Retries after conflicts, unless the patch contains a
    /// resourceVersion.
    async fn patch(&self, name: &str, patch: &Patch, options: &WriteOptions) -> Result<Response, ApiError> {
        let mut attempts = 1..MAX_ATTEMPTS;
        loop {
            let saved = self.get_writable(name).await?;
            let sent = SavedSearchBody::parse(patch.apply(&to_public(&saved))?, options.field_validation)?;
            match self.write(name, saved, sent, options).await {
                Err(conflict)
                    if conflict.is(Reason::Conflict) && !patch.expects_version() && attempts.next().is_some() => {}
                written => return Ok(reply(StatusCode::OK, &to_public(&written?))),
            }
        }
    }

    /// Stores `sent` as the new version of `saved`.
    async fn write(
        &self,
        name: &str,
        mut saved: StoredSearch,
        sent: SavedSearchBody,
        options: &WriteOptions,
    ) -> Result<StoredSearch, ApiError> {
        sent.check_name(name)?;
        let before = saved.clone();
        saved.spec = validate_spec(sent.spec, name, &saved.spec.owner)?;
        sent.metadata.apply_to(&mut saved.metadata);
        if let Some(admission) = self.admission {
            saved = admission.admit_write(saved, Some(&before), options).await?;
        }
        self.api.replace(&path_segment(name), &post_params(options), &saved).await.map_err(translate_error)
    }

    async fn delete(&self, name: &str, mut params: DeleteParams) -> Result<Response, ApiError> {
        let saved = self.get_writable(name).await?;
        // Another user may create a search of this name concurrently.
        let preconditions = params.preconditions.get_or_insert_default();
        let migrated_uid = annotation_value(&saved, MIGRATED_UID);
        let other_uid = preconditions.uid.take().filter(|uid| migrated_uid != Some(uid.as_str()));
        preconditions.uid = other_uid.or_else(|| saved.metadata.uid.clone());
        if let Some(admission) = self.admission {
            admission.admit_delete(&saved, &params).await?;
        }
        self.api.delete(&path_segment(name), &params).await.map_err(translate_error)?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": name, "group": GROUP, "kind": PLURAL}});
        Ok(reply(StatusCode::OK, &status))
    }
}
