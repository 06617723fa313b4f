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
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::gates::Gates;
use serde::Deserialize;
use serde_json::Value;

use super::get::is_broken_pipe;
use crate::clients;
use crate::connection::ConnectionArgs;
use crate::object::{ObjectArgs, ResolvedObject, text};
use crate::output::color::{CYAN, ColorArgs, GREEN, RED, paint};
use crate::output::terminal;
use crate::pager;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest diff deploy/web -n shop                              desired state and each member's object",
    "crowsnest diff deploy/web -n shop --cluster member1 --with member2",
    "crowsnest diff deploy/web -n shop --cluster member1 --from 120 --to now   revisions of `crowsnest history`";
    "Exit codes: 0 no differences, 1 differences, above 1 an error."
])]
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

/// Exit codes of `kubectl diff`.
const EXIT_DIFFERENT: u8 = 1;
const EXIT_FAILED: u8 = 2;

pub(crate) async fn run(args: DiffArgs) -> anyhow::Result<ExitCode> {
    match compare_object(&args).await {
        Ok(code) => Ok(code),
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            crate::fail(&error);
            Ok(ExitCode::from(EXIT_FAILED))
        }
    }
}

async fn compare_object(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let target = args.object.resolve(&args.connection, &args.clusters).await?;
    let pairs = if !args.with.is_empty() {
        cluster_pairs(args, &target).await?
    } else if let Some(from) = args.from {
        vec![revision_pair(args, &target, from).await?]
    } else {
        return diff_desired_state(args, &target).await;
    };
    let differs = print_diffs(args, &pairs)?;
    Ok(if differs { ExitCode::from(EXIT_DIFFERENT) } else { ExitCode::SUCCESS })
}

/// Two texts to compare, with their names in the header of the diff.
struct Pair {
    names: [String; 2],
    texts: [String; 2],
}

/// Prints the pairs as unified diffs. Returns true if there is any difference.
fn print_diffs(args: &DiffArgs, pairs: &[Pair]) -> io::Result<bool> {
    pager::begin();
    let mut out = terminal::stdout();
    let is_colored = args.color.is_enabled();
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
            writeln!(out, "{}", paint(line, color.filter(|_| is_colored)))?;
        }
    }
    out.flush()?;
    Ok(differs)
}

/// Reads the object in one cluster and pairs it with that of each cluster in `--with`.
async fn cluster_pairs(args: &DiffArgs, target: &ResolvedObject) -> anyhow::Result<Vec<Pair>> {
    let [cluster] = args.clusters.as_slice() else {
        bail!("--with requires one cluster to compare with; name it with --cluster");
    };
    let name = |cluster: &str| format!("{cluster}/{}", target.display_name());
    let normalize = |object: &Value| compare::without_cluster(compare::without_server_fields(object, args.status));
    let left = normalize(&target.read_in(cluster).await?);
    let mut pairs = Vec::new();
    for other_cluster in &args.with {
        let right = normalize(&target.read_in(other_cluster).await?);
        pairs.push(Pair {
            names: [name(cluster), name(other_cluster)],
            texts: compare::yaml_texts(Some(&left), &right),
        });
    }
    Ok(pairs)
}

/// Reads the two revisions that `--from` and `--to` select.
async fn revision_pair(args: &DiffArgs, target: &ResolvedObject, from: u64) -> anyhow::Result<Pair> {
    let cluster = match args.clusters.as_slice() {
        [] => target.cluster(None).await?,
        [one] => one.clone(),
        _ => bail!("revisions belong to one cluster; name it with --cluster"),
    };
    // `now` is the live object.
    let read_revision = async |revision: &str| match revision {
        "now" => target.read_in(&cluster).await,
        seq if seq.parse::<u64>().is_ok() => {
            target.request_search_api("history", &cluster, &format!("&seq={seq}")).await
        }
        other => bail!("invalid --to {other:?}: expected a SEQ of `crowsnest history`, or `now`"),
    };
    let from = from.to_string();
    let normalize = |object: &Value| compare::without_server_fields(object, args.status);
    let (before, after) = (normalize(&read_revision(&from).await?), normalize(&read_revision(&args.to).await?));
    let texts = compare::yaml_texts(Some(&before), &after);
    let name = |revision: &str| format!("{cluster}/{} {revision}", target.display_name());
    Ok(Pair { names: [name(&from), name(&args.to)], texts })
}

/// Compares each member's object with the manifest in its Work, and prints the differences.
async fn diff_desired_state(args: &DiffArgs, target: &ResolvedObject) -> anyhow::Result<ExitCode> {
    let manifests = find_manifests(target).await?;
    let selected: Vec<&ClusterManifest> = match args.clusters.as_slice() {
        [] => manifests.iter().collect(),
        named => named
            .iter()
            .map(|name| {
                manifests.iter().find(|manifest| manifest.cluster == *name).ok_or_else(|| {
                    anyhow!("{} is not propagated to {name}; `crowsnest explain` shows why", target.display_name())
                })
            })
            .collect::<anyhow::Result<_>>()?,
    };
    let (interpreter, warnings) = load_interpreter(target).await;
    let (mut pairs, mut errors) = (Vec::new(), Vec::new());
    for ClusterManifest { cluster, manifest } in selected {
        match desired_state_pair(target, cluster, manifest, &interpreter).await {
            Ok(pair) => pairs.push(pair),
            Err(error) => errors.push(error),
        }
    }
    let differs = print_diffs(args, &pairs)?;
    let mut err = terminal::stderr();
    for warning in &warnings {
        writeln!(err, "warning: {warning}")?;
    }
    for error in &errors {
        writeln!(err, "error: {error:#}")?;
    }
    Ok(match (errors.is_empty(), differs) {
        (false, _) => ExitCode::from(EXIT_FAILED),
        (true, true) => ExitCode::from(EXIT_DIFFERENT),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// The live object of a cluster and its desired state, as texts.
async fn desired_state_pair(
    target: &ResolvedObject,
    cluster: &str,
    desired: &Value,
    interpreter: &Interpreter,
) -> anyhow::Result<Pair> {
    let name = |state: &str| format!("{cluster}/{} {state}", target.display_name());
    let names = [name("live"), name("desired")];
    let Some(live) = target.read(&clients::member(&target.config, cluster)?, Some(cluster)).await? else {
        return Ok(Pair { names, texts: compare::yaml_texts(None, &compare::normalize_desired(desired)) });
    };
    let mut desired = desired.clone();
    // Fields that the interpreter retains from the live object are not differences.
    let retained = interpreter.retain(&mut desired, &live).await;
    retained.with_context(|| format!("{cluster}: cannot determine the retained fields"))?;
    let desired = compare::normalize_desired(&desired);
    let live = compare::select_desired_fields(&live, &desired);
    Ok(Pair { names, texts: compare::yaml_texts(Some(&live), &desired) })
}

const CUSTOMIZATIONS_PATH: &str = "/apis/config.karmada.io/v1alpha1/resourceinterpretercustomizations";

/// An interpreter with the ResourceInterpreterCustomizations of the control plane, and warnings about invalid ones.
async fn load_interpreter(target: &ResolvedObject) -> (Interpreter, Vec<String>) {
    let interpreter = Interpreter::new(Gates::default());
    match clients::find(&target.control_plane, None, CUSTOMIZATIONS_PATH).await {
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
            Ok(customization) => interpreter.set_customization(name, Some(&customization)),
            Err(error) => {
                warnings.push(format!("cannot decode ResourceInterpreterCustomization {name:?}: {error}"));
            }
        }
    }
    warnings
}

/// The first manifest of a Work, and the cluster that the Work belongs to.
struct ClusterManifest {
    cluster: String,
    manifest: Value,
}

const WORKS_PATH: &str = "/apis/work.karmada.io/v1alpha1/works";
const BINDINGS_API_PATH: &str = "/apis/work.karmada.io/v1alpha2";

/// The manifests in the Works of the object's binding, ordered by cluster.
async fn find_manifests(target: &ResolvedObject) -> anyhow::Result<Vec<ClusterManifest>> {
    let name = target.display_name();
    let template = target.read(&target.control_plane, None).await?;
    let template = template.ok_or_else(|| {
        anyhow!(
            "the control plane has no {name}, so there is no desired state; compare clusters with --cluster and --with"
        )
    })?;
    let (collection, id_label) = match &target.namespace {
        Some(namespace) => {
            (format!("namespaces/{}/resourcebindings", path_segment(namespace)), label::RESOURCE_BINDING_PERMANENT_ID)
        }
        None => ("clusterresourcebindings".to_owned(), label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID),
    };
    let identity = ObjectIdentity::from_object(&template);
    let mut binding = None;
    for key in [identity.default_binding_key(), identity.hash_suffixed_binding_key()] {
        let path = format!("{BINDINGS_API_PATH}/{collection}/{}", path_segment(&key.name));
        binding =
            clients::find(&target.control_plane, None, &path).await?.filter(|found| identity.is_template_of(found));
        if binding.is_some() {
            break;
        }
    }
    let binding =
        binding.ok_or_else(|| anyhow!("{name} is not propagated to any cluster; `crowsnest explain` shows why"))?;
    let id = binding["metadata"]["labels"][id_label].as_str().unwrap_or_default().to_owned();
    let path = format!("{WORKS_PATH}?labelSelector={}", percent_encode(&format!("{id_label}={id}")));
    let list = clients::find(&target.control_plane, None, &path).await?;
    let list = list.context("the control plane does not serve Works")?;
    let mut manifests = Vec::new();
    for work in list.get("items").and_then(Value::as_array).into_iter().flatten() {
        let cluster = cluster_of_execution_namespace(text(work, "/metadata/namespace"));
        let manifest = work.pointer("/spec/workload/manifests/0");
        if let (Some(cluster), Some(manifest)) = (cluster, manifest) {
            manifests.push(ClusterManifest { cluster: cluster.to_string(), manifest: manifest.clone() });
        }
    }
    manifests.sort_by(|left, right| left.cluster.cmp(&right.cluster));
    match manifests.is_empty() {
        true => bail!("{name} is not propagated to any cluster; `crowsnest explain` shows why"),
        false => Ok(manifests),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn invalid_customizations_are_reported() {
        let customization = |name: &str, spec: Value| {
            json!({"apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization",
                "metadata": {"name": name}, "spec": spec})
        };
        let target = json!({"apiVersion": "x.io/v1", "kind": "App"});
        let valid = customization("valid", json!({"target": target, "customizations": {}}));
        let list = json!({"items": [valid, customization("invalid", json!({"target": 7}))]});
        let interpreter = Interpreter::new(Gates::default());
        let warnings = add_customizations(&interpreter, &list);
        let expected = "cannot decode ResourceInterpreterCustomization \"invalid\": ";
        assert!(warnings.len() == 1 && warnings[0].starts_with(expected), "{warnings:?}");
        assert_eq!(interpreter.customization_target("valid"), Some(("x.io/v1".to_owned(), "App".to_owned())));
    }
}
