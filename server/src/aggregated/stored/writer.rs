//! Reviews the rights that `admission::destination` requires of a caller who writes a Cluster, for the resulting
//! object.
//!
//! Writes are forwarded with the account of this process, so the caller is known only here. Direct writes to the
//! internal group are reviewed by the webhook, with the same rule.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::request::{Query, ResourcePath};
use crowsnest_api::user::UserInfo;
use crowsnest_controllers::admission::agents;
use crowsnest_controllers::admission::destination::{self, Before, SecretUse};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body as KubeBody;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::aggregated::forward::{ATTEMPTS, Forward};
use crate::aggregated::identity::{Delegated, Wanted};
use crate::aggregated::reply::Failure;
use crate::aggregated::route::CLUSTERS;
use crate::aggregated::stored::read_stored;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Caller who writes a Cluster.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'w> {
    pub(crate) delegated: &'w Delegated,
    pub(crate) user: &'w UserInfo,
}

impl Writer<'_> {
    /// Refuses agents of other clusters by the cluster's name.
    pub(crate) fn check_name(self, cluster: &str) -> Result<(), Failure> {
        agents::check_cluster(self.user, cluster).map_err(|why| forbidden(cluster, &why))
    }

    /// Refuses a write that changes where tokens are sent if the caller has no right to read those tokens.
    pub(crate) async fn check(self, before: Before<'_>, after: &Cluster) -> Result<(), Failure> {
        let name = after.metadata.name.as_deref().unwrap_or_default();
        self.check_name(name)?;
        agents::check_registration(self.user, before, after).map_err(|why| forbidden(name, &why))?;
        if matches!(before, Before::Absent) && agents::agent_cluster(self.user).is_some() {
            self.check_id(after).await?;
        }
        let report = destination::review(before, after);
        for secret in &report.uses {
            if !self.may_use(secret).await? {
                return Err(forbidden(name, &report.refusal(&self.user.name, secret)));
            }
        }
        Ok(())
    }

    /// Checks a write that replaces `before`, the stored object.
    pub(in crate::aggregated) async fn check_values(self, before: &Value, after: &Value) -> Result<(), Failure> {
        let no_cluster = || Failure::bad_request("the body of the request is not a Cluster");
        let (before, after) = (typed(before).ok_or_else(no_cluster)?, typed(after).ok_or_else(no_cluster)?);
        self.check(Before::Known(&before), &after).await
    }

    /// Refuses an agent's Cluster whose ID is registered by another name. Agents cannot list Clusters themselves.
    async fn check_id(self, after: &Cluster) -> Result<(), Failure> {
        let (name, id) = (after.metadata.name.as_deref().unwrap_or_default(), after.spec.id.as_str());
        if id.is_empty() {
            return Ok(());
        }
        let registered = read_stored(&self.delegated.control_plane(), "/clusters").await.map_err(Failure::upstream)?;
        let mut others = registered["items"].as_array().into_iter().flatten();
        match others.any(|other| other["spec"]["id"] == id && other["metadata"]["name"] != name) {
            true => Err(forbidden(name, "a cluster with its spec.id is registered by another name")),
            false => Ok(()),
        }
    }

    /// The refusal of a caller who may not create an object of this name.
    pub(super) async fn check_create(
        self,
        group: &str,
        resource: &str,
        name: &str,
    ) -> Result<Result<(), Failure>, Failure> {
        let wanted = Wanted {
            verb: "create".to_owned(),
            group: group.to_owned(),
            version: "v1alpha1".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..Wanted::default()
        };
        Ok(self.delegated.review(self.user, &wanted).await?.check(self.user, &wanted))
    }

    async fn may_use(self, secret: &SecretUse) -> Result<bool, Failure> {
        for verb in secret.verbs {
            let wanted = Wanted {
                verb: (*verb).to_owned(),
                version: "v1".to_owned(),
                resource: "secrets".to_owned(),
                namespace: secret.namespace.clone(),
                name: secret.name.clone(),
                ..Wanted::default()
            };
            if self.delegated.review(self.user, &wanted).await?.allowed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if the caller may write the Cluster itself, not only its status.
    pub(super) async fn may_write(self, method: &Method, cluster: &str) -> Result<bool, Failure> {
        let path = ResourcePath { name: cluster.to_owned(), ..ResourcePath::default() };
        let wanted = Wanted {
            verb: path.operation(method, &Query::default()).verb.to_owned(),
            group: CLUSTERS.to_owned(),
            version: "v1alpha1".to_owned(),
            resource: "clusters".to_owned(),
            name: cluster.to_owned(),
            ..Wanted::default()
        };
        Ok(self.delegated.review(self.user, &wanted).await?.allowed)
    }

    /// Sends `body` to `tail` after the resulting Cluster has been reviewed. The write names the reviewed
    /// resourceVersion, so it conflicts with any concurrent change.
    pub(in crate::aggregated) async fn send(
        self,
        forward: &Forward<'_>,
        tail: &str,
        body: &[u8],
    ) -> Result<Response<KubeBody>, Failure> {
        let kind = forward.content_type.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or(JSON);
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match (&forward.method, kind.as_str()) {
            (&Method::POST, JSON) => {
                let Some(after) = read(body) else { return unreadable(forward, tail, body).await };
                self.check(Before::Absent, &after).await?;
                forward.pass(tail, body).await
            }
            (&Method::PUT, JSON) => {
                let Some(after) = read(body) else { return unreadable(forward, tail, body).await };
                let live = live(forward, tail).await?;
                if let Some(live) = &live {
                    let name = live.metadata.name.as_deref().unwrap_or_default();
                    // A write without a resourceVersion replaces the stored object unconditionally.
                    let checked = agents::check_registration(self.user, Before::Known(live), &after);
                    checked.map_err(|why| forbidden(name, &why))?;
                }
                let same =
                    live.as_ref().filter(|live| live.metadata.resource_version == after.metadata.resource_version);
                self.check(same.map_or(Before::Absent, Before::Known), &after).await?;
                forward.pass(tail, body).await
            }
            (&Method::PATCH, MERGE | JSON_PATCH | APPLY) => self.patch(forward, tail, body, &kind).await,
            _ => unreadable(forward, tail, body).await,
        }
    }

    /// Reviews and sends a patch. A dry run in the control plane determines the resulting Cluster.
    async fn patch(
        self,
        forward: &Forward<'_>,
        tail: &str,
        body: &[u8],
        kind: &str,
    ) -> Result<Response<KubeBody>, Failure> {
        let mut attempt = 1;
        loop {
            let live = live(forward, tail).await?;
            let tried = forward.rehearse(tail, body).await?;
            if !tried.status().is_success() {
                return Ok(tried);
            }
            let tried = tried.into_body().collect().await.map_err(Failure::upstream)?.to_bytes();
            let after = read(&tried).ok_or_else(|| Failure::internal("the control plane answers with another kind"))?;
            self.check(live.as_ref().map_or(Before::Unseen, Before::Known), &after).await?;
            let version = live.as_ref().and_then(|live| live.metadata.resource_version.as_deref());
            let pinned = match version {
                Some(version) => pinned(kind, body, version)?,
                None => body.to_vec(),
            };
            let answer = forward.pass(tail, &pinned).await?;
            if answer.status() != StatusCode::CONFLICT || version.is_none() || attempt == ATTEMPTS {
                return Ok(answer);
            }
            attempt += 1;
        }
    }
}

/// True for server-side apply, in any encoding.
pub(super) fn is_apply(content_type: Option<&HeaderValue>) -> bool {
    let kind = content_type.and_then(|kind| kind.to_str().ok()).unwrap_or_default().trim();
    kind.to_ascii_lowercase().starts_with("application/apply-patch")
}

/// An apply patch for this version of an object, unless the patch names one itself.
pub(super) fn pinned_apply(body: &[u8], version: &str) -> Result<Vec<u8>, Failure> {
    let patch: Value =
        serde_json::from_slice(body).map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
    match patch.pointer("/metadata/resourceVersion").and_then(Value::as_str) {
        Some(given) if !matches!(given, "" | "0") => Ok(body.to_vec()),
        _ => pinned(APPLY, body, version),
    }
}

/// Adds the resourceVersion to a patch, so that it conflicts if the object has changed.
pub(super) fn pinned(kind: &str, body: &[u8], version: &str) -> Result<Vec<u8>, Failure> {
    let bad = |error| Failure::bad_request(format!("error decoding patch: {error}"));
    let mut patch: Value = serde_json::from_slice(body).map_err(bad)?;
    match (&mut patch, kind) {
        (Value::Array(operations), JSON_PATCH) => {
            operations.push(json!({"op": "add", "path": "/metadata/resourceVersion", "value": version}));
        }
        (Value::Object(fields), MERGE | APPLY) => {
            let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
            let metadata = metadata.as_object_mut();
            let metadata = metadata.ok_or_else(|| Failure::bad_request("metadata of a patch must be an object"))?;
            metadata.insert("resourceVersion".to_owned(), version.into());
        }
        _ => return Err(Failure::bad_request("a patch must be an object, or a list of operations")),
    }
    serde_json::to_vec(&patch).map_err(Failure::internal)
}

/// The stored Cluster that a write applies to.
async fn live(forward: &Forward<'_>, tail: &str) -> Result<Option<Cluster>, Failure> {
    let found = forward.read(tail).await?;
    // The write meets the same refusal, and is answered with it. What cannot be read is reviewed as if it were new.
    if found["kind"] == "Status" {
        return Ok(None);
    }
    match typed(&found) {
        Some(cluster) => Ok(Some(cluster)),
        None => Err(Failure::internal("the control plane answers with another kind")),
    }
}

fn read(text: &[u8]) -> Option<Cluster> {
    typed(&serde_json::from_slice(text).ok()?)
}

fn typed(object: &Value) -> Option<Cluster> {
    // Other kinds, such as a Table, also decode as a Cluster, but name no Secrets.
    if object["kind"] != "Cluster" {
        return None;
    }
    Cluster::deserialize(object).ok()
}

/// Refuses a write whose body cannot be reviewed. Uses the control plane's error message if there is one.
async fn unreadable(forward: &Forward<'_>, tail: &str, body: &[u8]) -> Result<Response<KubeBody>, Failure> {
    let tried = forward.rehearse(tail, body).await?;
    if !tried.status().is_success() {
        return Ok(tried);
    }
    let text = "the body of the request was in an unknown format - accepted media types include: \
                application/json, application/yaml";
    Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", text))
}

fn forbidden(cluster: &str, why: &str) -> Failure {
    let name = if cluster.is_empty() { String::new() } else { format!(" {cluster:?}") };
    let text = format!("clusters.{CLUSTERS}{name} is forbidden: {why}");
    Failure::new(StatusCode::FORBIDDEN, "Forbidden", text).with_details(CLUSTERS, "clusters", cluster)
}

/// The query of the request as a dry run, independent of its own `dryRun` parameter.
pub(in crate::aggregated) fn dry_run(query: &str) -> String {
    match query {
        "" => "?dryRun=All".to_owned(),
        query => format!("{query}&dryRun=All"),
    }
}

/// Media type of responses that this server parses, independent of what the client accepts.
pub(in crate::aggregated) const READ_BY_US: HeaderValue = HeaderValue::from_static(JSON);
