//! `crowsnest describe`: an object as `kubectl describe` shows one of its kind, with its events; of one cluster, of all that have it, or of
//! the control plane.

mod kinds;
pub(super) mod render;
mod sheet;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use serde_json::Value;

use super::connection::ConnectionArgs;
use super::get::{OperationScope, is_broken_pipe};
use super::object::{Asked, ObjectArgs, escaped, text};
use super::reach::{self, said};
use super::search::PARTIAL;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest describe deploy/web -n shop\n  crowsnest describe pod web-0 -n shop --cluster member1\n  crowsnest describe propagationpolicy/web -s karmada"
)]
pub(crate) struct DescribeArgs {
    #[command(flatten)]
    object: ObjectArgs,
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

async fn describe(args: &DescribeArgs) -> anyhow::Result<ExitCode> {
    let asked = args.object.resolve(&args.connection, &args.clusters).await?;
    let mut descriptions = Vec::new();
    let mut left_out = Vec::new();
    if args.operation_scope != OperationScope::Members {
        let object = asked.read(&asked.control_plane).await?;
        match object {
            Some(object) => {
                descriptions.push(one(args, &asked, &asked.control_plane, None, &object).await?);
            }
            None if args.operation_scope == OperationScope::Karmada => {
                return Err(anyhow!("the control plane has no {}", asked.called()));
            }
            None => {}
        }
    }
    if args.operation_scope != OperationScope::Karmada {
        let found = asked.clusters(&args.clusters).await?;
        left_out.extend(found.skipped);
        for cluster in &found.clusters {
            let member = reach::member(&asked.config, cluster)?;
            let told = async {
                let object = asked.read_in(cluster).await?;
                one(args, &asked, &member, Some(cluster), &object).await
            };
            match told.await {
                Ok(description) => descriptions.push(description),
                Err(error) if found.clusters.len() == 1 && descriptions.is_empty() => return Err(error),
                Err(error) => left_out.push((cluster.clone(), format!("{error:#}"))),
            }
        }
    }
    let mut out = io::stdout().lock();
    write!(out, "{}", descriptions.join("\n\n"))?;
    out.flush()?;
    let mut err = io::stderr().lock();
    for (cluster, why) in &left_out {
        writeln!(err, "warning: {cluster}: {why}")?;
    }
    Ok(if left_out.is_empty() || args.allow_partial { ExitCode::SUCCESS } else { ExitCode::from(PARTIAL) })
}

async fn one(
    args: &DescribeArgs,
    asked: &Asked,
    client: &kube::Client,
    cluster: Option<&str>,
    object: &Value,
) -> anyhow::Result<String> {
    let related = related(client, object).await;
    let events = if args.show_events { Some(events(client, asked, object).await) } else { None };
    Ok(render::description(object, cluster, &related, events.as_ref(), jiff::Timestamp::now()))
}

/// Other objects that are told of with it.
async fn related(client: &kube::Client, object: &Value) -> kinds::Related {
    let wanted = kinds::wanted(object).into_iter();
    let asked = wanted.map(|(what, path)| async move { (what, listed(client, &path).await) });
    futures::future::join_all(asked).await.into_iter().collect()
}

/// The objects of a list, or the one object that is served there.
async fn listed(client: &kube::Client, path: &str) -> Result<Vec<Value>, String> {
    let request = http::Request::get(path).header(http::header::ACCEPT, "application/json").body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    let answer: Value = client.request(request).await.map_err(|error| said(&error))?;
    Ok(match answer.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![answer],
    })
}

/// The events about an object, the latest last; or why there are none.
async fn events(client: &kube::Client, asked: &Asked, object: &Value) -> Result<Vec<Value>, String> {
    let namespace = asked.namespace.as_deref().unwrap_or("default");
    let kind = text(object, "/kind");
    let mut selector = format!("involvedObject.name={},involvedObject.kind={kind}", asked.name);
    // Kubelets call their node by its name where others say its UID.
    if kind != "Node" {
        selector.push_str(&format!(",involvedObject.uid={}", text(object, "/metadata/uid")));
    }
    let path = format!("/api/v1/namespaces/{}/events?fieldSelector={}", escaped(namespace), escaped(&selector));
    let mut events = listed(client, &path).await?;
    events.sort_by_cached_key(render::seen);
    Ok(events)
}
