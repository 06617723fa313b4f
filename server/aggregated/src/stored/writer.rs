//! Authorizes writes of Clusters and ResourceRegistries: checks the permissions that `admission::destination` and
//! `admission::backend_store` require for the resulting object.
//!
//! Writes are forwarded with the account of this process, so the caller is known only here. Direct writes to the
//! internal group are reviewed by the webhook, with the same rule.

use crowsnest_admission::destination::{self, PriorObject, RequiredPermissions, SecretUse};
use crowsnest_admission::{agents, backend_store};
use crowsnest_api::cluster::Cluster;
use crowsnest_api::search::ResourceRegistry;
use crowsnest_api::storage::{CLUSTERS, RESOURCE_REGISTRIES};
use crowsnest_apimachinery::content_negotiation::unsupported_media_type;
use crowsnest_apimachinery::request::{Query, ResourcePath};
use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Attributes;
use crowsnest_component_base::client_errors::api_error;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::Body as KubeBody;
use serde::Deserialize;
use serde_json::Value;

use crate::request::authentication::DelegatedAuth;
use crate::stored::forward::{Forward, MAX_ATTEMPTS};
use crate::stored::precondition::{expects_version, set_expected_version};
use crate::stored::read_stored;
use crate::{cluster_karmada_io, search_karmada_io};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A written object of one of the kinds that are reviewed.
enum ReviewedObject {
    Cluster(Box<Cluster>),
    Registry(Box<ResourceRegistry>),
}

impl ReviewedObject {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Cluster(cluster) => &cluster.metadata,
            Self::Registry(registry) => &registry.metadata,
        }
    }

    fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Cluster(cluster) => Some(cluster),
            Self::Registry(_) => None,
        }
    }

    fn registry(&self) -> Option<&ResourceRegistry> {
        match self {
            Self::Registry(registry) => Some(registry),
            Self::Cluster(_) => None,
        }
    }
}

/// A caller that writes a Cluster or a ResourceRegistry.
#[derive(Clone, Copy)]
pub struct Writer<'w> {
    pub delegated: &'w DelegatedAuth,
    pub user: &'w UserInfo,
}

impl Writer<'_> {
    /// Refuses an agent that writes a cluster other than its own.
    pub fn check_name(self, cluster: &str) -> Result<(), ApiError> {
        agents::check_cluster(self.user, cluster).map_err(|reason| forbidden(cluster, &reason))
    }

    /// Refuses a write that changes where tokens are sent if the caller must not read those tokens.
    pub async fn check(self, before: PriorObject<'_>, after: &Cluster) -> Result<(), ApiError> {
        let name = after.metadata.name.as_deref().unwrap_or_default();
        self.check_name(name)?;
        agents::check_registration(self.user, before, after).map_err(|reason| forbidden(name, &reason))?;
        if matches!(before, PriorObject::Absent) && agents::agent_cluster(self.user).is_some() {
            self.check_id(after).await?;
        }
        let required = destination::required_permissions(before, after);
        self.check_uses(&required, |reason| forbidden(name, reason)).await
    }

    /// Refuses a write that changes where objects and credentials of a registry are sent if the caller must not read
    /// those credentials.
    pub async fn check_registry(
        self,
        before: PriorObject<'_, ResourceRegistry>,
        after: &ResourceRegistry,
    ) -> Result<(), ApiError> {
        let name = after.metadata.name.as_deref().unwrap_or_default();
        let required = backend_store::required_permissions(before, after);
        self.check_uses(&required, |reason| forbidden_in(search_karmada_io::NAME, "resourceregistries", name, reason))
            .await
    }

    async fn check_uses(
        self,
        required: &RequiredPermissions,
        forbidden: impl Fn(&str) -> ApiError,
    ) -> Result<(), ApiError> {
        for secret in &required.uses {
            if !self.may_use(secret).await? {
                return Err(forbidden(&required.refusal(&self.user.name, secret)));
            }
        }
        Ok(())
    }

    async fn check_object(
        self,
        before: PriorObject<'_, ReviewedObject>,
        after: &ReviewedObject,
    ) -> Result<(), ApiError> {
        match after {
            ReviewedObject::Cluster(after) => self.check(before.and_then(ReviewedObject::cluster), after).await,
            ReviewedObject::Registry(after) => {
                self.check_registry(before.and_then(ReviewedObject::registry), after).await
            }
        }
    }

    /// Checks a write that replaces `before`, the stored object.
    pub(super) async fn check_values(self, before: &Value, after: &Value) -> Result<(), ApiError> {
        let no_object = || ApiError::bad_request("the body of the request is an object of another kind");
        let (before, after) = (decode(before).ok_or_else(no_object)?, decode(after).ok_or_else(no_object)?);
        self.check_object(PriorObject::Stored(&before), &after).await
    }

    /// Refuses an agent's Cluster whose ID is registered by another name. Agents cannot list Clusters themselves.
    async fn check_id(self, after: &Cluster) -> Result<(), ApiError> {
        let (name, id) = (after.metadata.name.as_deref().unwrap_or_default(), after.spec.id.as_str());
        if id.is_empty() {
            return Ok(());
        }
        let registered =
            read_stored(&self.delegated.control_plane(), &CLUSTERS, "/clusters").await.map_err(api_error)?;
        let mut clusters = registered["items"].as_array().into_iter().flatten();
        match clusters.any(|cluster| cluster["spec"]["id"] == id && cluster["metadata"]["name"] != name) {
            true => Err(forbidden(name, "a cluster with its spec.id is registered by another name")),
            false => Ok(()),
        }
    }

    /// Refuses a caller that must not create an object of this name.
    pub(super) async fn check_create(
        self,
        group: &str,
        resource: &str,
        name: &str,
    ) -> Result<Result<(), ApiError>, ApiError> {
        let attributes = Attributes {
            verb: "create".to_owned(),
            group: group.to_owned(),
            version: "v1alpha1".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        Ok(self.delegated.review(self.user, &attributes).await?.check(self.user, &attributes))
    }

    async fn may_use(self, secret: &SecretUse) -> Result<bool, ApiError> {
        for verb in secret.verbs {
            let attributes = Attributes {
                verb: (*verb).to_owned(),
                version: "v1".to_owned(),
                resource: "secrets".to_owned(),
                namespace: secret.namespace.clone(),
                name: secret.name.clone(),
                ..Attributes::default()
            };
            if self.delegated.review(self.user, &attributes).await?.allowed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if the caller may write the Cluster itself, not only its status.
    pub(super) async fn may_write(self, method: &Method, cluster: &str) -> Result<bool, ApiError> {
        let path = ResourcePath { name: cluster.to_owned(), ..ResourcePath::default() };
        let attributes = Attributes {
            verb: path.operation(method, &Query::default()).verb.to_owned(),
            group: cluster_karmada_io::NAME.to_owned(),
            version: "v1alpha1".to_owned(),
            resource: "clusters".to_owned(),
            name: cluster.to_owned(),
            ..Attributes::default()
        };
        Ok(self.delegated.review(self.user, &attributes).await?.allowed)
    }

    /// Sends `body` to `resource_path` after the resulting Cluster has been reviewed. The write names the reviewed
    /// resourceVersion, so it conflicts with any concurrent change.
    pub(super) async fn send(
        self,
        forward: &Forward<'_>,
        resource_path: &str,
        body: &[u8],
    ) -> Result<Response<KubeBody>, ApiError> {
        let content_type =
            forward.content_type.as_ref().and_then(|content_type| content_type.to_str().ok()).unwrap_or(JSON);
        let content_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match (&forward.method, content_type.as_str()) {
            (&Method::POST, JSON) => {
                let Some(after) = parse_object(body) else {
                    return refuse_unreadable(forward, resource_path, body).await;
                };
                self.check_object(PriorObject::Absent, &after).await?;
                forward.send_unchanged(resource_path, body).await
            }
            (&Method::PUT, JSON) => {
                let Some(after) = parse_object(body) else {
                    return refuse_unreadable(forward, resource_path, body).await;
                };
                let live = get_stored_object(forward, resource_path).await?;
                if let (Some(live), Some(after)) = (live.as_ref().and_then(ReviewedObject::cluster), after.cluster()) {
                    let name = live.metadata.name.as_deref().unwrap_or_default();
                    // A write without a resourceVersion replaces the stored object unconditionally.
                    let checked = agents::check_registration(self.user, PriorObject::Stored(live), after);
                    checked.map_err(|reason| forbidden(name, &reason))?;
                }
                let version = &after.metadata().resource_version;
                let expected = live.as_ref().filter(|live| live.metadata().resource_version == *version);
                self.check_object(expected.map_or(PriorObject::Absent, PriorObject::Stored), &after).await?;
                forward.send_unchanged(resource_path, body).await
            }
            (&Method::PATCH, MERGE | JSON_PATCH | APPLY) => self.patch(forward, resource_path, body).await,
            _ => refuse_unreadable(forward, resource_path, body).await,
        }
    }

    /// Reviews and sends a patch. A dry run in the control plane determines the resulting Cluster.
    async fn patch(
        self,
        forward: &Forward<'_>,
        resource_path: &str,
        body: &[u8],
    ) -> Result<Response<KubeBody>, ApiError> {
        let mut attempt = 1;
        loop {
            let live = get_stored_object(forward, resource_path).await?;
            let dry_run_response = forward.send_dry_run(resource_path, body).await?;
            if !dry_run_response.status().is_success() {
                return Ok(dry_run_response);
            }
            let result = dry_run_response.into_body().collect().await.map_err(api_error)?.to_bytes();
            let after = parse_object(&result)
                .ok_or_else(|| ApiError::internal("the control plane returned an object of another kind"))?;
            self.check_object(live.as_ref().map_or(PriorObject::Unseen, PriorObject::Stored), &after).await?;
            let version = live.as_ref().and_then(|live| live.metadata().resource_version.as_deref());
            let versioned_patch = match version {
                Some(version) => patch_with_expected_version(body, version)?,
                None => body.to_vec(),
            };
            let response = forward.send_unchanged(resource_path, &versioned_patch).await?;
            if response.status() != StatusCode::CONFLICT || version.is_none() || attempt == MAX_ATTEMPTS {
                return Ok(response);
            }
            attempt += 1;
        }
    }
}

/// True for server-side apply, in any encoding.
pub(super) fn is_apply(content_type: Option<&HeaderValue>) -> bool {
    let media_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
    media_type.to_ascii_lowercase().starts_with("application/apply-patch")
}

/// Adds the resourceVersion to an apply patch, unless it contains one.
pub(super) fn apply_with_expected_version(body: &[u8], version: &str) -> Result<Vec<u8>, ApiError> {
    match expects_version(&parse_patch(body)?) {
        true => Ok(body.to_vec()),
        false => patch_with_expected_version(body, version),
    }
}

/// Adds the resourceVersion to a patch, so that it conflicts if the object has changed.
pub(super) fn patch_with_expected_version(body: &[u8], version: &str) -> Result<Vec<u8>, ApiError> {
    let mut patch = parse_patch(body)?;
    set_expected_version(&mut patch, version)?;
    serde_json::to_vec(&patch).map_err(ApiError::internal)
}

fn parse_patch(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
}

/// The stored object that a write applies to.
async fn get_stored_object(forward: &Forward<'_>, resource_path: &str) -> Result<Option<ReviewedObject>, ApiError> {
    let found = forward.get_stored(resource_path).await?;
    // An object that cannot be read is reviewed like a new one; the write gets the same error from the control plane.
    if found["kind"] == "Status" {
        return Ok(None);
    }
    match decode(&found) {
        Some(object) => Ok(Some(object)),
        None => Err(ApiError::internal("the control plane returned an object of another kind")),
    }
}

fn parse_object(text: &[u8]) -> Option<ReviewedObject> {
    decode(&serde_json::from_slice(text).ok()?)
}

fn decode(object: &Value) -> Option<ReviewedObject> {
    // Other kinds, such as a Table, also decode as a Cluster, but name no Secrets.
    match object["kind"].as_str()? {
        kind if [CLUSTERS.kind, CLUSTERS.stored_kind].contains(&kind) => {
            Cluster::deserialize(object).ok().map(|cluster| ReviewedObject::Cluster(Box::new(cluster)))
        }
        kind if [RESOURCE_REGISTRIES.kind, RESOURCE_REGISTRIES.stored_kind].contains(&kind) => {
            ResourceRegistry::deserialize(object).ok().map(|registry| ReviewedObject::Registry(Box::new(registry)))
        }
        _ => None,
    }
}

/// Refuses a write whose body cannot be reviewed. Uses the control plane's error message if there is one.
async fn refuse_unreadable(
    forward: &Forward<'_>,
    resource_path: &str,
    body: &[u8],
) -> Result<Response<KubeBody>, ApiError> {
    let dry_run_response = forward.send_dry_run(resource_path, body).await?;
    if !dry_run_response.status().is_success() {
        return Ok(dry_run_response);
    }
    Err(unsupported_media_type(&["application/json", "application/yaml"]))
}

fn forbidden(cluster: &str, reason: &str) -> ApiError {
    forbidden_in(cluster_karmada_io::NAME, "clusters", cluster, reason)
}

fn forbidden_in(group: &str, resource: &str, name: &str, reason: &str) -> ApiError {
    let quoted = if name.is_empty() { String::new() } else { format!(" {name:?}") };
    let text = format!("{resource}.{group}{quoted} is forbidden: {reason}");
    ApiError::new(Reason::Forbidden, text).with_object(group, resource, name)
}

/// The query of the request as a dry run, independent of its own `dryRun` parameter.
pub(super) fn dry_run_query(query: &str) -> String {
    match query {
        "" => "?dryRun=All".to_owned(),
        query => format!("{query}&dryRun=All"),
    }
}

/// `Accept` header of requests whose responses this server parses, independent of the client's.
pub(super) const ACCEPT_JSON: HeaderValue = HeaderValue::from_static(JSON);
