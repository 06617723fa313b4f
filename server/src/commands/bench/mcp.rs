//! `crowsnest bench mcp`: measures the tool `search` compared with the same query to the search API, and concurrent
//! assistants.
//!
//! `crowsnest up` runs in another process with simulated members and synthetic pods. Messages pass through the control
//! plane's API server and the aggregated API server, like those of an assistant. Each client has its own user, and sends
//! fewer messages than a user may.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_component_base::kubeconfig;
use http::Request;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::cache::MeasurementPrinter;
use super::environment::PodArgs;
use super::scratch::ScratchArgs;

#[derive(Debug, Clone, Args)]
pub(super) struct McpArgs {
    #[command(flatten)]
    pods: PodArgs,
    /// Number of searches with the tool, and as many with the API
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Duration of the concurrent calls, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

const SEARCH_API: &str = "/apis/search.crowsnest.io/v1alpha1";
/// Group of the users, which may read pods in each member.
const GROUP: &str = "assistants";
/// Time between two messages of a user, who may send 10 a second.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(125);
/// Interval between checks whether all pods are searchable.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const SEARCHABLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Time for which the fleet runs before the measurement, so that merges of the text index are done.
const SETTLE_TIME: Duration = Duration::from_secs(10);

const QUERIES: [&str; 6] = [
    "kind:pod",
    "kind:pod status:Running",
    "kind:pod restarts:<5",
    "cluster:member1 kind:pod sort:-restarts",
    "kind:pod sort:-created",
    "nginx",
];

pub(super) async fn run(args: &McpArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let scratch = scratch.create()?;
    let PodArgs { clusters, pods, pod_bytes } = args.pods;
    let (members, load) = (clusters.to_string(), format!("pods={pods},size={pod_bytes}"));
    let arguments = ["up", "--ui-listen", "127.0.0.1:0", "--members", &members, "--load", &load];
    let fleet = super::spawn(scratch.path(), &arguments).await?;
    allow_reading(scratch.path(), clusters).await?;
    let mut clients = Vec::new();
    for number in 0..args.clients {
        clients.push(connect(scratch.path(), number).await?);
    }
    let first = clients.first().context("no client")?;
    tokio::time::timeout(SEARCHABLE_TIMEOUT, wait_until_searchable(first, pods))
        .await
        .context("not all pods are searchable")??;
    tokio::time::sleep(SETTLE_TIME).await;

    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    let tools = first.request_text(message("tools/list", &json!({}))?).await?;
    printer.print("mcp/tools-list-bytes", tools.len() as f64, "B")?;
    measure_overhead(&clients, args.calls, &mut printer).await?;
    let times = measure_clients(&clients, Duration::from_secs(args.seconds.into())).await?;
    let name = format!("mcp/clients-{}", args.clients);
    printer.print(&name, times.len() as f64 / f64::from(args.seconds), "answers/s")?;
    printer.print_percentiles(&name, times)?;
    super::stop(fleet).await
}

/// Allows the group to read pods in each member.
async fn allow_reading(dir: &Path, members: u32) -> anyhow::Result<()> {
    let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": GROUP},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]}))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({"metadata": {"name": GROUP},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": GROUP},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": GROUP}]}))?;
    for number in 1..=members {
        let member = super::load::connect(dir, &format!("member{number}")).await?;
        Api::all(member.clone()).create(&PostParams::default(), &role).await?;
        Api::all(member).create(&PostParams::default(), &binding).await?;
    }
    Ok(())
}

/// A client of the control plane with a user of its own.
async fn connect(dir: &Path, number: u32) -> anyhow::Result<Client> {
    let path = dir.join("kubeconfigs/cp.kubeconfig");
    let mut config = kubeconfig::load_config(Some(&path), None).await?;
    // The measured time of a request must not include retries.
    config.default_retry = false;
    config.auth_info.impersonate = Some(format!("assistant-{number}"));
    config.auth_info.impersonate_groups = Some(vec!["system:authenticated".to_owned(), GROUP.to_owned()]);
    Ok(Client::try_from(config)?)
}

async fn wait_until_searchable(client: &Client, pods: usize) -> anyhow::Result<()> {
    loop {
        let request = Request::get(format!("{SEARCH_API}/count?q=kind%3Apod")).body(Vec::new())?;
        let count: Value = client.request(request).await?;
        if count["total"].as_u64().and_then(|total| usize::try_from(total).ok()).is_some_and(|total| total >= pods) {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// A message of the Model Context Protocol.
fn message(method: &str, params: &Value) -> anyhow::Result<Request<Vec<u8>>> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let request = Request::post(format!("{SEARCH_API}/mcp")).header(CONTENT_TYPE, "application/json");
    Ok(request.body(body.into_bytes())?)
}

/// Time of a call of the tool `search`.
async fn call_tool(client: &Client, query: &str) -> anyhow::Result<Duration> {
    let request = message("tools/call", &json!({"name": "search", "arguments": {"query": query}}))?;
    let start = Instant::now();
    let response: Value = client.request(request).await?;
    let duration = start.elapsed();
    ensure!(response["result"]["isError"] == false, "{query}: {response}");
    Ok(duration)
}

/// Time of the request that the tool sends for this query.
async fn search(client: &Client, query: &str) -> anyhow::Result<Duration> {
    let facets = percent_encode("kind,status,cluster,namespace");
    let uri = format!("{SEARCH_API}/query?q={}&limit=20&facets={facets}", percent_encode(query));
    let request = Request::get(uri).body(Vec::new())?;
    let start = Instant::now();
    let response: Value = client.request(request).await?;
    let duration = start.elapsed();
    ensure!(response["hits"].as_array().is_some_and(|hits| !hits.is_empty()), "{query}: {response}");
    Ok(duration)
}

/// Ticks at which a user sends a message.
fn message_interval(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// True if a round calls the tool before the API. It does so in every other round of each user.
fn is_tool_first(round: usize, users: usize) -> bool {
    (round % users + round / users).is_multiple_of(2)
}

/// Measures searches with the tool and with the API, one after the other. The users take turns, and in every other round of a
/// user the tool is called first. Each round begins with the same search with the API, which is not measured: the first of
/// several equal searches reads what is not cached yet, and would count as overhead of the tool if the tool sent it.
/// `mcp/difference` is the difference between two searches with the API, and shows how much of `mcp/overhead` is noise.
async fn measure_overhead(
    clients: &[Client],
    calls: u32,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let users = u32::try_from(clients.len())?;
    let mut interval = message_interval(MESSAGE_INTERVAL / users);
    let (mut tool_times, mut search_times) = (Vec::new(), Vec::new());
    let (mut overheads, mut differences) = (Vec::new(), Vec::new());
    for (nth, client) in (0..calls as usize).zip(clients.iter().cycle()) {
        let query = QUERIES[nth % QUERIES.len()];
        interval.tick().await;
        search(client, query).await?;
        let (tool, direct) = if is_tool_first(nth, clients.len()) {
            let tool = call_tool(client, query).await?;
            (tool, search(client, query).await?)
        } else {
            let direct = search(client, query).await?;
            (call_tool(client, query).await?, direct)
        };
        differences.push(search(client, query).await?.saturating_sub(direct));
        tool_times.push(tool);
        search_times.push(direct);
        overheads.push(tool.saturating_sub(direct));
    }
    printer.print_percentiles("mcp/search", tool_times)?;
    printer.print_percentiles("mcp/search-api", search_times)?;
    printer.print_percentiles("mcp/overhead", overheads)?;
    printer.print_percentiles("mcp/difference", differences)
}

/// Times of calls of concurrent clients.
async fn measure_clients(clients: &[Client], duration: Duration) -> anyhow::Result<Vec<Duration>> {
    let end = Instant::now() + duration;
    let mut tasks = JoinSet::new();
    for (number, client) in clients.iter().cloned().enumerate() {
        tasks.spawn(async move {
            let (mut times, mut interval) = (Vec::new(), message_interval(MESSAGE_INTERVAL));
            loop {
                interval.tick().await;
                if Instant::now() >= end {
                    break;
                }
                times.push(call_tool(&client, QUERIES[(number + times.len()) % QUERIES.len()]).await?);
            }
            Ok::<_, anyhow::Error>(times)
        });
    }
    let mut all = Vec::new();
    while let Some(times) = tasks.join_next().await {
        all.extend(times??);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::one_user(1)]
    #[case::even(20)]
    #[case::odd(3)]
    fn each_user_calls_the_tool_first_in_every_other_round(#[case] users: usize) {
        for user in 0..users {
            let firsts: Vec<bool> = (0..10).map(|round| is_tool_first(user + round * users, users)).collect();
            assert!(firsts.windows(2).all(|pair| pair[0] != pair[1]), "{user}: {firsts:?}");
        }
    }
}
