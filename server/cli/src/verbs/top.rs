//! `crowsnest top`: shows the resource usage of pods and nodes in all members, as `kubectl top` does for one cluster.
//! Usage comes from the control plane's merged metrics API, the capacity of nodes from their members.

mod usage;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use http::header;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;

use super::get::is_broken_pipe;
use super::get::requests::warnings;
use crate::clients::{self, explain_failure};
use crate::columns;
use crate::object::text;
use crate::output::terminal;
use crate::pager;
use crate::partial::FleetReadArgs;
use usage::{Capacity, Usage};

const METRICS_API_PATH: &str = "/apis/metrics.k8s.io/v1beta1";

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest top pods -n shop --sort-by cpu",
    "crowsnest top pods -A -l app=web --containers",
    "crowsnest top nodes -C member1,member2",
])]
pub struct TopArgs {
    #[command(subcommand)]
    command: TopCommand,
}

#[derive(Debug, Subcommand)]
enum TopCommand {
    /// Show the usage of pods
    #[command(visible_aliases = ["pod", "po"])]
    Pods(PodsArgs),
    /// Show the usage of nodes, absolute and as a share of their capacity
    #[command(visible_aliases = ["node", "no"])]
    Nodes(NodesArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortBy {
    Cpu,
    Memory,
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// Name of a single object
    name: Option<String>,
    /// Label selector, such as key1=value1,key2!=value2
    #[arg(short = 'l', long, visible_alias = "labels", conflicts_with = "name")]
    selector: Option<String>,
    /// Field selector
    #[arg(long, conflicts_with = "name")]
    field_selector: Option<String>,
    /// Member clusters, separated by commas [default: all]
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Accepted for compatibility with kubectl; requests always use JSON
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    use_protocol_buffers: Option<bool>,
    /// Sort by cpu or memory, largest first
    #[arg(long, value_enum, value_name = "BY")]
    sort_by: Option<SortBy>,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    read: FleetReadArgs,
}

#[derive(Debug, Args)]
struct PodsArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Namespace of the pods [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Show the pods of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Show the usage of each container
    #[arg(long)]
    containers: bool,
    /// Print the sum of all rows
    #[arg(long)]
    sum: bool,
}

#[derive(Debug, Args)]
struct NodesArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Compute shares of the nodes' capacity instead of their allocatable resources
    #[arg(long)]
    show_capacity: bool,
}

pub(crate) async fn run(args: TopArgs) -> anyhow::Result<ExitCode> {
    let result = match &args.command {
        TopCommand::Pods(args) => print_pods(args).await,
        TopCommand::Nodes(args) => print_nodes(args).await,
    };
    match result {
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

async fn print_pods(args: &PodsArgs) -> anyhow::Result<ExitCode> {
    let config = args.common.read.connection.load_config().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = kube::Client::try_from(config)?;
    let path = match args.all_namespaces {
        true => format!("{METRICS_API_PATH}/pods"),
        false => format!("{METRICS_API_PATH}/namespaces/{}/pods", path_segment(&namespace)),
    };
    let (items, partial) = args.common.read_usage(&client, &path).await?;
    let mut usages: Vec<Usage> = items.iter().flat_map(|item| Usage::from_pod(item, args.containers)).collect();
    args.common.sort(&mut usages);
    if usages.is_empty() {
        let err = &mut terminal::stderr();
        match args.all_namespaces {
            true => writeln!(err, "No resources found")?,
            false => writeln!(err, "No resources found in {namespace} namespace.")?,
        }
    } else {
        pager::begin();
        let rows = usage::pod_rows(&usages, args.all_namespaces, args.containers, args.sum, !args.common.no_headers);
        columns::write(&mut io::stdout().lock(), &rows)?;
    }
    Ok(args.common.read.exit_code(partial))
}

async fn print_nodes(args: &NodesArgs) -> anyhow::Result<ExitCode> {
    let config = args.common.read.connection.load_config().await?;
    let client = kube::Client::try_from(config.clone())?;
    let (items, mut partial) = args.common.read_usage(&client, &format!("{METRICS_API_PATH}/nodes")).await?;
    let mut usages: Vec<Usage> = items.iter().map(Usage::from_node).collect();
    args.common.sort(&mut usages);
    let mut capacities = BTreeMap::new();
    let clusters: std::collections::BTreeSet<&str> = usages.iter().map(|usage| usage.cluster.as_str()).collect();
    for cluster in clusters {
        match read_capacity(&config, cluster, args.show_capacity).await {
            Ok(nodes) => {
                capacities.extend(nodes.into_iter().map(|(node, capacity)| ((cluster.to_owned(), node), capacity)));
            }
            Err(error) => {
                partial = true;
                writeln!(terminal::stderr(), "warning: {cluster}: cannot read the capacity of its nodes: {error:#}")?;
            }
        }
    }
    match usages.is_empty() {
        true => writeln!(terminal::stderr(), "No resources found")?,
        false => {
            pager::begin();
            columns::write(&mut io::stdout().lock(), &usage::node_rows(&usages, &capacities, !args.common.no_headers))?;
        }
    }
    Ok(args.common.read.exit_code(partial))
}

/// Capacity, or allocatable resources, of the nodes of a member.
async fn read_capacity(
    config: &kube::Config,
    cluster: &str,
    use_capacity: bool,
) -> anyhow::Result<Vec<(String, Capacity)>> {
    let list = clients::get(&clients::member(config, cluster)?, "/api/v1/nodes").await;
    let list = list.map_err(|error| anyhow!("{}", explain_failure(Some(cluster), &error)))?;
    let nodes = list.get("items").and_then(Value::as_array).into_iter().flatten();
    Ok(nodes.map(|node| (text(node, "/metadata/name").to_owned(), Capacity::from_node(node, use_capacity))).collect())
}

impl CommonArgs {
    /// Reads the current usage. The second value is true if clusters were left out.
    async fn read_usage(&self, client: &kube::Client, path: &str) -> anyhow::Result<(Vec<Value>, bool)> {
        // Several members may have a pod of this name, which only a list request returns.
        let name_selector = self.name.as_ref().map(|name| format!("metadata.name={name}"));
        let selectors = [
            ("labelSelector", self.selector.clone()),
            ("fieldSelector", name_selector.or_else(|| self.field_selector.clone())),
        ];
        let parameters =
            selectors.iter().filter_map(|(name, value)| Some(format!("{name}={}", percent_encode(value.as_ref()?))));
        let path = format!("{path}?{}", parameters.collect::<Vec<_>>().join("&"));
        let request = http::Request::get(path).header(header::ACCEPT, "application/json").body(Body::empty())?;
        let (parts, body) =
            client.send(request).await.map_err(|error| anyhow!("{}", explain_failure(None, &error)))?.into_parts();
        let body = body.collect().await.context("cannot read the usage")?.to_bytes();
        let response: Value = serde_json::from_slice(&body).unwrap_or_default();
        if !parts.status.is_success() {
            let message = text(&response, "/message");
            let message = if message.is_empty() { parts.status.as_str() } else { message };
            anyhow::bail!("{message}; you may lack the permission to read metrics: docs/METRICS.md");
        }
        let warnings = warnings(&parts.headers);
        let mut err = terminal::stderr();
        for warning in &warnings {
            writeln!(err, "warning: {warning}")?;
        }
        let mut items = response.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        items.retain(|item| {
            self.clusters.is_empty() || self.clusters.iter().any(|cluster| cluster == usage::cluster(item))
        });
        if let Some(name) = self.name.as_ref().filter(|_| items.is_empty()) {
            anyhow::bail!(
                "no cluster has metrics of {name}; `crowsnest search 'name:={name}'` finds the clusters that have it"
            );
        }
        Ok((items, !warnings.is_empty()))
    }

    fn sort(&self, usages: &mut [Usage]) {
        match self.sort_by {
            None => {}
            Some(SortBy::Cpu) => usages.sort_by_key(|usage| std::cmp::Reverse(usage.cpu_millicores)),
            Some(SortBy::Memory) => usages.sort_by_key(|usage| std::cmp::Reverse(usage.memory_bytes)),
        }
    }
}
