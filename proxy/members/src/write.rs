//! Idempotent writes and deletions for registrations.

use crate::Error;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use crate::join::system_metadata;

/// Creates a namespace unless it exists. Needs no permission to create if it does.
pub(crate) async fn ensure_namespace(client: &Client, name: &str) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let existing =
        namespaces.get_opt(name).await.map_err(|e| Error::kube(format!("cannot read namespace {name}"), e))?;
    if existing.is_some() {
        return Ok(());
    }
    let namespace = Namespace { metadata: system_metadata(name), ..Namespace::default() };
    create_if_absent(&namespaces, &namespace).await
}

pub(crate) async fn create_if_absent<K>(api: &Api<K>, object: &K) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let problem = || format!("cannot create {} {}", K::kind(&()).to_lowercase(), object.name_any());
    match api.create(&PostParams::default(), object).await.map_err(|e| Error::kube(problem(), e)) {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Creates an object or overwrites the given fields of an existing one, as this field manager; `None`: the client's
/// name.
pub(crate) async fn apply_merge<K>(api: &Api<K>, object: &K, manager: Option<&str>) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    let problem = || format!("cannot write {} {name}", K::kind(&()).to_lowercase());
    let manager = manager.map(str::to_owned);
    let post_params = PostParams { field_manager: manager.clone(), ..PostParams::default() };
    match api.create(&post_params, object).await.map_err(|e| Error::kube(problem(), e)) {
        Err(error) if error.is_already_exists() => {
            let patch_params = PatchParams { field_manager: manager, ..PatchParams::default() };
            let patched = api.patch(&name, &patch_params, &Patch::Merge(object)).await;
            patched.map(drop).map_err(|e| Error::kube(problem(), e))
        }
        other => other.map(drop),
    }
}

/// Deletes an object that may not exist.
pub(crate) async fn delete<K>(api: &Api<K>, name: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let problem = || format!("cannot delete {} {name}", K::kind(&()).to_lowercase());
    ignore_missing(api.delete(name, &DeleteParams::default()).await.map(drop).map_err(|e| Error::kube(problem(), e)))
}

/// Checks by a dry run that an object can be deleted if it exists. A webhook that does not support dry runs is
/// called only for the deletion itself.
pub(crate) async fn check_delete<K>(api: &Api<K>, name: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let problem = || format!("cannot delete {} {name}", K::kind(&()).to_lowercase());
    match api.delete(name, &DeleteParams::default().dry_run()).await {
        Err(kube::Error::Api(status)) if status.code == 400 => Ok(()),
        checked => ignore_missing(checked.map(drop).map_err(|e| Error::kube(problem(), e))),
    }
}

/// Removes the finalizers of an object that may not exist.
pub(crate) async fn remove_finalizers<K>(api: &Api<K>, name: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let problem = || format!("cannot remove the finalizers of {} {name}", K::kind(&()).to_lowercase());
    let patch = serde_json::json!({"metadata": {"finalizers": null}});
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    ignore_missing(patched.map(drop).map_err(|e| Error::kube(problem(), e)))
}

/// Deletes a ClusterRole and its binding if they exist.
pub(crate) async fn revoke(client: &Client, name: &str) -> Result<(), Error> {
    delete(&Api::<ClusterRoleBinding>::all(client.clone()), name).await?;
    delete(&Api::<ClusterRole>::all(client.clone()), name).await
}

/// Deletes a Role and its binding if they exist.
pub(crate) async fn revoke_in(client: &Client, namespace: &str, name: &str) -> Result<(), Error> {
    delete(&Api::<RoleBinding>::namespaced(client.clone(), namespace), name).await?;
    delete(&Api::<Role>::namespaced(client.clone(), namespace), name).await
}

fn ignore_missing(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
