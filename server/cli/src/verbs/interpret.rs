//! `crowsnest interpret`: checks, runs and edits ResourceInterpreterCustomizations locally, as `karmadactl interpret`
//! does. No control plane is used. Without `-f` it runs the default interpreter of the object's kind.

mod check;
mod edit;
mod execute;
pub(crate) mod files;
mod rules;
mod script;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::work::AggregatedStatusItem;
use serde::de::DeserializeOwned;
use serde_json::Value;

use execute::{Arguments, InterpreterSource};
use files::Document;
use rules::{RULES, Rule};

use crate::output::Format;
use crate::output::terminal;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest interpret -f customization.yaml --check",
    "crowsnest interpret -f customization.yaml --operation retain --desired-file desired.yaml --observed-file observed.yaml",
    "crowsnest interpret -f customization.yaml --operation aggregateStatus --observed-file observed.yaml --status-file status.yaml",
    "crowsnest interpret --operation interpretHealth --observed-file deployment.yaml",
    "crowsnest interpret -f customization.yaml --edit",
])]
pub struct InterpretArgs {
    /// Files, glob patterns (in quotes), directories or URLs of customizations; - reads standard input [default: the
    /// default interpreter of the object's kind]
    #[arg(short = 'f', long, value_name = "FILE", value_delimiter = ',')]
    filename: Vec<String>,
    /// Read the directories given with -f recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Operation to run: Retain, InterpretReplica, InterpretComponent, ReviseReplica, InterpretStatus, AggregateStatus,
    /// InterpretHealth or InterpretDependency (case-insensitive)
    #[arg(long)]
    operation: Option<String>,
    /// Validate the customization and list its scripts
    #[arg(long)]
    check: bool,
    /// Edit the scripts of a customization in an editor ($KUBE_EDITOR, $EDITOR, vi)
    #[arg(long)]
    edit: bool,
    /// Show the documentation of each script in the editor
    #[arg(long)]
    show_doc: bool,
    /// File or URL of the desired object; - reads standard input
    #[arg(long, value_name = "FILE")]
    desired_file: Option<String>,
    /// File or URL of the object observed in a member; - reads standard input
    #[arg(long, value_name = "FILE")]
    observed_file: Option<String>,
    /// File or URL of the members' status items; - reads standard input
    #[arg(long, value_name = "FILE")]
    status_file: Option<String>,
    /// Number of replicas for ReviseReplica
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    desired_replica: i32,
    /// Output format of an edited customization: json, yaml, name, jsonpath=TEMPLATE, go-template=TEMPLATE, … [default:
    /// its name]
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::parse_for_object)]
    output: Option<Format>,
    /// Accepted for compatibility with karmadactl; a local file has no managed fields
    #[arg(long, hide = true)]
    show_managed_fields: bool,
    /// Accepted for compatibility with karmadactl; no control plane is used
    #[arg(long, hide = true)]
    kubeconfig: Option<String>,
    /// Accepted for compatibility with karmadactl; no control plane is used
    #[arg(long, hide = true, alias = "karmada-context")]
    context: Option<String>,
}

pub(crate) async fn run(args: InterpretArgs) -> anyhow::Result<ExitCode> {
    if args.check && args.edit {
        bail!("you can't set both --check and --edit options");
    }
    let object_files = [&args.desired_file, &args.observed_file, &args.status_file];
    let file_names = args.filename.iter().chain(object_files.into_iter().flatten());
    if file_names.filter(|name| *name == files::STANDARD_INPUT).count() > 1 {
        bail!("standard input cannot be used for multiple arguments");
    }
    let documents = files::read(&args.filename, args.recursive).await?;
    let desired = files::read(args.desired_file.as_slice(), false).await?;
    let observed = files::read(args.observed_file.as_slice(), false).await?;
    let statuses = files::read(args.status_file.as_slice(), false).await?;
    let rule = args.operation.as_deref().map(find_rule).transpose()?;
    if args.check || args.edit {
        if args.filename.is_empty() {
            let flag = if args.check { "--check" } else { "--edit" };
            bail!("{flag} requires a customization file (-f)");
        }
        if args.check {
            let all_valid = check::check(&documents, &mut std::io::stdout().lock())?;
            return Ok(if all_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        return edit::edit(&args.filename, documents, args.show_doc, args.output);
    }
    let rule = rule.context("operation is not set for executing")?;
    let customizations = documents.iter().map(customization).collect::<anyhow::Result<Vec<_>>>();
    let customizations = customizations.context("fail to get customization object")?;
    let arguments = Arguments {
        desired: single_object(desired).context("fail to get desired object")?,
        observed: single_object(observed).context("fail to get observed object")?,
        statuses: statuses
            .iter()
            .map(status_item)
            .collect::<anyhow::Result<_>>()
            .context("fail to get status items")?,
        replicas: args.desired_replica,
    };
    let source = if args.filename.is_empty() {
        InterpreterSource::BuiltIn
    } else {
        InterpreterSource::Customizations(&customizations)
    };
    let results = execute::execute(rule, &source, &arguments).await;
    execute::print(rule, &results, &mut std::io::stdout().lock(), &mut terminal::stderr())?;
    Ok(ExitCode::SUCCESS)
}

fn find_rule(operation: &str) -> anyhow::Result<&'static Rule> {
    let Some(rule) = RULES.iter().find(|rule| rule.name().eq_ignore_ascii_case(operation)) else {
        let names: Vec<&str> = RULES.iter().map(Rule::name).collect();
        bail!("operation {operation} is not supported. Use one of: {}", names.join(", "));
    };
    Ok(rule)
}

fn decode<T: DeserializeOwned>(document: &Document) -> anyhow::Result<T> {
    T::deserialize(&document.body).with_context(|| format!("unable to decode {:?}", document.source))
}

/// Decodes a ResourceInterpreterCustomization; other kinds are rejected.
fn customization(document: &Document) -> anyhow::Result<ResourceInterpreterCustomization> {
    let text = |key: &str| document.body.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if (api_version, kind) != ("config.karmada.io/v1alpha1", "ResourceInterpreterCustomization") {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        bail!("not a ResourceInterpreterCustomization, got {group}/{version}, Kind={kind}");
    }
    decode(document)
}

/// Decodes the status of one cluster; other objects are rejected, since they would count as an empty status.
fn status_item(document: &Document) -> anyhow::Result<AggregatedStatusItem> {
    const FIELDS: [&str; 5] = ["applied", "appliedMessage", "clusterName", "health", "status"];
    let fields = document.body.as_object().into_iter().flat_map(|object| object.keys());
    if let Some(unknown) = fields.into_iter().find(|field| !FIELDS.contains(&field.as_str())) {
        bail!("{:?} has no AggregatedStatusItem: unknown field {unknown:?}", document.source);
    }
    decode(document)
}

/// The object of a file with at most one object.
fn single_object(mut documents: Vec<Document>) -> anyhow::Result<Option<Value>> {
    if documents.len() > 1 {
        bail!("get {} objects, expect one at most", documents.len());
    }
    let Some(document) = documents.pop() else { return Ok(None) };
    if document.body.get("kind").and_then(Value::as_str).unwrap_or_default().is_empty() {
        bail!("unable to decode {:?}: Object 'Kind' is missing in '{}'", document.source, document.body);
    }
    Ok(Some(document.body))
}
