//! Removal of pull-mode clusters, in the order of `karmadactl unregister`: Works, Cluster and execution namespace,
//! the agent's permissions and reported tokens in the control plane, then the agent and its objects in the member.

use crate::join::{CLUSTER_NAMESPACE, impersonator_secret_name};
use crate::unjoin::{RemovalPreview, clean_member, delete_cluster, get_cluster, preview_removal};
use crate::write::{check_delete, delete, revoke, revoke_in};
use crate::{Error, MemberRoute, wait};
use crowsnest_api::cluster::{Cluster, ClusterSyncMode};
use crowsnest_api::names::execution_namespace;
use crowsnest_api::work::Work;
use crowsnest_apimachinery::names::ClusterName;
use futures::TryStreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// Namespace, name and service account of Karmada's agent.
pub const AGENT_NAMESPACE: &str = "karmada-system";
pub const AGENT: &str = "karmada-agent";
const AGENT_ACCOUNT: &str = "karmada-agent-sa";
const AGENT_KUBECONFIG: &str = "karmada-kubeconfig";

/// Options for removing a member that an agent registered.
#[derive(Debug, Clone)]
pub struct UnregisterOptions {
    pub name: ClusterName,
    /// Namespace of the tokens in the member and in the control plane.
    pub namespace: String,
    /// Namespace and name of the agent in the member.
    pub agent_namespace: String,
    pub agent: String,
    /// Time limit for the whole removal.
    pub wait: Duration,
}

impl UnregisterOptions {
    pub fn new(name: ClusterName) -> Self {
        Self {
            name,
            namespace: CLUSTER_NAMESPACE.to_owned(),
            agent_namespace: AGENT_NAMESPACE.to_owned(),
            agent: AGENT.to_owned(),
            wait: Duration::from_secs(60),
        }
    }
}

/// Removes the registration and, with a `member` client, the agent. Push-mode clusters are refused.
pub async fn unregister(
    control_plane: &Client,
    member: Option<&Client>,
    options: &UnregisterOptions,
) -> Result<(), Error> {
    let name = &options.name;
    let deadline = Instant::now() + options.wait;
    let time_left = || deadline.saturating_duration_since(Instant::now());
    let cluster = get_cluster(control_plane, name, ClusterSyncMode::Pull).await?;
    // Karmada's agent deletes propagated objects itself, with permissions in the execution namespace, so the Works
    // are deleted first.
    if MemberRoute::from_cluster(&cluster) == MemberRoute::AgentIfConnected {
        // Works must stay if the Cluster stays.
        check_delete(&Api::<Cluster>::all(control_plane.clone()), name.as_str()).await?;
        delete_works(control_plane, name, time_left()).await?;
    }
    delete_cluster(control_plane, &cluster, time_left()).await?;
    wait_for_namespace_deletion(control_plane, name, time_left()).await?;
    clean_control_plane(control_plane, options).await?;
    match member {
        Some(member) => remove_agent(member, options).await,
        None => Ok(()),
    }
}

/// Checks whether `unregister` is possible and returns what it would delete. Changes nothing.
pub async fn preview_unregister(control_plane: &Client, name: &ClusterName) -> Result<RemovalPreview, Error> {
    preview_removal(control_plane, name, ClusterSyncMode::Pull).await
}

/// Deletes the Works of a cluster, including new ones, until none is left.
async fn delete_works(control_plane: &Client, name: &ClusterName, timeout: Duration) -> Result<(), Error> {
    let namespace = execution_namespace(name);
    let works: Api<Work> = Api::namespaced(control_plane.clone(), namespace.as_str());
    let mut events = pin!(watcher(works.clone(), watcher::Config::default()).default_backoff());
    let problem = || format!("cannot watch Works in {}", namespace.as_str());
    let mut remaining = BTreeSet::new();
    let deletion = async {
        loop {
            match events.try_next().await {
                Ok(Some(Event::Init)) => remaining.clear(),
                Ok(Some(Event::InitApply(work) | Event::Apply(work))) => {
                    remaining.insert(work.name_any());
                    if work.metadata.deletion_timestamp.is_none() {
                        delete(&works, &work.name_any()).await?;
                    }
                }
                Ok(Some(Event::Delete(work))) => {
                    remaining.remove(&work.name_any());
                    if remaining.is_empty() {
                        return Ok(());
                    }
                }
                Ok(Some(Event::InitDone)) if remaining.is_empty() => return Ok(()),
                Ok(Some(Event::InitDone)) => {}
                Ok(None) => {
                    return Err(Error::WatchEnded {
                        resource: "Works",
                        reason: "the stream of events is closed".to_owned(),
                    });
                }
                Err(error) => {
                    if let ControlFlow::Break(error) = wait::retry_after_error(error) {
                        return Err(Error::kube(problem(), error));
                    }
                }
            }
        }
    };
    match tokio::time::timeout(timeout, deletion).await {
        Ok(result) => result,
        Err(_) => {
            let object = format!("the execution namespace of cluster {name} with {} Works", remaining.len());
            Err(Error::finalizers_remain(object, timeout))
        }
    }
}

async fn wait_for_namespace_deletion(
    control_plane: &Client,
    name: &ClusterName,
    timeout: Duration,
) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(control_plane.clone());
    let namespace = execution_namespace(name);
    match wait::until(&namespaces, namespace.as_str(), timeout, |namespace| namespace.is_none()).await? {
        Some(_) => Ok(()),
        None => Err(Error::finalizers_remain(format!("namespace {}", namespace.as_str()), timeout)),
    }
}

/// Deletes an agent's permissions: those of Crowsnest, and those that `karmadactl register` creates.
pub(crate) async fn revoke_agent(control_plane: &Client, name: &ClusterName, namespace: &str) -> Result<(), Error> {
    let crowsnest_role = format!("crowsnest:agent:{name}");
    let karmada_role = format!("system:karmada:{name}:agent");
    for role in [&crowsnest_role, &karmada_role] {
        revoke(control_plane, role).await?;
    }
    for role in [&crowsnest_role, &format!("{karmada_role}-secret")] {
        revoke_in(control_plane, namespace, role).await?;
    }
    Ok(())
}

/// Deletes the agent's account, its permissions (see docs/TUNNEL.md, or those that `karmadactl register` creates)
/// and its tokens.
async fn clean_control_plane(control_plane: &Client, options: &UnregisterOptions) -> Result<(), Error> {
    let UnregisterOptions { name, namespace, .. } = options;
    revoke_agent(control_plane, name, namespace).await?;
    let account = format!("agent-{name}");
    delete(&Api::<ServiceAccount>::namespaced(control_plane.clone(), namespace), &account).await?;
    let secrets: Api<Secret> = Api::namespaced(control_plane.clone(), namespace);
    for secret in [account.as_str(), name.as_str(), &impersonator_secret_name(name)] {
        delete(&secrets, secret).await?;
    }
    Ok(())
}

/// Deletes the agent first, because a restarted agent would register its cluster again.
async fn remove_agent(member: &Client, options: &UnregisterOptions) -> Result<(), Error> {
    let UnregisterOptions { name, namespace, agent_namespace, agent, .. } = options;
    delete(&Api::<Deployment>::namespaced(member.clone(), agent_namespace), agent).await?;
    revoke(member, agent).await?;
    delete(&Api::<ServiceAccount>::namespaced(member.clone(), agent_namespace), AGENT_ACCOUNT).await?;
    delete(&Api::<Secret>::namespaced(member.clone(), agent_namespace), AGENT_KUBECONFIG).await?;
    clean_member(member, name, namespace).await
}
