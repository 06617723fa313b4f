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
use crowsnest_members::join::{JoinOptions, join};
use crowsnest_process::data_dir::DataDir;
use crowsnest_registry::storage::Durability;
use crowsnest_sim::load::Load;
use crowsnest_sim::member::{Member, MemberConfig, Profile as MemberProfile};
use futures::future::{join_all, try_join_all};
use kube::Api;
use kube::runtime::wait;

use super::config::{self, Config};
use super::joined::Joined;
use super::kubeconfigs::Kubeconfigs;
use super::progress::Progress;

/// How long a start waits for what the members have.
const LOOKED_AT_WITHIN: Duration = Duration::from_secs(15);
/// Ports are kept, so that kubeconfigs stay good over restarts.
pub(super) const PORTS: &str = "ports.json";

pub(super) struct Members {
    simulated: Vec<Arc<Member>>,
    joined: Option<Joined>,
}

impl Members {
    /// Starts the simulated ones; `joined` are there already.
    pub(super) async fn start(config: &Config, joined: Option<Joined>, dir: &DataDir) -> anyhow::Result<Self> {
        let config::Members::Simulated(names) = &config.members else {
            return Ok(Self { simulated: Vec::new(), joined });
        };
        let mut ports: BTreeMap<String, u16> = dir.read_state(PORTS).unwrap_or_default();
        let listen = |name: &ClusterName| local(ports.get(name.as_str()).copied());
        let starting = names.iter().map(|name| start_one(name, dir, listen(name), config.is_conformance));
        let simulated = try_join_all(starting).await?;
        for member in &simulated {
            ports.insert(member.name().to_owned(), member.address().port());
        }
        dir.write_state(PORTS, &ports)?;
        Ok(Self { simulated, joined: None })
    }

    pub(super) fn len(&self) -> usize {
        self.simulated.len() + self.joined.as_ref().map_or(0, |joined| joined.names().count())
    }

    pub(super) fn simulated(&self) -> BTreeMap<String, Arc<Member>> {
        self.simulated.iter().map(|member| (member.name().to_owned(), member.clone())).collect()
    }

    /// A member and the kubeconfig that has a context of its name; `own` is the fleet's.
    pub(super) fn first<'a>(&'a self, own: &'a Path) -> Option<(&'a str, &'a Path)> {
        let simulated = self.simulated.first().map(|member| (member.name(), own));
        simulated.or_else(|| self.joined.as_ref().and_then(|j| Some((j.names().next()?.as_str(), j.file()))))
    }

    /// Registers every member with the control plane and writes the kubeconfigs of those that are ours.
    pub(super) async fn join(
        &self,
        control_plane: &kube::Client,
        files: &mut Kubeconfigs,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let mut configs: Vec<(ClusterName, kube::Config)> = Vec::new();
        for member in &self.simulated {
            let own = files.add(member.name(), &member.kubeconfig()?)?;
            let config = kubeconfig::config_of(own).await?;
            configs.push((member.name().parse()?, config));
        }
        let joining = configs.iter().map(|(name, config)| async move {
            let options = JoinOptions { refresh: true, ..JoinOptions::new(name.clone()) };
            join(control_plane, config, &options).await.with_context(|| format!("joining {name}"))
        });
        try_join_all(joining).await?;
        match &self.joined {
            Some(joined) => joined.join(control_plane, progress).await,
            None => Ok(()),
        }
    }

    /// Waits for what the controllers find in each member first: what is asked for before goes to those alone that were faster.
    pub(super) async fn looked_at(&self, control_plane: &kube::Client, progress: &Progress) {
        let simulated = self.simulated.iter().map(|member| member.name().to_owned());
        let joined = self.joined.iter().flat_map(Joined::names).map(ToString::to_string);
        let looking = simulated.chain(joined).map(|name| async move {
            let clusters: Api<Cluster> = Api::all(control_plane.clone());
            let found = wait::await_condition(clusters, &name, |cluster: Option<&Cluster>| {
                cluster.is_none_or(|cluster| {
                    let shown = |kind: &str| cluster.status.conditions.iter().find(|shown| shown.type_ == kind);
                    let ready = shown(condition::READY);
                    ready.is_some_and(|ready| {
                        ready.status != "True" || shown(condition::COMPLETE_API_ENABLEMENTS).is_some()
                    })
                })
            });
            if !matches!(tokio::time::timeout(LOOKED_AT_WITHIN, found).await, Ok(Ok(_))) {
                progress.warn(&format!("what cluster {name} has is not known yet"));
            }
        });
        join_all(looking).await;
    }

    /// Fills the members with synthetic workloads, evenly.
    pub(super) async fn load(&self, load: &Load, progress: &Progress) -> anyhow::Result<()> {
        let count = self.simulated.len();
        anyhow::ensure!(count > 0, "--load fills simulated members, and there are none");
        let shares = self.simulated.iter().enumerate().map(|(number, member)| (member, load.share(number, count)));
        progress.begin(&format!("{} synthetic pods", load.pods));
        let filling = shares.filter(|(_, share)| share.pods > 0).map(|(member, share)| member.start_load(share));
        let reports = try_join_all(filling).await.context("filling the members")?;
        let written: usize = reports.iter().map(|report| report.written).sum();
        progress.done(&format!("{} synthetic pods, {written} of them new", load.pods));
        Ok(())
    }

    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        try_join_all(self.simulated.iter().map(|member| member.stop())).await.context("stopping a member")?;
        Ok(())
    }
}

/// On this machine alone. The port of last time may be taken by now; any other will do, the kubeconfig is written anew.
pub(super) fn local(port: Option<u16>) -> SocketAddr {
    let free = |port: &u16| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    SocketAddr::from((Ipv4Addr::LOCALHOST, port.filter(free).unwrap_or(0)))
}

pub(super) async fn start_one(
    name: &ClusterName,
    dir: &DataDir,
    listen: SocketAddr,
    conformance: bool,
) -> anyhow::Result<Arc<Member>> {
    let config = MemberConfig {
        data: Data::Directory { path: dir.dir(&format!("members/{name}"))?, durability: Durability::Process },
        listen,
        profile: if conformance { MemberProfile::Conformance } else { MemberProfile::Default },
        ..MemberConfig::new(name.as_str())
    };
    Member::start(config).await.with_context(|| format!("starting member {name}"))
}
