//! `crowsnest describe`: objects with their events as `kubectl describe` shows them, from one cluster, all clusters
//! that have them, or the control plane.

mod kinds;
pub(crate) mod render;
mod sheet;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use futures::StreamExt;
use serde_json::Value;

use super::get::kind::Kind;
use super::get::{OperationScope, Scope, find_kind, is_broken_pipe, requests};
use crate::clients::{self, describe_cause, explain_failure};
use crate::object::{ObjectArgs, ResolvedObject, is_cluster_error, text};
use crate::output::terminal;
use crate::partial::FleetReadArgs;
use crate::sources::SourceArgs;
use crate::{pager, spinner};

/// Maximum number of concurrent requests.
const MAX_CONCURRENT_REQUESTS: usize = 16;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest describe deploy/web -n shop",
    "crowsnest describe pod web-0 -n shop --cluster member1",
    "crowsnest describe pods -n shop -l app=web",
    "crowsnest describe pods web -n shop                  by prefix, if no pod has this exact name",
    "crowsnest describe propagationpolicy/web -s karmada",
])]
pub struct DescribeArgs {
    /// Object as KIND/NAME or KIND NAME; a KIND alone describes all its objects
    #[arg(value_name = "KIND/NAME", num_args = 1..=2, required_unless_present_any = ["filenames", "kustomize"], conflicts_with_all = ["filenames", "kustomize"])]
    object: Vec<String>,
    /// Namespace of the object [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    sources: SourceArgs,
    /// Label selector for the objects of the kind
    #[arg(short = 'l', long, visible_alias = "labels")]
    selector: Option<String>,
    /// Describe the objects of the kind in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Member clusters, separated by commas [default: all that have the object]
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Describe objects of the control plane, the members or all
    #[arg(short = 's', long, value_enum, value_name = "SCOPE", default_value = "members")]
    operation_scope: OperationScope,
    /// Show the events of the object
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    show_events: bool,
    /// Page size of list requests in objects; 0 disables paging
    #[arg(long, default_value_t = 500, value_name = "N", hide_short_help = true)]
    chunk_size: usize,
    #[command(flatten)]
    read: FleetReadArgs,
}

pub(crate) async fn run(args: DescribeArgs) -> anyhow::Result<ExitCode> {
    match describe(&args).await {
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

/// Rendered objects, and the clusters that failed, with the reasons.
#[derive(Default)]
struct Descriptions {
    descriptions: Vec<String>,
    failed_clusters: Vec<(String, String)>,
}

async fn describe(args: &DescribeArgs) -> anyhow::Result<ExitCode> {
    let result = spinner::with_spinner(|| "querying clusters".to_owned(), describe_selected(args)).await?;
    pager::begin();
    let mut out = terminal::stdout();
    write!(out, "{}", result.descriptions.join("\n\n"))?;
    out.flush()?;
    let mut err = terminal::stderr();
    for (cluster, reason) in &result.failed_clusters {
        writeln!(err, "warning: {cluster}: {reason}")?;
    }
    if result.descriptions.is_empty() && result.failed_clusters.is_empty() {
        writeln!(err, "No resources found{}", args.namespace_suffix())?;
    }
    Ok(args.read.exit_code(!result.failed_clusters.is_empty()))
}

async fn describe_selected(args: &DescribeArgs) -> anyhow::Result<Descriptions> {
    let needs_kind = args.selector.is_some() || args.all_namespaces;
    if !args.sources.is_empty() {
        if needs_kind {
            bail!("-l and -A require a KIND, not files");
        }
        let mut result = Descriptions::default();
        for object in args.sources.objects().await? {
            let description =
                describe_named(args, &ObjectArgs::from_manifest(&object, args.namespace.as_deref())?).await?;
            result.descriptions.extend(description.descriptions);
            result.failed_clusters.extend(description.failed_clusters);
        }
        return Ok(result);
    }
    let object = ObjectArgs::new(args.object.clone(), args.namespace.clone());
    match object.kind_without_name() {
        Some(resource_type) => describe_kind(args, resource_type).await,
        None if needs_kind => {
            bail!("-l and -A require a KIND without NAME, as in `crowsnest describe pods -l app=web`")
        }
        None => describe_named(args, &object).await,
    }
}

impl DescribeArgs {
    /// Suffix of the message `No resources found`, such as ` in shop namespace.`; empty without `--namespace`.
    fn namespace_suffix(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!(" in {namespace} namespace."),
            None => String::new(),
        }
    }

    /// The clusters of `--clusters`; `None` for all.
    fn named_clusters(&self) -> Option<Vec<String>> {
        Some(self.clusters.clone()).filter(|named| !named.is_empty() && *named != ["all"])
    }
}

/// Describes the object of this name; without an exact match, the objects whose names start with it.
async fn describe_named(args: &DescribeArgs, object: &ObjectArgs) -> anyhow::Result<Descriptions> {
    let target = object.resolve(&args.read.connection, &args.clusters).await?;
    let not_found = match describe_exact(args, &target).await {
        Ok(result) => return Ok(result),
        Err(error) => error,
    };
    let (config, kind) = (&target.config, &target.kind);
    let servers = servers(args, config, &target.control_plane).await?;
    let path = kind.gvr.path(target.namespace.as_deref());
    match describe_list(args, kind, &path, &servers, Some(&target.name)).await {
        Ok(result) if !result.descriptions.is_empty() => Ok(result),
        _ => Err(not_found),
    }
}

async fn describe_exact(args: &DescribeArgs, target: &ResolvedObject) -> anyhow::Result<Descriptions> {
    let mut result = Descriptions::default();
    if args.operation_scope != OperationScope::Members {
        match target.read(&target.control_plane, None).await? {
            Some(object) => result.descriptions.push(describe_object(args, &target.control_plane, None, &object).await),
            None if args.operation_scope == OperationScope::Karmada => {
                bail!("the control plane has no {}", target.display_name());
            }
            None => {}
        }
    }
    if args.operation_scope != OperationScope::Karmada {
        let locations = target.clusters(&args.clusters).await?;
        result.failed_clusters.extend(locations.skipped);
        let describe_in = |cluster: String| async move {
            let member = clients::member(&target.config, &cluster)?;
            let object = target.read_in(&cluster).await?;
            anyhow::Ok(describe_object(args, &member, Some(&cluster), &object).await)
        };
        let results =
            futures::stream::iter(locations.clusters.clone()).map(describe_in).buffered(MAX_CONCURRENT_REQUESTS);
        for (cluster, described) in locations.clusters.iter().zip(results.collect::<Vec<_>>().await) {
            match described {
                Ok(description) => result.descriptions.push(description),
                Err(error) if locations.clusters.len() == 1 && result.descriptions.is_empty() => return Err(error),
                Err(error) => result.failed_clusters.push((cluster.clone(), format!("{error:#}"))),
            }
        }
    }
    Ok(result)
}

/// Clients to read from, with the cluster's name; the control plane has none.
type Servers = Vec<(Option<String>, kube::Client)>;

async fn servers(args: &DescribeArgs, config: &kube::Config, control_plane: &kube::Client) -> anyhow::Result<Servers> {
    let mut servers = Vec::new();
    if args.operation_scope != OperationScope::Members {
        servers.push((None, control_plane.clone()));
    }
    if args.operation_scope != OperationScope::Karmada {
        let clusters = match args.named_clusters() {
            Some(named) => named,
            None => requests::list_clusters(control_plane).await?,
        };
        for cluster in clusters {
            let member = clients::member(config, &cluster)?;
            servers.push((Some(cluster), member));
        }
    }
    Ok(servers)
}

/// Describes all objects of a kind, cluster by cluster.
async fn describe_kind(args: &DescribeArgs, resource_type: &str) -> anyhow::Result<Descriptions> {
    let config = args.read.connection.load_config().await?;
    let control_plane = kube::Client::try_from(config.clone())?;
    let scope = args.named_clusters().map_or(Scope::All, Scope::Named);
    let kind = find_kind(resource_type, &scope, &config, &control_plane).await?;
    let namespace = args.namespace.as_deref().unwrap_or(&config.default_namespace);
    let namespace = (kind.namespaced && !args.all_namespaces).then_some(namespace);
    let selector = args.selector.as_deref().map(|labels| format!("?labelSelector={}", percent_encode(labels)));
    let path = format!("{}{}", kind.gvr.path(namespace), selector.unwrap_or_default());
    let servers = servers(args, &config, &control_plane).await?;
    describe_list(args, &kind, &path, &servers, None).await
}

/// Describes the objects of a list from each server; with `prefix`, those whose names start with it.
async fn describe_list(
    args: &DescribeArgs,
    kind: &Kind,
    path: &str,
    servers: &Servers,
    prefix: Option<&str>,
) -> anyhow::Result<Descriptions> {
    let responses = futures::stream::iter(servers)
        .map(|(cluster, client)| async move { (cluster, client, read_list(client, path, args.chunk_size).await) })
        .buffered(MAX_CONCURRENT_REQUESTS)
        .collect::<Vec<_>>()
        .await;
    let (mut result, mut found) = (Descriptions::default(), Vec::new());
    for (cluster, client, listed) in responses {
        match listed {
            Ok(objects) => found.extend(objects.into_iter().map(|object| (cluster.as_deref(), client, object))),
            Err(error) if servers.len() == 1 => return Err(anyhow!("{}", explain_failure(cluster.as_deref(), &error))),
            Err(error) => {
                let server_name = cluster.clone().unwrap_or_else(|| "the control plane".to_owned());
                result.failed_clusters.push((server_name, describe_cause(&error)));
            }
        }
    }
    if let Some(prefix) = prefix {
        found.retain(|(_, _, object)| text(object, "/metadata/name").starts_with(prefix));
    }
    result.descriptions = futures::stream::iter(found)
        .map(|(cluster, client, mut object)| async move {
            // Items of a list omit apiVersion and kind.
            object["apiVersion"] = kind.gvr.api_version().into();
            object["kind"] = kind.kind.as_str().into();
            describe_object(args, client, cluster, &object).await
        })
        .buffered(MAX_CONCURRENT_REQUESTS)
        .collect()
        .await;
    Ok(result)
}

async fn describe_object(args: &DescribeArgs, client: &kube::Client, cluster: Option<&str>, object: &Value) -> String {
    let related = read_related(client, object).await;
    let events = if args.show_events { Some(read_events(client, object).await) } else { None };
    render::render_description(object, cluster, &related, events.as_ref(), jiff::Timestamp::now())
}

/// Reads the related objects that the description includes.
async fn read_related(client: &kube::Client, object: &Value) -> kinds::RelatedObjects {
    let related = kinds::related_requests(object).into_iter();
    let requests = related.map(|(name, path)| async move {
        let result = read_list(client, &path, 0).await;
        (name, result.map_err(|error| describe_cause(&error)))
    });
    futures::future::join_all(requests).await.into_iter().collect()
}

/// The items of a list, read page by page, or the single object at the path. Empty if the kind is not served.
async fn read_list(client: &kube::Client, path: &str, page: usize) -> Result<Vec<Value>, kube::Error> {
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let separator = if path.contains('?') { '&' } else { '?' };
        let response = match (page, token.as_str()) {
            (0, _) => clients::get(client, path).await,
            (page, "") => clients::get(client, &format!("{path}{separator}limit={page}")).await,
            (page, token) => {
                clients::get(client, &format!("{path}{separator}limit={page}&continue={}", percent_encode(token))).await
            }
        };
        let response = match response {
            Ok(response) => response,
            Err(kube::Error::Api(status)) if status.code == 404 && !is_cluster_error(&status) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        match response.get("items").and_then(Value::as_array) {
            Some(items) => found.extend(items.iter().cloned()),
            None => return Ok(vec![response]),
        }
        token = text(&response, "/metadata/continue").to_owned();
        if token.is_empty() {
            return Ok(found);
        }
    }
}

/// Reads the events about an object, latest last.
async fn read_events(client: &kube::Client, object: &Value) -> Result<Vec<Value>, String> {
    let namespace = Some(text(object, "/metadata/namespace")).filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or("default");
    let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
    let mut selector = format!("involvedObject.name={name},involvedObject.kind={kind}");
    // Kubelets set involvedObject.uid of their Node to its name instead of its UID.
    if kind != "Node" {
        selector.push_str(&format!(",involvedObject.uid={}", text(object, "/metadata/uid")));
    }
    let path =
        format!("/api/v1/namespaces/{}/events?fieldSelector={}", path_segment(namespace), percent_encode(&selector));
    let mut events = read_list(client, &path, 0).await.map_err(|error| describe_cause(&error))?;
    events.sort_by_cached_key(render::last_seen);
    Ok(events)
}
