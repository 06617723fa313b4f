//! The members of `up`: simulated ones that it runs, or real ones that it joins ([`super::joined`]).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::condition;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::kubeconfig;
use crowsnest_kube_apiserver::Data;
use crowsnest_members::join::{ClusterLocation, JoinOptions, join};
use crowsnest_process::data_dir::DataDir;
use crowsnest_registry::storage::Durability;
use crowsnest_sim::load::Load;
use crowsnest_sim::member::{Member, MemberConfig, Profile as MemberProfile};
use futures::future::{join_all, try_join_all};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait;

use super::config::{self, Config};
use super::fleet::{MemberRequest, MemberShape, ShapeChange};
use super::joined::JoinedClusters;
use super::kubeconfigs::Kubeconfigs;
use super::progress::Progress;

/// Timeout for the first status of each member at start-up.
const FIRST_STATUS_TIMEOUT: Duration = Duration::from_secs(15);
/// State file with the ports of the members, so that kubeconfigs stay valid after a restart.
pub(super) const PORTS_FILE: &str = "ports.json";
/// State file with the shapes of the members, so that a start without settings continues with the same fleet.
const SHAPES_FILE: &str = "shapes.json";

pub(super) struct Members {
    simulated: Vec<SimulatedMember>,
    joined: Option<JoinedClusters>,
}

/// A simulated member.
struct SimulatedMember {
    member: Arc<Member>,
    /// Change of its shape since the last start; `None` leaves its Cluster unchanged.
    change: Option<ShapeChange>,
}

impl Members {
    /// Starts the simulated members; the clusters in `joined` are already running.
    pub(super) async fn start(
        config: &Config,
        joined: Option<JoinedClusters>,
        dir: &DataDir,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let config::Members::Simulated(requests) = &config.members else {
            return Ok(Self { simulated: Vec::new(), joined });
        };
        let mut ports: BTreeMap<String, u16> = dir.read_state(PORTS_FILE).unwrap_or_default();
        let shapes: BTreeMap<String, MemberShape> = dir.read_state(SHAPES_FILE).unwrap_or_default();
        let starts = requests.iter().enumerate().map(|(index, MemberRequest { name, shape })| {
            let previous_shape = shapes.get(name.as_str()).cloned();
            let listen = local_address(ports.get(name.as_str()).copied());
            async move {
                if config.is_conformance {
                    return anyhow::Ok((start_member(name, None, dir, listen, true).await?, None));
                }
                let previous_or_default =
                    || previous_shape.clone().unwrap_or_else(|| MemberShape::default_for_index(index));
                let new_shape = shape.clone().unwrap_or_else(previous_or_default);
                if previous_shape.as_ref().is_some_and(|previous_shape| *previous_shape != new_shape) {
                    progress.report_done(&format!(
                        "member {name}: settings changed since the last start; the new ones are applied"
                    ));
                }
                let member = start_member(name, Some(&new_shape), dir, listen, false).await?;
                let change = ShapeChange { is_requested: shape.is_some(), before: previous_shape, after: new_shape };
                Ok((member, Some(change)))
            }
        });
        let mut simulated = Vec::new();
        for (member, change) in try_join_all(starts).await? {
            ports.insert(member.name().to_owned(), member.address().port());
            simulated.push(SimulatedMember { member, change });
        }
        dir.write_state(PORTS_FILE, &ports)?;
        Ok(Self { simulated, joined: None })
    }

    pub(super) fn len(&self) -> usize {
        self.simulated.len() + self.joined.as_ref().map_or(0, |joined| joined.names().count())
    }

    pub(super) fn simulated_members(&self) -> BTreeMap<String, Arc<Member>> {
        self.simulated.iter().map(|SimulatedMember { member, .. }| (member.name().to_owned(), member.clone())).collect()
    }

    /// Name of the first member, and path of the kubeconfig with a context of that name. `fleet_kubeconfig` is the path
    /// for simulated members.
    pub(super) fn first<'a>(&'a self, fleet_kubeconfig: &'a Path) -> Option<(&'a str, &'a Path)> {
        let simulated = self.simulated.first().map(|first| (first.member.name(), fleet_kubeconfig));
        simulated
            .or_else(|| self.joined.as_ref().and_then(|joined| Some((joined.names().next()?.as_str(), joined.file()))))
    }

    /// Registers all members in the control plane, and writes the kubeconfigs of the simulated ones.
    pub(super) async fn join(
        &self,
        control_plane: &kube::Client,
        dir: &DataDir,
        kubeconfigs: &mut Kubeconfigs,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let mut joins = Vec::new();
        for SimulatedMember { member, change } in &self.simulated {
            let member_kubeconfig = kubeconfigs.add(member.name(), &member.kubeconfig()?)?;
            let config = kubeconfig::config_from_content(member_kubeconfig).await?;
            joins.push(join_simulated(control_plane, member.name().parse()?, config, change.as_ref()));
        }
        try_join_all(joins).await?;
        let mut shapes: BTreeMap<String, MemberShape> = dir.read_state(SHAPES_FILE).unwrap_or_default();
        for SimulatedMember { member, change } in &self.simulated {
            shapes.extend(change.as_ref().map(|change| (member.name().to_owned(), change.after.clone())));
        }
        dir.write_state(SHAPES_FILE, &shapes)?;
        match &self.joined {
            Some(joined) => joined.join(control_plane, progress).await,
            None => Ok(()),
        }
    }

    /// Waits until the controllers have reported the first status of each member, at most [`FIRST_STATUS_TIMEOUT`].
    /// Objects that are scheduled earlier would be placed only in the members that already have a status.
    pub(super) async fn wait_for_first_status(&self, control_plane: &kube::Client, progress: &Progress) {
        let simulated = self.simulated.iter().map(|SimulatedMember { member, .. }| member.name().to_owned());
        let joined = self.joined.iter().flat_map(JoinedClusters::names).map(ToString::to_string);
        let waits = simulated.chain(joined).map(|name| async move {
            let clusters: Api<Cluster> = Api::all(control_plane.clone());
            let first_status = wait::await_condition(clusters, &name, |cluster: Option<&Cluster>| {
                cluster.is_none_or(|cluster| {
                    let find_condition =
                        |kind: &str| cluster.status.conditions.iter().find(|condition| condition.type_ == kind);
                    let ready = find_condition(condition::READY);
                    ready.is_some_and(|ready| {
                        ready.status != "True" || find_condition(condition::COMPLETE_API_ENABLEMENTS).is_some()
                    })
                })
            });
            if !matches!(tokio::time::timeout(FIRST_STATUS_TIMEOUT, first_status).await, Ok(Ok(_))) {
                progress.warn(&format!("the status of cluster {name} has not been reported yet"));
            }
        });
        join_all(waits).await;
    }

    /// Creates synthetic workloads, distributed evenly over the members.
    pub(super) async fn start_load(&self, load: &Load, progress: &Progress) -> anyhow::Result<()> {
        let count = self.simulated.len();
        anyhow::ensure!(count > 0, "--load requires simulated members");
        let shares = self.simulated.iter().enumerate();
        let shares = shares.map(|(index, SimulatedMember { member, .. })| (member, load.share(index, count)));
        progress.begin(&format!("{} synthetic pods", load.pods));
        let starts = shares.filter(|(_, share)| share.pods > 0).map(|(member, share)| member.start_load(share));
        let reports = try_join_all(starts).await.context("cannot create the synthetic workloads")?;
        let written: usize = reports.iter().map(|report| report.written).sum();
        progress.report_done(&format!("{} synthetic pods, {written} of them new", load.pods));
        Ok(())
    }

    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        try_join_all(self.simulated.iter().map(|SimulatedMember { member, .. }| member.stop()))
            .await
            .context("cannot stop a member")?;
        Ok(())
    }
}

/// Registers a simulated member. Its shape is written to the Cluster only if [`ShapeChange::requires_write`] is true, so
/// that changes by users are kept.
async fn join_simulated(
    control_plane: &kube::Client,
    name: ClusterName,
    config: kube::Config,
    change: Option<&ShapeChange>,
) -> anyhow::Result<()> {
    let mut options = JoinOptions { refresh: true, ..JoinOptions::new(name.clone()) };
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let existing = clusters.get_opt(name.as_str()).await.with_context(|| format!("cannot read Cluster {name}"))?;
    let change = change.filter(|change| change.requires_write(existing.as_ref()));
    if let Some(MemberShape { provider, region, zones, labels, .. }) = change.map(|change| &change.after) {
        options.location =
            ClusterLocation { provider: Some(provider.clone()), region: Some(region.clone()), zones: zones.clone() };
        options.labels = labels.clone();
    }
    join(control_plane, &config, &options).await.with_context(|| format!("cannot join member {name}"))?;
    if let Some(patch) = change.and_then(ShapeChange::removal_patch) {
        let result = clusters.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
        result.with_context(|| format!("cannot write Cluster {name}"))?;
    }
    Ok(())
}

/// Loopback address with this port, or with any free port if this one is in use. Each start writes the kubeconfig again,
/// so that it contains the port.
pub(super) fn local_address(port: Option<u16>) -> SocketAddr {
    let is_free = |port: &u16| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    SocketAddr::from((Ipv4Addr::LOCALHOST, port.filter(is_free).unwrap_or(0)))
}

pub(super) async fn start_member(
    name: &ClusterName,
    shape: Option<&MemberShape>,
    dir: &DataDir,
    listen: SocketAddr,
    is_conformance: bool,
) -> anyhow::Result<Arc<Member>> {
    let default = MemberConfig::new(name.as_str());
    let config = MemberConfig {
        data: Data::Directory { path: dir.dir(&format!("members/{name}"))?, durability: Durability::Process },
        listen,
        profile: if is_conformance { MemberProfile::Conformance } else { MemberProfile::Default },
        node_shapes: shape.map(|shape| shape.nodes.clone()),
        kubernetes_version: shape.map_or(default.kubernetes_version.clone(), |shape| shape.kubernetes_version.clone()),
        ..default
    };
    Member::start(config).await.with_context(|| format!("cannot start member {name}"))
}
