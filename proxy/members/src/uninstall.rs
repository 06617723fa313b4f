//! Removal of all clusters when Crowsnest is uninstalled (`crowsnest uninstall --members`): deletes the propagated objects by
//! the rules of their Works, then the objects that `join` created. No kubeconfigs of the members are needed: requests use the
//! service account that `join` created, which is deleted as well.

use crate::credentials::{ConnectionSpec, MemberRoute, Secrets};
use crate::endpoints::EndpointRules;
use crate::join::{
    CLUSTER_NAMESPACE, IMPERSONATOR, JOINED_IMPERSONATOR, SYSTEM_LABEL, cluster_role_name, service_account_name,
};
use crate::tunnel::Tunnels;
use crate::unjoin::delete_cluster;
use crate::unregister::{UnregisterOptions, unregister};
use crate::write::{delete, revoke};
use crate::{Connection, Error};
use crowsnest_api::cluster::{Cluster, ClusterSyncMode};
use crowsnest_api::names::execution_namespace;
use crowsnest_api::work::Work;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_component_base::requests::RequestCounters;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Connect timeout for a member.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A cluster to remove.
#[derive(Debug)]
pub struct ClusterRemoval {
    pub name: ClusterName,
    cluster: Cluster,
    /// Number of Works whose objects are deleted from the cluster.
    pub deleted_works: usize,
    /// Number of Works whose objects are kept in the cluster.
    pub kept_works: usize,
}

impl ClusterRemoval {
    /// True if the cluster was registered by its agent. The agent and its objects are kept, because they cannot be
    /// removed from here.
    pub fn has_agent(&self) -> bool {
        self.cluster.spec.sync_mode == ClusterSyncMode::Pull
    }

    fn namespace(&self) -> &str {
        self.cluster.spec.secret_ref.as_ref().map_or(CLUSTER_NAMESPACE, |secret| secret.namespace.as_str())
    }

    /// Objects of `join` that are deleted from the cluster, as `kind namespace/name`.
    pub fn join_objects(&self) -> Vec<String> {
        if self.has_agent() {
            return Vec::new();
        }
        let (account, namespace) = (service_account_name(&self.name), self.namespace());
        let mut objects = vec![
            format!("serviceaccount {namespace}/{account}"),
            format!("serviceaccount {namespace}/{IMPERSONATOR}"),
            format!("namespace {namespace}"),
        ];
        for role in [&cluster_role_name(&self.name), IMPERSONATOR, JOINED_IMPERSONATOR] {
            objects.push(format!("clusterrole and clusterrolebinding {role}, if they exist"));
        }
        objects
    }
}

/// Lists all clusters with the contents that their removal would delete.
pub async fn list_removals(control_plane: &Client) -> Result<Vec<ClusterRemoval>, Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let all = clusters.list(&ListParams::default()).await.map_err(|e| Error::kube("cannot list Clusters", e))?;
    let mut removals = Vec::new();
    for cluster in all {
        let name = ClusterName::parse(&cluster.name_any()).map_err(|e| Error::Join(e.to_string()))?;
        let works: Api<Work> = Api::namespaced(control_plane.clone(), &execution_namespace(&name));
        let works = works.list(&ListParams::default()).await.map_err(|e| Error::kube("cannot list Works", e))?;
        let kept_works = works.iter().filter(|work| work.spec.preserve_resources_on_deletion == Some(true)).count();
        removals.push(ClusterRemoval { name, deleted_works: works.items.len() - kept_works, kept_works, cluster });
    }
    Ok(removals)
}

/// Removes a cluster and the objects in it that belong to Crowsnest. `timeout` limits the time in which the controllers have to
/// remove their finalizers from the Cluster.
pub async fn remove_cluster(control_plane: &Client, removal: &ClusterRemoval, timeout: Duration) -> Result<(), Error> {
    if removal.has_agent() {
        let options = UnregisterOptions { wait: timeout, ..UnregisterOptions::new(removal.name.clone()) };
        return unregister(control_plane, None, &options).await;
    }
    // Read first, because the Secret is deleted with the Cluster.
    let member = member_client(control_plane, removal).await?;
    check_created_by_join(&member, removal.namespace()).await?;
    delete_cluster(control_plane, &removal.cluster, timeout).await?;
    delete_join_objects(&member, &removal.name, removal.namespace()).await
}

/// Checks that `join` created the namespace. Another namespace may contain foreign objects and must not be deleted.
async fn check_created_by_join(member: &Client, namespace: &str) -> Result<(), Error> {
    let found = Api::<Namespace>::all(member.clone()).get_opt(namespace).await;
    let found = found.map_err(|e| Error::kube(format!("cannot read namespace {namespace}"), e))?;
    match found.is_none_or(|found| found.labels().get(SYSTEM_LABEL.0).is_some_and(|value| value == SYSTEM_LABEL.1)) {
        true => Ok(()),
        false => Err(Error::Join(format!(
            "its namespace {namespace} was not created by `crowsnest join` and is not deleted; delete the service accounts in it manually"
        ))),
    }
}

/// A client with the credentials that the control plane has for the member.
async fn member_client(control_plane: &Client, removal: &ClusterRemoval) -> Result<Client, Error> {
    let mut secrets = Secrets::new();
    if let Some(reference) = &removal.cluster.spec.secret_ref {
        let key = NamespacedName::new(&reference.namespace, &reference.name);
        let found = Api::<Secret>::namespaced(control_plane.clone(), &key.namespace).get_opt(&key.name).await;
        let found = found.map_err(|e| Error::kube(format!("cannot read secret {key}"), e))?;
        secrets.extend(found.map(|secret| (key, Arc::new(secret))));
    }
    let spec = ConnectionSpec::from_cluster(&removal.name, &removal.cluster, &secrets)?;
    // This process has no tunnels: the member is dialed directly.
    let spec = ConnectionSpec { route: MemberRoute::Direct, ..spec };
    // Members may run on the operator's machine.
    let rules = EndpointRules::new(true);
    Ok(Connection::open(spec, CONNECT_TIMEOUT, &Tunnels::default(), &RequestCounters::default(), rules)?.client())
}

/// Deletes the objects that `join` created, with the service account that is one of them. The account cannot delete its own
/// permissions, because it needs them to delete the namespace and is deleted with it. Therefore the namespace becomes their
/// owner, and the member's garbage collector deletes them.
async fn delete_join_objects(member: &Client, name: &ClusterName, namespace: &str) -> Result<(), Error> {
    for role in [IMPERSONATOR, JOINED_IMPERSONATOR] {
        revoke(member, role).await?;
    }
    let namespaces: Api<Namespace> = Api::all(member.clone());
    let found = namespaces.get_opt(namespace).await;
    let found = found.map_err(|e| Error::kube(format!("cannot read namespace {namespace}"), e))?;
    let role_name = cluster_role_name(name);
    let Some(owner) = found.as_ref().and_then(|found| found.uid()) else { return revoke(member, &role_name).await };
    let patch = json!({"metadata": {"ownerReferences":
        [{"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": owner}]}});
    add_owner(&Api::<ClusterRole>::all(member.clone()), &role_name, &patch).await?;
    add_owner(&Api::<ClusterRoleBinding>::all(member.clone()), &role_name, &patch).await?;
    delete(&namespaces, namespace).await
}

/// Patches the owner references of an object that may not exist.
async fn add_owner<K>(api: &Api<K>, name: &str, patch: &Value) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    match patched.map_err(|e| Error::kube(format!("cannot write {} {name}", K::kind(&()).to_lowercase()), e)) {
        // A cluster that was joined by another tool may have other names for its permissions.
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(mode: &str) -> ClusterRemoval {
        let cluster = serde_json::from_value(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "m1"},
            "spec": {"syncMode": mode, "apiEndpoint": "https://m1", "secretRef": {"namespace": "ours", "name": "m1"}}}));
        ClusterRemoval {
            name: ClusterName::parse("m1").unwrap(),
            cluster: cluster.unwrap(),
            deleted_works: 1,
            kept_works: 0,
        }
    }

    #[test]
    fn the_objects_of_join_are_in_the_namespace_of_the_cluster() {
        let objects = removal("Push").join_objects().join("\n");
        assert!(objects.contains("serviceaccount ours/karmada-m1\n"), "{objects}");
        assert!(objects.contains("namespace ours\n"), "{objects}");
        assert!(objects.contains("clusterrolebinding karmada-controller-manager:karmada-m1, if"), "{objects}");
        assert!(removal("Pull").join_objects().is_empty());
    }
}
