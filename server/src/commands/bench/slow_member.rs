//! `crowsnest bench slow-member`: measures how fast changes reach healthy members while another member responds late,
//! or sends its responses at one byte per second.
//!
//! All members have the same templates. The slow member is reached through a forwarder, the others directly.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use super::cache::MeasurementPrinter;
use super::forwarder::Forwarder;
use super::processes::{AdminConnection, BenchProcess};
use super::propagate::{
    BenchFleet, FleetMembers, FleetWatch, POLL_INTERVAL, TemplateChange, create_policy, create_templates, register,
    wait_for_clusters,
};
use super::scratch::ScratchArgs;

#[derive(Debug, Args)]
pub(super) struct SlowMemberArgs {
    /// Number of healthy members
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// Number of templates, propagated to all members
    #[arg(long, default_value_t = 200)]
    config_maps: usize,
    /// Number of sequential changes for each measurement
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// Delay of the slow member's responses, in milliseconds
    #[arg(long, default_value_t = 2_000)]
    delay: u64,
}

const SLOW_MEMBER: &str = "slow";

pub(super) async fn run(args: &SlowMemberArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(
        args.members > 0 && args.config_maps > 0 && args.changes > 0,
        "--members, --config-maps and --changes must be at least 1"
    );
    let mut printer = MeasurementPrinter { out: std::io::stdout() };
    let scratch = scratch.create()?;
    measure(args, scratch.path(), &mut printer).await
}

async fn measure(
    args: &SlowMemberArgs,
    dir: &Path,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let mut fleet = BenchFleet::start(FleetMembers::Processes(args.members), true, dir).await?;
    let mut slow = BenchProcess::start_server(SLOW_MEMBER, false).await?;
    let forwarder = join_through_forwarder(&fleet, &slow).await?;
    wait_for_clusters(&fleet.client, args.members + 1).await?;
    // Watches the healthy members only.
    let mut watch = FleetWatch::start(&fleet).await?;
    create_policy(&fleet.client).await?;
    create_templates(&fleet.client, args.config_maps).await?;
    watch.wait_for(args.config_maps * args.members, |_| true).await?;
    fleet.controllers.wait_until_idle().await?;

    measure_changes(&fleet, &mut watch, args, "slow-member/before", printer).await?;
    slow.delay_responses(Duration::from_millis(args.delay)).await?;
    measure_changes(&fleet, &mut watch, args, "slow-member/delayed", printer).await?;
    slow.delay_responses(Duration::ZERO).await?;
    forwarder.trickle();
    measure_changes(&fleet, &mut watch, args, "slow-member/trickling", printer).await?;
    forwarder.open();
    drop(watch);
    fleet.stop().await?;
    forwarder.stop().await;
    slow.stop().await
}

/// Registers a member with the address of a new forwarder.
async fn join_through_forwarder(fleet: &BenchFleet, member: &BenchProcess) -> anyhow::Result<Forwarder> {
    let connection = member.connection()?;
    let url: http::Uri = connection.url.parse()?;
    let host = url.host().context("the member has no host")?;
    let port = url.port_u16().context("the member has no port")?;
    let forwarder = Forwarder::start(host.to_owned(), port).await?;
    let connection = AdminConnection { url: format!("https://{}", forwarder.address()), ..connection };
    register(&fleet.client, SLOW_MEMBER, &connection).await?;
    Ok(forwarder)
}

/// Changes one template after the other and measures the time until all healthy members have the change.
async fn measure_changes(
    fleet: &BenchFleet,
    watch: &mut FleetWatch,
    args: &SlowMemberArgs,
    name: &str,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let mut times = Vec::with_capacity(args.changes);
    for number in 0..args.changes {
        let change = TemplateChange { template: number % args.config_maps, stamp: format!("{name} {number}") };
        times.push(change.measure(&fleet.client, watch, args.members).await?);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    printer.print_percentiles(name, times)
}
