//! Removal of push-mode clusters: deletes the Cluster object, then the objects that `join` created in the member.

use crate::join::{CLUSTER_NAMESPACE, IMPERSONATOR, JOINED_IMPERSONATOR, cluster_role_name, service_account_name};
use crate::unregister::revoke_agent;
use crate::write::{delete, remove_finalizers, revoke};
use crate::{Error, wait};
use crowsnest_api::cluster::{Cluster, ClusterSyncMode};
use crowsnest_api::constants::condition::REMOVING;
use crowsnest_api::names::execution_namespace;
use crowsnest_api::work::Work;
use crowsnest_apimachinery::names::ClusterName;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use std::time::Duration;

/// Time limit for the deletion of the Cluster after its finalizers were removed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Options for removing a member.
#[derive(Debug, Clone)]
pub struct UnjoinOptions {
    pub name: ClusterName,
    pub namespace: String,
    /// Time limit for the controllers to remove their finalizers from the Cluster object.
    pub wait: Duration,
    /// After `wait`, removes the finalizers of the cluster's Works, their namespace and the Cluster.
    pub force: bool,
}

/// Contents that are deleted with a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovalPreview {
    /// Number of Works, whose objects are deleted from the cluster.
    pub works: usize,
}

impl UnjoinOptions {
    pub fn new(name: ClusterName) -> Self {
        Self { name, namespace: CLUSTER_NAMESPACE.to_owned(), wait: Duration::from_secs(60), force: false }
    }
}

/// Removes the registration and, with a `member` client, the service accounts and permissions in the member.
/// Pull-mode clusters are refused; they are removed by [`unregister()`](crate::unregister()).
pub async fn unjoin(control_plane: &Client, member: Option<&Client>, options: &UnjoinOptions) -> Result<(), Error> {
    let cluster = get_cluster(control_plane, &options.name, ClusterSyncMode::Push).await?;
    match (delete_cluster(control_plane, &cluster, options.wait).await, options.force) {
        (Err(Error::DeletionTimeout { .. }), true) => force_removal(control_plane, &cluster, &options.name).await?,
        (deleted, _) => deleted?,
    }
    // An earlier agent of this name must not have permissions for a later cluster of the same name.
    match revoke_agent(control_plane, &options.name, &options.namespace).await {
        // If this is forbidden, admission still rejects writes of such an agent to a cluster joined by an
        // administrator.
        Err(error) if !error.is_forbidden() => return Err(error),
        _ => {}
    }
    match member {
        Some(member) => clean_member(member, &options.name, &options.namespace).await,
        None => Ok(()),
    }
}

/// Checks whether `unjoin` is possible and returns what it would delete. Changes nothing.
pub async fn preview_unjoin(control_plane: &Client, name: &ClusterName) -> Result<RemovalPreview, Error> {
    preview_removal(control_plane, name, ClusterSyncMode::Push).await
}

pub(crate) async fn preview_removal(
    control_plane: &Client,
    name: &ClusterName,
    mode: ClusterSyncMode,
) -> Result<RemovalPreview, Error> {
    get_cluster(control_plane, name, mode).await?;
    let works: Api<Work> = Api::namespaced(control_plane.clone(), &execution_namespace(name));
    let works = works.list_metadata(&ListParams::default()).await.map_err(|e| Error::kube("cannot list Works", e))?;
    Ok(RemovalPreview { works: works.items.len() })
}

/// Reads a Cluster; fails if it is not registered in this mode, with the command that removes it.
pub(crate) async fn get_cluster(
    control_plane: &Client,
    name: &ClusterName,
    mode: ClusterSyncMode,
) -> Result<Cluster, Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let read =
        clusters.get_opt(name.as_str()).await.map_err(|e| Error::kube(format!("cannot read Cluster {name}"), e))?;
    let cluster = read.ok_or_else(|| Error::UnknownCluster(name.clone()))?;
    let (how, command) = match (&cluster.spec.sync_mode, mode) {
        (ClusterSyncMode::Pull, ClusterSyncMode::Push) => ("in pull mode by its agent", "unregister"),
        (ClusterSyncMode::Push, ClusterSyncMode::Pull) => ("in push mode, without an agent", "unjoin"),
        _ => return Ok(cluster),
    };
    Err(Error::Join(format!("cluster {name} is registered {how}; remove it with `crowsnest {command} {name}`")))
}

/// Deletes the Cluster and waits until the controllers have removed their finalizers. A Cluster with another uid was
/// registered later under the same name and counts as a completed deletion.
pub(crate) async fn delete_cluster(control_plane: &Client, cluster: &Cluster, timeout: Duration) -> Result<(), Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let name = cluster.name_any();
    delete(&clusters, &name).await?;
    let is_deleted = |now: Option<&Cluster>| now.is_none_or(|now| now.uid() != cluster.uid());
    match wait::until(&clusters, &name, timeout, is_deleted).await? {
        Some(_) => Ok(()),
        None => Err(deletion_timeout(&clusters, &name, timeout).await),
    }
}

/// The error of a deletion that took longer than `timeout`, with the reason in the Cluster's condition if it has one.
async fn deletion_timeout(clusters: &Api<Cluster>, name: &str, timeout: Duration) -> Error {
    let cluster = match clusters.get_opt(name).await {
        Ok(cluster) => cluster,
        Err(error) => return Error::kube(format!("cannot read Cluster {name}"), error),
    };
    let conditions = cluster.map(|cluster| cluster.status.conditions).unwrap_or_default();
    match conditions.into_iter().find(|condition| condition.type_ == REMOVING) {
        Some(removing) => Error::DeletionTimeout {
            object: format!("cluster {name}"),
            seconds: timeout.as_secs(),
            reason: format!("it {}", removing.message),
        },
        None => Error::finalizers_remain(format!("Cluster {name}"), timeout),
    }
}

/// Removes the Works without deleting their objects from the member.
async fn force_removal(control_plane: &Client, cluster: &Cluster, name: &ClusterName) -> Result<(), Error> {
    let works: Api<Work> = Api::namespaced(control_plane.clone(), &execution_namespace(name));
    let works_left = works.list(&ListParams::default()).await.map_err(|e| Error::kube("cannot list Works", e))?;
    for work in works_left {
        remove_finalizers(&works, &work.name_any()).await?;
    }
    // Without finalizers, the namespace is deleted once it is empty.
    let namespaces: Api<Namespace> = Api::all(control_plane.clone());
    delete(&namespaces, &execution_namespace(name)).await?;
    remove_finalizers(&namespaces, &execution_namespace(name)).await?;
    remove_finalizers(&Api::<Cluster>::all(control_plane.clone()), name.as_str()).await?;
    delete_cluster(control_plane, cluster, RELEASE_TIMEOUT).await
}

/// Deletes the objects that a registration created in the member.
pub(crate) async fn clean_member(member: &Client, name: &ClusterName, namespace: &str) -> Result<(), Error> {
    let account = service_account_name(name);
    let role = cluster_role_name(name);
    for role in [role.as_str(), IMPERSONATOR, JOINED_IMPERSONATOR] {
        revoke(member, role).await?;
    }
    for name in [account.as_str(), IMPERSONATOR] {
        delete(&Api::<Secret>::namespaced(member.clone(), namespace), name).await?;
        delete(&Api::<ServiceAccount>::namespaced(member.clone(), namespace), name).await?;
    }
    delete(&Api::<Namespace>::all(member.clone()), namespace).await
}
