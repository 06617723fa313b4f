//! `crowsnest diff`: compares an object of members with its desired state, with other clusters' objects of the same
//! name, or with a previous revision. Exit codes are those of `kubectl diff`: 0 no differences, 1 differences, above 1
//! an error.

mod compare;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::constants::label;
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::request::{path_segment, percent_encoded};
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::gates::Gates;
use serde::Deserialize;
use serde_json::Value;

use super::get::is_broken_pipe;
use crate::connection::ConnectionArgs;
use crate::object::{ObjectArgs, ResolvedObject, text};
use crate::output::color::{CYAN, ColorArgs, GREEN, RED, paint};
use crate::output::terminal;
use crate::pager;
use crate::reach;

const CUSTOMIZATIONS: &str = "/apis/config.karmada.io/v1alpha1/resourceinterpretercustomizations";
const WORKS: &str = "/apis/work.karmada.io/v1alpha1/works";
const BINDINGS: &str = "/apis/work.karmada.io/v1alpha2";

const DIFFERENT: u8 = 1;
const FAILED: u8 = 2;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest diff deploy/web -n shop                              desired state and each member's object\n  crowsnest diff deploy/web -n shop --cluster member1 --with member2\n  crowsnest diff deploy/web -n shop --cluster member1 --from 120 --to now   revisions of `crowsnest history`\n\nExit codes: 0 no differences, 1 differences, above 1 an error."
)]
pub struct DiffArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// Member clusters, separated by commas [default: all that the object is propagated to]
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Compare with the object of the same name in these clusters, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "CLUSTERS", conflicts_with = "from")]
    with: Vec<String>,
    /// Compare revisions, starting from this SEQ of `crowsnest history`
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Revision to compare with: a SEQ of `crowsnest history`, or `now`
    #[arg(long, value_name = "SEQ", default_value = "now", requires = "from")]
    to: String,
    /// Compare the status too
    #[arg(long)]
    status: bool,
    #[command(flatten)]
    color: ColorArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: DiffArgs) -> anyhow::Result<ExitCode> {
    match compared(&args).await {
        Ok(code) => Ok(code),
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            crate::fail(&error);
            Ok(ExitCode::from(FAILED))
        }
    }
}

async fn compared(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let target = args.object.resolve(&args.connection, &args.clusters).await?;
    let pairs = if !args.with.is_empty() {
        between_clusters(args, &target).await?
    } else if let Some(from) = args.from {
        vec![between_versions(args, &target, from).await?]
    } else {
        return drifted(args, &target).await;
    };
    let differs = print(args, &pairs)?;
    Ok(if differs { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS })
}

/// Two texts to compare, with their labels.
struct Pair {
    names: [String; 2],
    texts: [String; 2],
}

/// Prints the diffs; true if there is any difference.
fn print(args: &DiffArgs, pairs: &[Pair]) -> io::Result<bool> {
    pager::begin();
    let mut out = terminal::stdout();
    let painted = args.color.painted();
    let mut differs = false;
    for Pair { names: [from, to], texts: [before, after] } in pairs {
        let diff = similar::TextDiff::from_lines(before.as_str(), after.as_str());
        let text = diff.unified_diff().context_radius(3).header(from, to).to_string();
        differs |= !text.is_empty();
        for line in text.lines() {
            let color = match line.as_bytes().first() {
                Some(b'-') => Some(RED),
                Some(b'+') => Some(GREEN),
                Some(b'@') => Some(CYAN),
                _ => None,
            };
            writeln!(out, "{}", paint(line, color.filter(|_| painted)))?;
        }
    }
    out.flush()?;
    Ok(differs)
}

async fn between_clusters(args: &DiffArgs, target: &ResolvedObject) -> anyhow::Result<Vec<Pair>> {
    let [cluster] = args.clusters.as_slice() else {
        bail!("--with requires one cluster to compare with; name it with --cluster");
    };
    let name = |cluster: &str| format!("{cluster}/{}", target.called());
    let of_any_cluster = |object: &Value| compare::without_cluster(compare::neutral(object, args.status));
    let own = of_any_cluster(&target.read_in(cluster).await?);
    let mut pairs = Vec::new();
    for other in &args.with {
        let theirs = of_any_cluster(&target.read_in(other).await?);
        pairs.push(Pair { names: [name(cluster), name(other)], texts: compare::texts(Some(&own), &theirs) });
    }
    Ok(pairs)
}

async fn between_versions(args: &DiffArgs, target: &ResolvedObject, from: u64) -> anyhow::Result<Pair> {
    let cluster = match args.clusters.as_slice() {
        [] => target.cluster(None).await?,
        [one] => one.clone(),
        _ => bail!("revisions belong to one cluster; name it with --cluster"),
    };
    // `now` is the live object.
    let version = async |wanted: &str| match wanted {
        "now" => target.read_in(&cluster).await,
        seq if seq.parse::<u64>().is_ok() => target.ask("history", &cluster, &format!("&seq={seq}")).await,
        other => bail!("invalid --to {other:?}: expected a SEQ of `crowsnest history`, or `now`"),
    };
    let from = from.to_string();
    let neutral = |object: &Value| compare::neutral(object, args.status);
    let (before, after) = (neutral(&version(&from).await?), neutral(&version(&args.to).await?));
    let texts = compare::texts(Some(&before), &after);
    let name = |version: &str| format!("{cluster}/{} {version}", target.called());
    Ok(Pair { names: [name(&from), name(&args.to)], texts })
}

/// Compares the manifests in Works with the members' objects.
async fn drifted(args: &DiffArgs, target: &ResolvedObject) -> anyhow::Result<ExitCode> {
    let works = works(target).await?;
    let wanted: Vec<&(String, Value)> = match args.clusters.as_slice() {
        [] => works.iter().collect(),
        named => named
            .iter()
            .map(|name| {
                works.iter().find(|(cluster, _)| cluster == name).ok_or_else(|| {
                    anyhow!("{} is not propagated to {name}; `crowsnest explain` shows why", target.called())
                })
            })
            .collect::<anyhow::Result<_>>()?,
    };
    let (interpreter, warnings) = interpreter(target).await;
    let (mut pairs, mut refused) = (Vec::new(), Vec::new());
    for (cluster, desired) in wanted {
        match drift_in(target, cluster, desired, &interpreter).await {
            Ok(pair) => pairs.push(pair),
            Err(error) => refused.push(error),
        }
    }
    let differs = print(args, &pairs)?;
    let mut err = terminal::stderr();
    for warning in &warnings {
        writeln!(err, "warning: {warning}")?;
    }
    for why in &refused {
        writeln!(err, "error: {why:#}")?;
    }
    Ok(match (refused.is_empty(), differs) {
        (false, _) => ExitCode::from(FAILED),
        (true, true) => ExitCode::from(DIFFERENT),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// The object of a cluster and its desired state.
async fn drift_in(
    target: &ResolvedObject,
    cluster: &str,
    desired: &Value,
    interpreter: &Interpreter,
) -> anyhow::Result<Pair> {
    let name = |what: &str| format!("{cluster}/{} {what}", target.called());
    let names = [name("live"), name("desired")];
    let Some(live) = target.read(&reach::member(&target.config, cluster)?, Some(cluster)).await? else {
        return Ok(Pair { names, texts: compare::texts(None, &compare::wanted(desired)) });
    };
    let mut desired = desired.clone();
    // Fields that the interpreter retains from the live object are not differences.
    let retained = interpreter.retain(&mut desired, &live).await;
    retained.with_context(|| format!("{cluster}: cannot determine the retained fields"))?;
    let desired = compare::wanted(&desired);
    let live = compare::within(&live, &desired);
    Ok(Pair { names, texts: compare::texts(Some(&live), &desired) })
}

/// The interpreter with the control plane's customizations, and warnings about those that cannot be used.
async fn interpreter(target: &ResolvedObject) -> (Interpreter, Vec<String>) {
    let interpreter = Interpreter::new(Gates::default());
    match reach::find(&target.control_plane, None, CUSTOMIZATIONS).await {
        Ok(list) => {
            let warnings = add_customizations(&interpreter, &list.unwrap_or_default());
            (interpreter, warnings)
        }
        Err(error) => {
            let warning = format!(
                "cannot list ResourceInterpreterCustomizations: {error:#}; fields that they retain are shown as differences"
            );
            (interpreter, vec![warning])
        }
    }
}

/// Adds the customizations of a list; returns a warning for each one that is invalid.
fn add_customizations(interpreter: &Interpreter, list: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for item in list.get("items").and_then(Value::as_array).into_iter().flatten() {
        let name = text(item, "/metadata/name");
        match ResourceInterpreterCustomization::deserialize(item) {
            Ok(customization) => interpreter.learn(name, Some(&customization)),
            Err(error) => {
                warnings.push(format!("cannot decode ResourceInterpreterCustomization {name:?}: {error}"));
            }
        }
    }
    warnings
}

/// The manifest in the Work of each cluster.
async fn works(target: &ResolvedObject) -> anyhow::Result<Vec<(String, Value)>> {
    let called = target.called();
    let template = target.read(&target.control_plane, None).await?;
    let template = template.ok_or_else(|| {
        anyhow!("the control plane has no {called}, so there is no desired state; compare clusters with --cluster and --with")
    })?;
    let (collection, id) = match &target.namespace {
        Some(namespace) => {
            (format!("namespaces/{}/resourcebindings", path_segment(namespace)), label::RESOURCE_BINDING_PERMANENT_ID)
        }
        None => ("clusterresourcebindings".to_owned(), label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID),
    };
    let identity = ObjectIdentity::of(&template);
    let mut binding = None;
    for key in [identity.usual_binding_key(), identity.distinct_binding_key()] {
        let path = format!("{BINDINGS}/{collection}/{}", path_segment(&key.name));
        binding = reach::find(&target.control_plane, None, &path).await?.filter(|found| identity.is_template_of(found));
        if binding.is_some() {
            break;
        }
    }
    let binding =
        binding.ok_or_else(|| anyhow!("{called} is not propagated to any cluster; `crowsnest explain` shows why"))?;
    let value = binding["metadata"]["labels"][id].as_str().unwrap_or_default().to_owned();
    let works = format!("{WORKS}?labelSelector={}", percent_encoded(&format!("{id}={value}")));
    let list = reach::find(&target.control_plane, None, &works).await?;
    let list = list.context("the control plane does not serve Works")?;
    let mut works = Vec::new();
    for work in list.get("items").and_then(Value::as_array).into_iter().flatten() {
        let cluster = cluster_of_execution_namespace(text(work, "/metadata/namespace"));
        let manifest = work.pointer("/spec/workload/manifests/0");
        if let (Some(cluster), Some(manifest)) = (cluster, manifest) {
            works.push((cluster.to_string(), manifest.clone()));
        }
    }
    works.sort_by(|one, other| one.0.cmp(&other.0));
    match works.is_empty() {
        true => bail!("{called} is not propagated to any cluster; `crowsnest explain` shows why"),
        false => Ok(works),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn invalid_customizations_are_reported() {
        let of = |name: &str, spec: Value| {
            json!({"apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization",
                "metadata": {"name": name}, "spec": spec})
        };
        let target = json!({"apiVersion": "x.io/v1", "kind": "App"});
        let valid = of("valid", json!({"target": target, "customizations": {}}));
        let list = json!({"items": [valid, of("invalid", json!({"target": 7}))]});
        let interpreter = Interpreter::new(Gates::default());
        let warnings = add_customizations(&interpreter, &list);
        let expected = "cannot decode ResourceInterpreterCustomization \"invalid\": ";
        assert!(warnings.len() == 1 && warnings[0].starts_with(expected), "{warnings:?}");
        assert_eq!(interpreter.target_of("valid"), Some(("x.io/v1".to_owned(), "App".to_owned())));
    }
}
