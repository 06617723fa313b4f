//! `crowsnest describe`: an object as `kubectl describe` shows one of its kind, with its events, or all objects of a kind; of one cluster, of
//! all that have it, or of the control plane.

mod kinds;
pub(super) mod render;
mod sheet;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use super::connection::ConnectionArgs;
use super::get::{OperationScope, Scope, ask, find_kind, is_broken_pipe};
use super::object::{ObjectArgs, escaped, is_of_a_cluster, text};
use super::reach::{self, said};
use super::search::PARTIAL;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest describe deploy/web -n shop\n  crowsnest describe pod web-0 -n shop --cluster member1\n  crowsnest describe pods -n shop -l app=web\n  crowsnest describe propagationpolicy/web -s karmada"
)]
pub(crate) struct DescribeArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// All objects of the kind with these labels
    #[arg(short = 'l', long, visible_alias = "labels")]
    selector: Option<String>,
    /// All objects of the kind, of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// In these clusters, by comma [default: all that have it]
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Whose: the control plane's, the members' or both
    #[arg(short = 's', long, value_enum, value_name = "SCOPE", default_value = "members")]
    operation_scope: OperationScope,
    /// With its events
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    show_events: bool,
    /// Exit with 0 even when clusters were left out
    #[arg(long)]
    allow_partial: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: DescribeArgs) -> anyhow::Result<ExitCode> {
    match describe(&args).await {
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        told => told,
    }
}

/// What was described, and who could not be asked, and why.
#[derive(Default)]
struct Told {
    descriptions: Vec<String>,
    left_out: Vec<(String, String)>,
}

async fn describe(args: &DescribeArgs) -> anyhow::Result<ExitCode> {
    let told = match args.object.kind_alone() {
        Some(word) => every(args, word).await?,
        None if args.selector.is_some() || args.all_namespaces => {
            bail!("an object is named: -l and -A go with a kind alone, as in `crowsnest describe pods -l app=web`")
        }
        None => named(args).await?,
    };
    let mut out = io::stdout().lock();
    write!(out, "{}", told.descriptions.join("\n\n"))?;
    out.flush()?;
    let mut err = io::stderr().lock();
    for (cluster, why) in &told.left_out {
        writeln!(err, "warning: {cluster}: {why}")?;
    }
    Ok(if told.left_out.is_empty() || args.allow_partial { ExitCode::SUCCESS } else { ExitCode::from(PARTIAL) })
}

/// The object of a name, wherever it is.
async fn named(args: &DescribeArgs) -> anyhow::Result<Told> {
    let asked = args.object.resolve(&args.connection, &args.clusters).await?;
    let mut told = Told::default();
    if args.operation_scope != OperationScope::Members {
        match asked.read(&asked.control_plane).await? {
            Some(object) => told.descriptions.push(one(args, &asked.control_plane, None, &object).await),
            None if args.operation_scope == OperationScope::Karmada => {
                bail!("the control plane has no {}", asked.called());
            }
            None => {}
        }
    }
    if args.operation_scope != OperationScope::Karmada {
        let found = asked.clusters(&args.clusters).await?;
        told.left_out.extend(found.skipped);
        for cluster in &found.clusters {
            let member = reach::member(&asked.config, cluster)?;
            match asked.read_in(cluster).await {
                Ok(object) => told.descriptions.push(one(args, &member, Some(cluster), &object).await),
                Err(error) if found.clusters.len() == 1 && told.descriptions.is_empty() => return Err(error),
                Err(error) => told.left_out.push((cluster.clone(), format!("{error:#}"))),
            }
        }
    }
    Ok(told)
}

/// All objects of a kind, cluster by cluster.
async fn every(args: &DescribeArgs, word: &str) -> anyhow::Result<Told> {
    let config = args.connection.config().await?;
    let control_plane = kube::Client::try_from(config.clone())?;
    let named = Some(args.clusters.clone()).filter(|named| !named.is_empty() && *named != ["all"]);
    let scope = named.clone().map_or(Scope::All, Scope::Named);
    let kind = find_kind(word, &scope, &config, &control_plane).await?;
    let namespace = args.object.namespace().unwrap_or(&config.default_namespace);
    let namespace = (kind.namespaced && !args.all_namespaces).then_some(namespace);
    let selector = args.selector.as_deref().map(|labels| format!("?labelSelector={}", escaped(labels)));
    let path = format!("{}{}", kind.gvr.path(namespace), selector.unwrap_or_default());
    let mut asked = Vec::new();
    if args.operation_scope != OperationScope::Members {
        asked.push((None, control_plane.clone()));
    }
    if args.operation_scope != OperationScope::Karmada {
        let clusters = match named {
            Some(named) => named,
            None => ask::clusters(&control_plane).await?,
        };
        for cluster in clusters {
            let member = reach::member(&config, &cluster)?;
            asked.push((Some(cluster), member));
        }
    }
    let mut told = Told::default();
    for (cluster, client) in &asked {
        let listed = match listed(client, &path).await {
            Ok(listed) => listed,
            Err(why) => {
                told.left_out.push((cluster.clone().unwrap_or_else(|| "the control plane".to_owned()), why));
                continue;
            }
        };
        for mut object in listed {
            // What is in a list does not say its kind.
            object["apiVersion"] = kind.gvr.api_version().into();
            object["kind"] = kind.kind.as_str().into();
            told.descriptions.push(one(args, client, cluster.as_deref(), &object).await);
        }
    }
    if told.descriptions.is_empty() {
        let within = namespace.map(|namespace| format!(" in {namespace} namespace.")).unwrap_or_default();
        writeln!(io::stderr(), "No resources found{within}")?;
    }
    Ok(told)
}

async fn one(args: &DescribeArgs, client: &kube::Client, cluster: Option<&str>, object: &Value) -> String {
    let related = related(client, object).await;
    let events = if args.show_events { Some(events(client, object).await) } else { None };
    render::description(object, cluster, &related, events.as_ref(), jiff::Timestamp::now())
}

/// Other objects that are told of with it.
async fn related(client: &kube::Client, object: &Value) -> kinds::Related {
    let wanted = kinds::wanted(object).into_iter();
    let asked = wanted.map(|(what, path)| async move { (what, listed(client, &path).await) });
    futures::future::join_all(asked).await.into_iter().collect()
}

/// The objects of a list, or the one object that is served there; none where the kind is not known.
async fn listed(client: &kube::Client, path: &str) -> Result<Vec<Value>, String> {
    let request = http::Request::get(path).header(http::header::ACCEPT, "application/json").body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    let answer: Value = match client.request(request).await {
        Ok(answer) => answer,
        Err(kube::Error::Api(status)) if status.code == 404 && !is_of_a_cluster(&status) => return Ok(Vec::new()),
        Err(error) => return Err(said(&error)),
    };
    Ok(match answer.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![answer],
    })
}

/// The events about an object, the latest last; or why there are none.
async fn events(client: &kube::Client, object: &Value) -> Result<Vec<Value>, String> {
    let namespace = Some(text(object, "/metadata/namespace")).filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or("default");
    let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
    let mut selector = format!("involvedObject.name={name},involvedObject.kind={kind}");
    // Kubelets call their node by its name where others say its UID.
    if kind != "Node" {
        selector.push_str(&format!(",involvedObject.uid={}", text(object, "/metadata/uid")));
    }
    let path = format!("/api/v1/namespaces/{}/events?fieldSelector={}", escaped(namespace), escaped(&selector));
    let mut events = listed(client, &path).await?;
    events.sort_by_cached_key(render::seen);
    Ok(events)
}
