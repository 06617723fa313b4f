//! `crowsnest bench writes`: counts the requests that the controllers send to the control plane for each Deployment,
//! from its creation until its status is complete, with conflicts and CPU time.
//!
//! Control plane, controllers and simulated members are separate processes; real members can be used instead. The
//! requests are read from the audit log of the control plane.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};
use serde::Deserialize;

use super::cache::MeasurementPrinter;
use super::joined_members::JoinedMembers;
use super::processes::{BenchProcess, CONTROLLERS};
use super::propagate::wait_for_clusters;
use super::scratch::ScratchArgs;
use super::workloads::{self, Deployments, NAMESPACE};

/// Maximum number of concurrent requests of the benchmark.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Interval between checks of the Deployments.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of every step.
const STEP_TIMEOUT: Duration = Duration::from_secs(900);
/// HTTP status of an update that is rejected because the object changed (409 Conflict).
const CONFLICT_STATUS: u16 = 409;
/// Verbs that only read.
const READ_VERBS: [&str; 3] = ["get", "list", "watch"];

#[derive(Debug, Args)]
pub(super) struct WritesArgs {
    /// Number of Deployments, divided over all members
    #[arg(long, default_value_t = 150)]
    deployments: usize,
    /// Number of simulated members
    #[arg(long, default_value_t = 2)]
    members: usize,
    /// Kubeconfig file of a real cluster, instead of simulated members; repeat for more
    #[arg(long, value_name = "FILE", conflicts_with = "members")]
    member_kubeconfig: Vec<PathBuf>,
    /// Number of replicas of each Deployment
    #[arg(long, default_value_t = 9)]
    replicas: usize,
    /// Time to wait for deferred writes after completion, in seconds
    #[arg(long, default_value_t = 15)]
    settle: u64,
}

pub(super) async fn run(args: &WritesArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(args.members > 0 && args.deployments > 0, "--members and --deployments must be at least 1");
    let mut printer = MeasurementPrinter { out: std::io::stdout() };
    measure(args, scratch.create()?.path(), &mut printer).await
}

async fn measure(args: &WritesArgs, dir: &Path, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
    let (audit_log, kubeconfig) = (dir.join("audit.log"), dir.join("control-plane.kubeconfig"));
    let control_plane = BenchProcess::start_audited_control_plane(&audit_log).await?;
    std::fs::write(&kubeconfig, control_plane.connection()?.controllers_kubeconfig)?;
    let mut controllers = BenchProcess::start_controllers(&dir.join("cache"), Some(&kubeconfig)).await?;
    let client = control_plane.connection()?.client().await?;
    let simulated = (args.members, args.deployments * args.replicas);
    let members = JoinedMembers::join_or_simulate(&client, &args.member_kubeconfig, NAMESPACE, simulated).await?;
    let result = propagate_deployments(args, &client, &mut controllers, members.len()).await;
    members.remove(&client, NAMESPACE).await?;
    let measurement = result?;
    controllers.stop().await?;
    control_plane.stop().await?;
    members.stop().await?;

    printer.print("writes/complete", measurement.completed_after.as_secs_f64(), "s")?;
    printer.print("writes/controllers-cpu", measurement.cpu.as_secs_f64(), "s")?;
    printer.print_megabytes("writes/controllers-peak-rss", measurement.peak_bytes)?;
    let log = std::fs::read_to_string(&audit_log).with_context(|| format!("cannot read {}", audit_log.display()))?;
    print_counts(&count_requests(&log, measurement.period)?, args.deployments, printer)
}

/// Measurement of the propagation of all Deployments, until the controllers are idle.
struct PropagationMeasurement {
    completed_after: Duration,
    /// CPU time of the controllers.
    cpu: Duration,
    /// Peak resident memory of the controllers in bytes.
    peak_bytes: u64,
    /// Start and end of the measurement.
    period: (Timestamp, Timestamp),
}

async fn propagate_deployments(
    args: &WritesArgs,
    client: &Client,
    controllers: &mut BenchProcess,
    members: usize,
) -> anyhow::Result<PropagationMeasurement> {
    wait_for_clusters(client, members).await?;
    workloads::create_namespace(client).await?;
    workloads::create_dividing_policy(client, "Weighted").await?;
    // Deployments can be applied only after the namespace exists in all members.
    controllers.wait_until_idle().await?;

    let (start, from, cpu_before) = (Instant::now(), Timestamp::now(), controllers.cpu_time()?);
    let deployments = Deployments {
        count: args.deployments,
        replicas: args.replicas,
        max_concurrent_creates: MAX_CONCURRENT_REQUESTS,
    };
    deployments.create(client).await?;
    wait_for_deployments(client, args).await?;
    let completed_after = start.elapsed();
    controllers.wait_until_idle().await?;
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    let (until, cpu) = (Timestamp::now(), controllers.cpu_time()? - cpu_before);
    let peak_bytes = controllers.wait_until_idle().await?.peak_bytes;
    Ok(PropagationMeasurement { completed_after, cpu, peak_bytes, period: (from, until) })
}

/// Waits until the templates' statuses show all replicas as ready.
async fn wait_for_deployments(client: &Client, args: &WritesArgs) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let is_complete = |deployment: &&Deployment| {
        let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        usize::try_from(ready) == Ok(args.replicas)
    };
    let polling = async {
        while api.list(&Default::default()).await?.iter().filter(is_complete).count() < args.deployments {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(STEP_TIMEOUT, polling).await.context("the Deployments did not become ready")?
}

/// An audit event (`audit.k8s.io/v1`), with the fields by which requests are selected and counted.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditEvent {
    stage: String,
    verb: String,
    user: AuditUser,
    object_ref: Option<AuditObject>,
    response_status: Option<AuditStatus>,
    request_received_timestamp: Timestamp,
}

#[derive(Debug, Deserialize)]
struct AuditUser {
    #[serde(default)]
    username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuditObject {
    resource: String,
    subresource: String,
    api_group: String,
}

#[derive(Debug, Deserialize)]
struct AuditStatus {
    #[serde(default)]
    code: u16,
}

/// Verb and resource of requests.
type RequestKind = (String, String);

/// Number of requests, and how many of them failed with 409 Conflict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RequestCount {
    requests: usize,
    conflicts: usize,
}

/// Counts the requests of the controllers in a time range.
fn count_requests(
    log: &str,
    (from, until): (Timestamp, Timestamp),
) -> anyhow::Result<BTreeMap<RequestKind, RequestCount>> {
    let mut counts: BTreeMap<RequestKind, RequestCount> = BTreeMap::new();
    for line in log.lines() {
        let event: AuditEvent = serde_json::from_str(line).context("cannot read the audit log")?;
        let is_counted = event.stage == "ResponseComplete"
            && event.user.username == CONTROLLERS
            && (from..until).contains(&event.request_received_timestamp);
        let Some(object) = event.object_ref.filter(|_| is_counted) else { continue };
        let mut resource = object.resource;
        for (separator, part) in [('.', object.api_group), ('/', object.subresource)] {
            if !part.is_empty() {
                resource.push(separator);
                resource.push_str(&part);
            }
        }
        let count = counts.entry((event.verb, resource)).or_default();
        count.requests += 1;
        count.conflicts += usize::from(event.response_status.is_some_and(|status| status.code == CONFLICT_STATUS));
    }
    Ok(counts)
}

fn print_counts(
    counts: &BTreeMap<RequestKind, RequestCount>,
    deployments: usize,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let unit = "requests/Deployment";
    let per_deployment = |requests: usize| requests as f64 / deployments as f64;
    let (mut writes, mut events, mut reads, mut conflicts) = (0, 0, 0, 0);
    for ((verb, resource), count) in counts {
        printer.print(&format!("writes/{verb}/{resource}"), per_deployment(count.requests), unit)?;
        conflicts += count.conflicts;
        match READ_VERBS.contains(&verb.as_str()) {
            true => reads += count.requests,
            false => writes += count.requests,
        }
        events += if resource == "events" { count.requests } else { 0 };
    }
    printer.print("writes/events", per_deployment(events), unit)?;
    printer.print("writes/all", per_deployment(writes), unit)?;
    printer.print("writes/reads", per_deployment(reads), unit)?;
    printer.print("writes/conflicts", conflicts as f64, "requests")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(user: &str, verb: &str, group: &str, resource: &str, subresource: &str, code: u16, at: &str) -> String {
        let event = json!({
            "stage": "ResponseComplete", "verb": verb, "user": {"username": user},
            "objectRef": {"resource": resource, "apiGroup": group, "subresource": subresource},
            "responseStatus": {"code": code}, "requestReceivedTimestamp": format!("2026-01-01T00:00:{at}.000001Z"),
        });
        event.to_string()
    }

    #[test]
    fn requests_of_the_controllers_are_counted_by_verb_and_resource() {
        let log = [
            line(CONTROLLERS, "patch", "work.karmada.io", "works", "status", 200, "10"),
            line(CONTROLLERS, "patch", "work.karmada.io", "works", "status", 409, "11"),
            line(CONTROLLERS, "get", "", "secrets", "", 200, "12"),
            line(CONTROLLERS, "create", "", "events", "", 201, "13"),
            line("admin", "create", "apps", "deployments", "", 201, "11"),
            line(CONTROLLERS, "patch", "work.karmada.io", "works", "status", 200, "09"),
            line(CONTROLLERS, "patch", "work.karmada.io", "works", "status", 200, "20"),
        ];
        let [from, until] = ["10", "20"].map(|at| format!("2026-01-01T00:00:{at}Z").parse().unwrap());
        let counts = count_requests(&log.join("\n"), (from, until)).unwrap();
        let mut printer = MeasurementPrinter { out: Vec::new() };
        print_counts(&counts, 2, &mut printer).unwrap();
        let expected = "\
            writes/create/events 0.50 requests/Deployment\n\
            writes/get/secrets 0.50 requests/Deployment\n\
            writes/patch/works.work.karmada.io/status 1.00 requests/Deployment\n\
            writes/events 0.50 requests/Deployment\n\
            writes/all 1.50 requests/Deployment\n\
            writes/reads 0.50 requests/Deployment\n\
            writes/conflicts 1.00 requests\n";
        assert_eq!(String::from_utf8(printer.out).unwrap(), expected);
    }
}
