//! `crowsnest get`: displays objects of all clusters as `kubectl get` displays those of one. Without `--clusters` it
//! sends one request to the fleet-wide proxy if that serves the resource, and otherwise, or with `--clusters`, one to
//! each member.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;

use crate::clients;
use crate::output::Format;
use crate::output::color::ColorArgs;
use crate::output::terminal;
use crate::pager;
use crate::partial::FleetReadArgs;
use crate::sources::SourceArgs;
use arguments::RequestedObject;
use collect::{PendingGet, Responses};
use extra_columns::{ExtraColumns, SortBy};
use kind::Kind;
use printer::Printer;
use requests::GetRequest;

mod arguments;
mod collect;
mod extra_columns;
mod follow;
pub(crate) mod kind;
mod printer;
pub mod requests;
mod table;

/// Name of the control plane in the column CLUSTER.
const CONTROL_PLANE: &str = "Karmada";

/// karmadactl's `--operation-scope`: where to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OperationScope {
    /// The control plane
    Karmada,
    /// The member clusters
    Members,
    /// The control plane and the member clusters
    All,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest get pods -n shop",
    "crowsnest get deploy -A --clusters all",
    "crowsnest get node n1 --cluster member1 -o yaml",
    "crowsnest get pods -A -l app=web -w",
    "crowsnest get pods -A -o custom-columns=POD:.metadata.name,NODE:.spec.nodeName",
    "crowsnest get deploy,svc -n shop --sort-by .metadata.creationTimestamp",
    "crowsnest get deploy -s karmada",
])]
pub struct GetArgs {
    /// Kind to display, such as pods, deploy or deployments.apps; several separated by commas; or KIND/NAME
    #[arg(value_name = "KIND", required_unless_present_any = ["filenames", "kustomize", "raw"], conflicts_with_all = ["filenames", "kustomize", "raw"])]
    kind: Option<String>,
    /// Names of objects, or more KIND/NAME arguments
    #[arg(value_name = "NAME")]
    name: Vec<String>,
    #[command(flatten)]
    sources: SourceArgs,
    /// Path to request from the control plane or, with --cluster, from a member; the response is printed unchanged
    #[arg(long, value_name = "PATH", conflicts_with_all = ["filenames", "kustomize", "watch", "watch_only", "output"])]
    raw: Option<String>,
    /// Member cluster to display objects of
    #[arg(long, conflicts_with = "clusters")]
    cluster: Option<String>,
    /// Member clusters, separated by commas, or `all`; requested directly [default: the fleet as one cluster]
    #[arg(short = 'C', long, value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Namespace of the objects [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Display the objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Label selector, such as key1=value1,key2!=value2
    #[arg(short = 'l', long, visible_alias = "labels", conflicts_with = "name")]
    selector: Option<String>,
    /// Field selector, such as status.phase=Running
    #[arg(long, conflicts_with = "name")]
    field_selector: Option<String>,
    /// Display objects of the control plane, the members or all [default: members]
    #[arg(short = 's', long, value_enum, value_name = "SCOPE", conflicts_with = "cluster")]
    operation_scope: Option<OperationScope>,
    /// Output format: wide, json, yaml, kyaml, name, jsonpath=TEMPLATE, go-template=TEMPLATE,
    /// custom-columns=HEAD:PATH,…
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::parse_for_objects)]
    output: Option<Format>,
    /// Watch for changes after listing
    #[arg(short, long)]
    watch: bool,
    /// Watch for changes without listing first
    #[arg(long, conflicts_with = "watch")]
    watch_only: bool,
    /// Show the event type of each change: ADDED, MODIFIED or DELETED
    #[arg(long)]
    output_watch_events: bool,
    /// JSONPath expression to sort by, such as .metadata.creationTimestamp
    #[arg(long, value_name = "PATH", value_parser = SortBy::parse)]
    sort_by: Option<SortBy>,
    /// Labels to show as columns, separated by commas
    #[arg(short = 'L', long, value_delimiter = ',', value_name = "LABELS")]
    label_columns: Vec<String>,
    /// Show all labels in the last column
    #[arg(long)]
    show_labels: bool,
    /// Show the kind before each name
    #[arg(long)]
    show_kind: bool,
    /// Show metadata.managedFields in JSON and YAML
    #[arg(long)]
    show_managed_fields: bool,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    color: ColorArgs,
    /// Exit with 0 if the object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    #[command(flatten)]
    read: FleetReadArgs,
}

/// Clusters to read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All members through the fleet-wide proxy.
    Fleet,
    All,
    Named(Vec<String>),
    /// The control plane and these members; `None` for all members.
    ControlPlane(Option<Vec<String>>),
}

impl GetArgs {
    fn scope(&self) -> Scope {
        let clusters = Some(self.clusters.clone()).filter(|clusters| !clusters.is_empty() && clusters[0] != "all");
        match self.operation_scope {
            Some(OperationScope::Karmada) => return Scope::ControlPlane(Some(Vec::new())),
            Some(OperationScope::All) => return Scope::ControlPlane(clusters),
            Some(OperationScope::Members) | None => {}
        }
        match (&self.cluster, self.clusters.as_slice()) {
            (Some(cluster), _) => Scope::Named(vec![cluster.clone()]),
            (None, []) => Scope::Fleet,
            (None, [all]) if all == "all" => Scope::All,
            (None, clusters) => Scope::Named(clusters.to_vec()),
        }
    }

    fn is_watch(&self) -> bool {
        self.watch || self.watch_only
    }

    fn extra_columns(&self) -> ExtraColumns {
        ExtraColumns {
            labels: self.label_columns.clone(),
            shows_all_labels: self.show_labels,
            shows_adoption: matches!(self.output, Some(Format::Wide)),
            sort: self.sort_by.clone(),
        }
    }

    fn prints_table(&self) -> bool {
        self.output.as_ref().is_none_or(Format::is_table)
    }
}

pub(crate) async fn run(args: GetArgs) -> anyhow::Result<ExitCode> {
    let result = match &args.raw {
        Some(path) => print_raw(&args, path).await,
        None => get(&args).await,
    };
    match result {
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

async fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    let requested = args.requested_objects().await?;
    let config = args.read.connection.load_config().await?;
    let control_plane = kube::Client::try_from(config.clone())?;
    let served = crowsnest_members::discovery::discover(&control_plane).await?;
    let scope = args.scope();
    let mut requests = Vec::new();
    for RequestedObject { kind: kind_argument, name, namespace } in requested {
        let mut kinds = Kind::resolve_all(&kind_argument, &served);
        if kinds.is_empty() {
            kinds.push(find_in_members(&kind_argument, &scope, &config, &control_plane).await?);
        }
        for kind in kinds {
            let explicit_namespace = namespace.clone().or_else(|| args.namespace.clone());
            let namespace = (kind.namespaced && !args.all_namespaces)
                .then(|| explicit_namespace.unwrap_or_else(|| config.default_namespace.clone()));
            let (labels, fields, as_table) = (args.selector.clone(), args.field_selector.clone(), args.prints_table());
            let (name, with_objects) = (name.clone(), args.sort_by.is_some());
            let request = GetRequest { kind, namespace, name, labels, fields, as_table, with_objects };
            let (config, control_plane) = (&config, &control_plane);
            requests.push(PendingGet { args, config, control_plane, scope: &scope, request });
        }
    }
    if requests.len() > 1 && args.is_watch() {
        bail!("-w requires a single kind, or a single object");
    }
    run_requests(args, &requests).await
}

/// Prints the response at a path unchanged.
async fn print_raw(args: &GetArgs, path: &str) -> anyhow::Result<ExitCode> {
    if !path.starts_with('/') {
        bail!("invalid path {path:?}: expected an absolute path, such as /version");
    }
    let config = args.read.connection.load_config().await?;
    let (client, cluster) = match args.scope() {
        Scope::Named(named) if named.len() == 1 => (clients::member(&config, &named[0])?, Some(named[0].clone())),
        Scope::Fleet | Scope::ControlPlane(_) if args.clusters.is_empty() => (kube::Client::try_from(config)?, None),
        _ => bail!("--raw requires the control plane, or a single member named with --cluster"),
    };
    let request = http::Request::get(path).body(Vec::new())?;
    let text = client.request_text(request).await;
    let text = text.map_err(|error| anyhow!("{}", clients::explain_failure(cluster.as_deref(), &error)))?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush().map(|()| ExitCode::SUCCESS)?)
}

/// Sends the requests and prints their results. If one of several fails, its error is printed with the other results.
async fn run_requests(args: &GetArgs, requests: &[PendingGet<'_>]) -> anyhow::Result<ExitCode> {
    if let [one] = requests {
        let results = [(one, one.collect_responses().await?)];
        let printer = print(args, &results)?;
        return match (&results, printer) {
            ([(one, responses)], Some(printer)) if args.is_watch() => {
                follow::follow(&one.request.as_watch(), responses, printer).await
            }
            ([(_, responses)], _) => Ok(args.read.exit_code(responses.is_partial)),
        };
    }
    let (mut results, mut failed) = (Vec::new(), false);
    for request in requests {
        match request.collect_responses().await {
            Ok(responses) => results.push((request, responses)),
            Err(error) => {
                failed = true;
                writeln!(terminal::stderr(), "error: {error:#}")?;
            }
        }
    }
    print(args, &results)?;
    let is_partial = results.iter().any(|(_, responses)| responses.is_partial);
    Ok(if failed { ExitCode::FAILURE } else { args.read.exit_code(is_partial) })
}

/// Prints the results: a table per kind, or one document. Returns the printer to continue a watch with.
fn print(args: &GetArgs, results: &[(&PendingGet<'_>, Responses)]) -> anyhow::Result<Option<Printer>> {
    if !args.is_watch() {
        pager::begin();
    }
    let (mut out, mut err) = (io::stdout().lock(), terminal::stderr());
    let successes = || results.iter().flat_map(|(_, responses)| &responses.successes);
    for warning in successes().flat_map(|(_, response)| &response.warnings) {
        writeln!(err, "warning: {warning}")?;
    }
    let Some((first, _)) = results.first() else { return Ok(None) };
    let now = jiff::Timestamp::now();
    if !args.prints_table() && !args.is_watch() {
        let mut printer = Printer::new(args, &first.request, now);
        for (pending, _) in results {
            let kind = &pending.request.kind;
            printer.resources.insert(kind.kind.clone(), kind.gvr.resource.to_string());
        }
        let all = successes().flat_map(|(source, response)| response.objects(source.cluster.as_deref()));
        printer.print_all(&mut out, all.collect(), matches!(results, [(one, _)] if one.request.name.is_some()))?;
        out.flush()?;
        return Ok(None);
    }
    let (mut last, mut rows) = (None, 0);
    let kinds: Vec<_> = results.chunk_by(|left, right| left.0.request.kind == right.0.request.kind).collect();
    for same_kind in &kinds {
        let Some((pending, _)) = same_kind.first() else { continue };
        let mut printer = Printer::new(args, &pending.request, now);
        if args.show_kind || kinds.len() > 1 {
            printer.kind = Some(pending.request.kind.singular());
        }
        for (source, response) in
            same_kind.iter().flat_map(|(_, responses)| &responses.successes).filter(|_| !args.watch_only)
        {
            printer.add(source.cluster.as_deref(), response);
        }
        if rows > 0 && printer.rows > 0 && args.prints_table() {
            writeln!(out)?;
        }
        printer.flush(&mut out)?;
        rows += printer.rows;
        last = Some(printer);
    }
    if rows == 0 && !args.is_watch() && !args.ignore_not_found {
        match &first.request.namespace {
            Some(namespace) => writeln!(err, "No resources found in {namespace} namespace.")?,
            None => writeln!(err, "No resources found")?,
        }
    }
    out.flush()?;
    Ok(last)
}

pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Resolves a kind by the control plane's discovery, then by that of members.
pub(crate) async fn find_kind(
    resource_type: &str,
    scope: &Scope,
    config: &kube::Config,
    control_plane: &kube::Client,
) -> anyhow::Result<Kind> {
    let served = crowsnest_members::discovery::discover(control_plane).await?;
    match Kind::resolve(resource_type, &served) {
        Some(kind) => Ok(kind),
        None => find_in_members(resource_type, scope, config, control_plane).await,
    }
}

/// Resolves a kind by the first member that serves it.
async fn find_in_members(
    resource_type: &str,
    scope: &Scope,
    config: &kube::Config,
    control_plane: &kube::Client,
) -> anyhow::Result<Kind> {
    let members = match scope {
        Scope::Named(named) => named.clone(),
        Scope::ControlPlane(Some(named)) => named.clone(),
        _ => requests::list_clusters(control_plane).await?,
    };
    let mut unknown = String::new();
    for cluster in &members {
        match crowsnest_members::discovery::discover(&clients::member(config, cluster)?).await {
            Ok(served) => {
                if let Some(kind) = Kind::resolve(resource_type, &served) {
                    return Ok(kind);
                }
            }
            Err(error) => unknown = format!("; cannot query cluster {cluster}: {:#}", anyhow!(error)),
        }
    }
    Err(anyhow!("no server has a resource type {resource_type:?}{unknown}; `crowsnest api-resources` lists them"))
}

#[cfg(test)]
mod tests;
