//! Members that a benchmark joins to its control plane: simulated ones, or real clusters by their kubeconfig files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use crowsnest_component_base::kubeconfig::KubeconfigFile;
use crowsnest_members::{UnjoinOptions, unjoin};
use crowsnest_sim::member::shape::NodeShape;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;
use kube::{Api, Client};

use super::failover::join_member;
use super::processes::{BenchProcess, member_name};

/// Time limit for the removal of everything that was propagated to a real member.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(900);

/// Number of pods that are expected to fit a simulated node, less than its capacity because members fill unevenly.
const PODS_PER_NODE: usize = 90;

/// Joined members.
pub(super) struct JoinedMembers {
    /// `None` if the members are real clusters.
    simulated: Option<BenchProcess>,
    /// Names and administrators' clients.
    members: Vec<(String, Client)>,
}

impl JoinedMembers {
    /// Starts and joins this many simulated members, which together have room for this many pods.
    pub(super) async fn simulate(control_plane: &Client, count: usize, pods: usize) -> anyhow::Result<Self> {
        let default_nodes = NodeShape::default().count;
        let nodes = (pods / count.max(1) / PODS_PER_NODE + 1).max(default_nodes);
        let (process, kubeconfigs) = BenchProcess::start_simulated_members(count, nodes).await?;
        let mut members = Vec::with_capacity(count);
        for (number, file) in kubeconfigs.into_iter().enumerate() {
            members.push(join_member(control_plane, member_name(number + 1), file).await?);
        }
        Ok(Self { simulated: Some(process), members })
    }

    /// Joins real clusters by their kubeconfig files. Fails if a cluster has the namespace of the benchmark.
    pub(super) async fn join(control_plane: &Client, files: &[PathBuf], namespace: &str) -> anyhow::Result<Self> {
        let mut joined = Self { simulated: None, members: Vec::new() };
        for (number, file) in files.iter().enumerate() {
            // A name that no other control plane uses, because credentials in the member are named after it.
            let name = format!("crowsnest-bench-{}", number + 1);
            match join_real_member(control_plane, name, file, namespace).await {
                Ok(member) => joined.members.push(member),
                Err(error) => {
                    joined.remove(control_plane, namespace).await?;
                    return Err(error.context(format!("cannot join the cluster of {}", file.display())));
                }
            }
        }
        Ok(joined)
    }

    /// Joins real clusters if there are kubeconfig files, otherwise `count` simulated members with room for `pods`.
    pub(super) async fn join_or_simulate(
        control_plane: &Client,
        files: &[PathBuf],
        namespace: &str,
        (count, pods): (usize, usize),
    ) -> anyhow::Result<Self> {
        match files {
            [] => Self::simulate(control_plane, count, pods).await,
            files => Self::join(control_plane, files, namespace).await,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn clients(&self) -> impl Iterator<Item = &Client> {
        self.members.iter().map(|(_, client)| client)
    }

    /// Removes real members from the control plane, and removes all objects and permissions of the benchmark from these
    /// members. The controllers must still run. Simulated members end with [`Self::stop`].
    pub(super) async fn remove(&self, control_plane: &Client, namespace: &str) -> anyhow::Result<()> {
        if self.simulated.is_some() {
            return Ok(());
        }
        for (name, client) in &self.members {
            let options = UnjoinOptions { wait: REMOVAL_TIMEOUT, ..UnjoinOptions::new(name.parse()?) };
            unjoin(control_plane, Some(client), &options).await.with_context(|| format!("cannot unjoin {name}"))?;
            let namespaces: Api<Namespace> = Api::all(client.clone());
            if namespaces.get_opt(namespace).await?.is_some() {
                namespaces.delete(namespace, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }

    /// Stops simulated members.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        match self.simulated {
            Some(process) => process.stop().await,
            None => Ok(()),
        }
    }
}

async fn join_real_member(
    control_plane: &Client,
    name: String,
    file: &Path,
    namespace: &str,
) -> anyhow::Result<(String, Client)> {
    let file = KubeconfigFile::read(file)?;
    let member = Client::try_from(file.config(None).await?)?;
    let namespaces: Api<Namespace> = Api::all(member);
    ensure!(
        namespaces.get_opt(namespace).await?.is_none(),
        "the namespace {namespace:?} exists in the cluster; delete it if it was left by another run"
    );
    join_member(control_plane, name, file.into_content()).await
}
