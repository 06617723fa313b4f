//! Saved searches: queries people keep, for themselves or for everyone. Kept as objects of the internal group in the control
//! plane; who may see and change one is decided here, by its owner.

use axum::extract::Request;
use axum::response::Response;
use crowsnest_api::field::FieldError;
use crowsnest_api::storage::{SavedSearch, SavedSearchSpec};
use crowsnest_api::user::UserInfo;
use crowsnest_apiserver::status::ApiError;
use crowsnest_index::query;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::API_VERSION;
use crate::aggregated::reply::{Failure, json as reply};
use crate::aggregated::stored::STORAGE_GROUP;

const GROUP: &str = "search.crowsnest.io";
const PLURAL: &str = "savedsearches";
/// Of the query language that is written now.
const SYNTAX: &str = "v1";
const MOST_OF_ONE: usize = 200;
const MOST_TITLE: usize = 128;
const MOST_DESCRIPTION: usize = 1024;
const MOST_BODY: usize = 64 << 10;

/// What a client sends.
#[derive(Deserialize)]
struct Sent {
    #[serde(default)]
    metadata: SentMetadata,
    spec: SentSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SentMetadata {
    name: String,
    resource_version: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SentSpec {
    title: String,
    query: String,
    description: String,
    shared: bool,
}

pub(in crate::aggregated) async fn serve(
    control_plane: &kube::Client,
    caller: &UserInfo,
    name: &str,
    request: Request,
) -> Result<Response, Failure> {
    let saved = Saved { api: Api::all(control_plane.clone()), caller };
    let method = request.method().clone();
    match (&method, name) {
        (&Method::GET, "") => saved.list().await,
        (&Method::GET, name) => Ok(reply(StatusCode::OK, &shown(&saved.visible(name).await?))),
        (&Method::POST, "") => saved.create(sent(request).await?).await,
        (&Method::PUT, name) if !name.is_empty() => saved.replace(name, sent(request).await?).await,
        (&Method::DELETE, name) if !name.is_empty() => saved.delete(name).await,
        _ => Err(Failure::method_not_allowed()),
    }
}

/// Queries a caller may name with `scope:`, by name and title.
pub(super) async fn scopes(
    control_plane: &kube::Client,
    caller: &UserInfo,
) -> Result<BTreeMap<String, String>, Failure> {
    let saved = Saved { api: Api::all(control_plane.clone()), caller };
    let mut scopes = BTreeMap::new();
    let mut all = saved.all_visible().await?;
    // What others share does not stand in for one's own, nor a title for a name.
    all.sort_by_key(|one| one.spec.owner == caller.name);
    for one in &all {
        scopes.insert(one.spec.title.to_lowercase(), one.spec.query.clone());
    }
    scopes.extend(all.into_iter().map(|one| (one.metadata.name.unwrap_or_default(), one.spec.query)));
    Ok(scopes)
}

async fn sent(request: Request) -> Result<Sent, Failure> {
    let body = Limited::new(request.into_body(), MOST_BODY).collect().await;
    let body = body.map_err(|error| Failure::bad_request(format!("the body cannot be read: {error}")))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| Failure::bad_request(format!("error decoding JSON: {error}")))
}

struct Saved<'r> {
    api: Api<SavedSearch>,
    caller: &'r UserInfo,
}

/// In this group's words.
fn upstream(error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(mut status) => {
            status.message = status.message.replace(STORAGE_GROUP, GROUP);
            if let Some(details) = &mut status.details {
                details.group = GROUP.to_owned();
            }
            Failure::upstream(kube::Error::Api(status))
        }
        other => Failure::upstream(other),
    }
}

fn shown(saved: &SavedSearch) -> Value {
    let metadata = json!({"name": saved.metadata.name, "uid": saved.metadata.uid,
        "resourceVersion": saved.metadata.resource_version, "creationTimestamp": saved.metadata.creation_timestamp});
    json!({"kind": "SavedSearch", "apiVersion": API_VERSION, "metadata": metadata, "spec": saved.spec})
}

/// A name of letters, digits and hyphens that says what it is, and is another for another user.
fn name_of(title: &str, owner: &str) -> String {
    let mut slug: String =
        title.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    slug.truncate(40);
    let hash = xxhash_rust::xxh3::xxh3_64(format!("{owner}\n{title}").as_bytes());
    format!("{}-{hash:016x}", slug.trim_matches('-')).trim_start_matches('-').to_owned()
}

fn checked(sent: SentSpec, name: &str, owner: &str) -> Result<SavedSearchSpec, Failure> {
    let mut errors = Vec::new();
    if sent.title.trim().is_empty() {
        errors.push(FieldError::required("spec.title", "what the search is called"));
    }
    for (field, text, most) in
        [("spec.title", &sent.title, MOST_TITLE), ("spec.description", &sent.description, MOST_DESCRIPTION)]
    {
        if text.chars().count() > most {
            errors.push(FieldError::too_long(field, most));
        }
    }
    if let Err(error) = query::parse(&sent.query, &query::Limits::default()) {
        errors.push(FieldError::invalid("spec.query", &sent.query, error.to_string()));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(GROUP, "SavedSearch", name, errors).into());
    }
    Ok(SavedSearchSpec {
        title: sent.title,
        query: sent.query,
        description: sent.description,
        shared: sent.shared,
        owner: owner.to_owned(),
        syntax: SYNTAX.to_owned(),
    })
}

impl Saved<'_> {
    fn may_see(&self, saved: &SavedSearch) -> bool {
        saved.spec.shared || saved.spec.owner == self.caller.name
    }

    async fn all_visible(&self) -> Result<Vec<SavedSearch>, Failure> {
        let all = self.api.list(&ListParams::default()).await.map_err(upstream)?;
        Ok(all.items.into_iter().filter(|saved| self.may_see(saved)).collect())
    }

    async fn list(&self) -> Result<Response, Failure> {
        let mut items = self.all_visible().await?;
        items.sort_by(|a, b| a.spec.title.cmp(&b.spec.title));
        let items: Vec<Value> = items.iter().map(shown).collect();
        let list = json!({"kind": "SavedSearchList", "apiVersion": API_VERSION, "metadata": {}, "items": items});
        Ok(reply(StatusCode::OK, &list))
    }

    /// What the caller may not see is not there.
    async fn visible(&self, name: &str) -> Result<SavedSearch, Failure> {
        let found = self.api.get_opt(name).await.map_err(upstream)?.filter(|saved| self.may_see(saved));
        found.ok_or_else(|| {
            Failure::not_found(format!("{PLURAL}.{GROUP} {name:?} not found")).with_details(GROUP, PLURAL, name)
        })
    }

    /// One the caller may change.
    async fn own(&self, name: &str) -> Result<SavedSearch, Failure> {
        let saved = self.visible(name).await?;
        if saved.spec.owner == self.caller.name || self.caller.is_master() {
            return Ok(saved);
        }
        let message = format!("{PLURAL}.{GROUP} {name:?} is forbidden: it belongs to {:?}", saved.spec.owner);
        Err(Failure::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(GROUP, PLURAL, name))
    }

    async fn create(&self, sent: Sent) -> Result<Response, Failure> {
        let owner = &self.caller.name;
        let name = match sent.metadata.name.as_str() {
            "" => name_of(&sent.spec.title, owner),
            name => name.to_owned(),
        };
        let spec = checked(sent.spec, &name, owner)?;
        let kept = self.all_visible().await?.iter().filter(|saved| saved.spec.owner == *owner).count();
        if kept >= MOST_OF_ONE {
            let message = format!("{owner:?} keeps {kept} searches, which is the most; delete one first");
            return Err(Failure::new(StatusCode::FORBIDDEN, "Forbidden", message).with_details(GROUP, PLURAL, &name));
        }
        let mut saved = SavedSearch { spec, ..SavedSearch::default() };
        saved.metadata.name = Some(name);
        let saved = self.api.create(&PostParams::default(), &saved).await.map_err(upstream)?;
        Ok(reply(StatusCode::CREATED, &shown(&saved)))
    }

    async fn replace(&self, name: &str, sent: Sent) -> Result<Response, Failure> {
        let mut saved = self.own(name).await?;
        saved.spec = checked(sent.spec, name, &saved.spec.owner)?;
        if sent.metadata.resource_version.is_some() {
            saved.metadata.resource_version = sent.metadata.resource_version;
        }
        let saved = self.api.replace(name, &PostParams::default(), &saved).await.map_err(upstream)?;
        Ok(reply(StatusCode::OK, &shown(&saved)))
    }

    async fn delete(&self, name: &str) -> Result<Response, Failure> {
        self.own(name).await?;
        self.api.delete(name, &DeleteParams::default()).await.map_err(upstream)?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": name, "group": GROUP, "kind": PLURAL}});
        Ok(reply(StatusCode::OK, &status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_and_differ_by_owner() {
        let (ann, bob) = (name_of("Broken pods / prod!", "ann"), name_of("Broken pods / prod!", "bob"));
        assert!(ann.starts_with("broken-pods---prod-") && ann != bob);
        assert!(name_of("é", "ann").chars().all(|c| c.is_ascii_alphanumeric()));
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_field() {
        let spec = SentSpec { title: " ".into(), query: "a".repeat(5000), ..SentSpec::default() };
        let refused = checked(spec, "x", "ann").unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    }
}
