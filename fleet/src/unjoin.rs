//! The way out: the Cluster object goes first, then what `join` left in the member.

use crate::Error;
use crate::join::{
    CLUSTER_NAMESPACE, IMPERSONATOR, JOINED_IMPERSONATOR, cluster_role_name, revoke, service_account_name,
};
use crowsnest_api::cluster::{Cluster, ClusterSyncMode};
use crowsnest_api::names::ClusterName;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;

/// How to take a member out.
#[derive(Debug, Clone)]
pub struct UnjoinOptions {
    pub name: ClusterName,
    pub namespace: String,
    /// How long the controllers may take to let the Cluster object go.
    pub wait: Duration,
    /// After `wait`, take the Cluster's finalizers away.
    pub force: bool,
}

impl UnjoinOptions {
    pub fn new(name: ClusterName) -> Self {
        Self { name, namespace: CLUSTER_NAMESPACE.to_owned(), wait: Duration::from_secs(60), force: false }
    }
}

/// Removes the registration; with a `member` client also the accounts and rights in the member. Pull-mode clusters
/// are refused: their agent unregisters them.
pub async fn unjoin(control_plane: &Client, member: Option<&Client>, options: &UnjoinOptions) -> Result<(), Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let name = options.name.as_str();
    let read = clusters.get_opt(name).await.map_err(|e| Error::kube(format!("reading Cluster {name}"), e))?;
    match read {
        None => return Err(Error::UnknownCluster(options.name.clone())),
        Some(cluster) if cluster.spec.sync_mode == ClusterSyncMode::Pull => {
            return Err(Error::Join(format!("cluster {name} is registered in pull mode; use unregister")));
        }
        Some(_) => {}
    }
    let deleted = clusters.delete(name, &DeleteParams::default()).await;
    ignore_missing(deleted.map(drop).map_err(|e| Error::kube(format!("deleting Cluster {name}"), e)))?;
    wait_gone(&clusters, options).await?;
    match member {
        Some(member) => clean_member(member, options).await,
        None => Ok(()),
    }
}

async fn wait_gone(clusters: &Api<Cluster>, options: &UnjoinOptions) -> Result<(), Error> {
    let name = options.name.as_str();
    let mut forced = false;
    let mut deadline = tokio::time::Instant::now() + options.wait;
    let mut pause = Duration::from_millis(50);
    loop {
        let left = clusters.get_opt(name).await.map_err(|e| Error::kube(format!("reading Cluster {name}"), e))?;
        if left.is_none() {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            if forced || !options.force {
                return Err(Error::Join(format!(
                    "Cluster {name} is still there after {} s: its finalizers wait for cleanup",
                    options.wait.as_secs()
                )));
            }
            let patch = serde_json::json!({"metadata": {"finalizers": null}});
            let patched = clusters.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
            ignore_missing(patched.map(drop).map_err(|e| Error::kube(format!("releasing Cluster {name}"), e)))?;
            forced = true;
            deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

async fn clean_member(member: &Client, options: &UnjoinOptions) -> Result<(), Error> {
    let account = service_account_name(&options.name);
    let role = cluster_role_name(&options.name);
    for role in [role.as_str(), IMPERSONATOR, JOINED_IMPERSONATOR] {
        revoke(member, role).await?;
    }
    for name in [account.as_str(), IMPERSONATOR] {
        delete(&Api::<Secret>::namespaced(member.clone(), &options.namespace), name).await?;
        delete(&Api::<ServiceAccount>::namespaced(member.clone(), &options.namespace), name).await?;
    }
    delete(&Api::<Namespace>::all(member.clone()), &options.namespace).await
}

/// Deletes what may be gone already.
pub(crate) async fn delete<K>(api: &Api<K>, name: &str) -> Result<(), Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let what = || format!("deleting {} {name}", K::kind(&()).to_lowercase());
    ignore_missing(api.delete(name, &DeleteParams::default()).await.map(drop).map_err(|e| Error::kube(what(), e)))
}

fn ignore_missing(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
