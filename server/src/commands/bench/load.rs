//! `crowsnest bench load`: measures how fast synthetic load is created, the memory of the process, and whether the
//! requested churn rate is reached.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crowsnest_component_base::kubeconfig;
use crowsnest_sim::load::{Load, LoadReport};
use futures::TryStreamExt;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde::Deserialize;

use super::scratch::ScratchArgs;

/// Interval between checks of the number of ready pods, and between the requests that measure API latency.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A simulated member and its clients. The control plane serves the load and state endpoints of its members.
struct SimulatedMember {
    name: String,
    api: Client,
    control_plane: Client,
}

/// Fields of `/sim/MEMBER/state` that this benchmark uses.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemberState {
    ready_pods: usize,
    changes: u64,
}

pub(super) async fn run(members: usize, load: &Load, seconds: u32, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(members > 0 && load.pods >= members, "the load must have at least one member and one pod per member");
    let scratch = scratch.create()?;
    let fleet = super::start(scratch.path(), members).await?;
    let members = try_join_all((1..=members).map(|number| connect_member(scratch.path(), number))).await?;

    let load_without_churn = Load { churn_per_second: 0.0, ..load.clone() };
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    tokio::select! {
        result = load_members(&members, &load_without_churn) => result?,
        error = poll_latency(&members[0].api, &mut slowest) => return Err(error),
    }
    let duration = start.elapsed();
    let resident = super::resident_kib(&fleet.child)?;
    // Churn starts only after the readiness measurement, which it would distort.
    load_members(&members, load).await?;
    let (changes, events) = measure_churn(&members, seconds).await?;
    super::stop(fleet).await?;

    let mut out = std::io::stdout().lock();
    writeln!(out, "load/ready {} ms", duration.as_millis())?;
    writeln!(out, "load/rate {:.0} pods/s", load.pods as f64 / duration.as_secs_f64())?;
    writeln!(out, "load/slowest-response {} ms", slowest.as_millis())?;
    writeln!(out, "load/rss {:.1} MB", resident as f64 / 1024.0)?;
    writeln!(out, "load/churn {:.1} changes/s", changes as f64 / f64::from(seconds))?;
    writeln!(out, "load/watched {:.1} pod-events/s", events as f64 / f64::from(seconds))?;
    Ok(())
}

async fn connect_member(dir: &Path, number: usize) -> anyhow::Result<SimulatedMember> {
    let name = format!("member{number}");
    Ok(SimulatedMember { api: connect(dir, &name).await?, control_plane: connect(dir, "cp").await?, name })
}

/// A client of the control plane (`cp`) or a member of `crowsnest up`.
pub(super) async fn connect(dir: &Path, name: &str) -> anyhow::Result<Client> {
    let path = dir.join(format!("kubeconfigs/{name}.kubeconfig"));
    let mut config = kubeconfig::load_config(Some(&path), None).await?;
    // A large load takes longer than the default timeout.
    config.read_timeout = None;
    Ok(Client::try_from(config)?)
}

/// Requests each member's share of the load. Without churn, waits until its healthy pods are ready.
async fn load_members(members: &[SimulatedMember], load: &Load) -> anyhow::Result<()> {
    let numbered = members.iter().enumerate();
    try_join_all(numbered.map(|(number, member)| load_member(member, load.share(number, members.len())))).await?;
    Ok(())
}

async fn load_member(member: &SimulatedMember, share: Load) -> anyhow::Result<()> {
    let request = http::Request::post(format!("/sim/{}/load", member.name))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&share)?)?;
    let report: LoadReport = member.control_plane.request(request).await.context("cannot request the load")?;
    while share.churn_per_second == 0.0 && read_state(member).await?.ready_pods < report.healthy {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn read_state(member: &SimulatedMember) -> anyhow::Result<MemberState> {
    let request = http::Request::get(format!("/sim/{}/state", member.name)).body(Vec::new())?;
    member.control_plane.request(request).await.context("cannot read the state")
}

/// Requests a small list repeatedly and records the slowest response; returns when one fails.
async fn poll_latency(client: &Client, slowest: &mut Duration) -> anyhow::Error {
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let sent_at = Instant::now();
        if let Err(error) = nodes.list_metadata(&ListParams::default().limit(1)).await {
            return anyhow::Error::new(error).context("the API is unavailable while the load is created");
        }
        *slowest = (*slowest).max(sent_at.elapsed());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Counts the changes and the watched pod events within this many seconds.
async fn measure_churn(members: &[SimulatedMember], seconds: u32) -> anyhow::Result<(u64, u64)> {
    let counts = try_join_all(members.iter().map(|member| async move {
        let before = read_state(member).await?.changes;
        let events = count_watch_events(&member.api, seconds).await?;
        Ok::<_, anyhow::Error>((read_state(member).await?.changes - before, events))
    }));
    Ok(counts.await?.into_iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1)))
}

async fn count_watch_events(client: &Client, seconds: u32) -> anyhow::Result<u64> {
    let pods: Api<Pod> = Api::all(client.clone());
    let list = pods.list_metadata(&ListParams::default().limit(1)).await?;
    let resource_version = list.metadata.resource_version.unwrap_or_default();
    let changes = pods.watch_metadata(&WatchParams::default().timeout(seconds), &resource_version).await?;
    let mut changes = std::pin::pin!(changes);
    let mut events = 0;
    while let Some(change) = changes.try_next().await? {
        events += u64::from(!matches!(change, WatchEvent::Bookmark(_)));
    }
    Ok(events)
}
