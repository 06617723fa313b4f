//! `crowsnest diff`: how an object of the members differs from what it should be, from the one of that name in other clusters, or from
//! what it was. Exit codes are those of `kubectl diff`: 0 the same, 1 different, more an error.

mod compare;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crowsnest_api::constants::label;
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::request::{path_segment, percent_encoded};
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::gates::Gates;
use serde_json::Value;

use super::get::is_broken_pipe;
use crate::connection::ConnectionArgs;
use crate::object::{Asked, ObjectArgs, text};
use crate::output::color::{CYAN, ColorArgs, GREEN, RED, paint};
use crate::output::terminal;
use crate::pager;
use crate::reach;

const WORKS: &str = "/apis/work.karmada.io/v1alpha1/works";
const BINDINGS: &str = "/apis/work.karmada.io/v1alpha2";

const DIFFERENT: u8 = 1;
const FAILED: u8 = 2;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest diff deploy/web -n shop                              as it should be, and as each member has it\n  crowsnest diff deploy/web -n shop --cluster member1 --with member2\n  crowsnest diff deploy/web -n shop --cluster member1 --from 120 --to now   versions of `crowsnest history`\n\nExit codes: 0 the same, 1 different, more an error."
)]
pub struct DiffArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// In these clusters, by comma [default: all it is propagated to]
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Compare with the object of that name in these clusters, by comma
    #[arg(long, value_delimiter = ',', value_name = "CLUSTERS", conflicts_with = "from")]
    with: Vec<String>,
    /// Compare versions: from this one, by its SEQ in `crowsnest history`
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// To this version, a SEQ or `now`
    #[arg(long, value_name = "SEQ", default_value = "now", requires = "from")]
    to: String,
    /// The status, too
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
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            crate::fail(&error);
            Ok(ExitCode::from(FAILED))
        }
    }
}

async fn compared(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let asked = args.object.resolve(&args.connection, &args.clusters).await?;
    let pairs = if !args.with.is_empty() {
        between_clusters(args, &asked).await?
    } else if let Some(from) = args.from {
        vec![between_versions(args, &asked, from).await?]
    } else {
        return drifted(args, &asked).await;
    };
    let differs = print(args, &pairs)?;
    Ok(if differs { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS })
}

/// Two texts and what each is.
struct Pair {
    names: [String; 2],
    texts: [String; 2],
}

/// True when there is a difference.
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

async fn between_clusters(args: &DiffArgs, asked: &Asked) -> anyhow::Result<Vec<Pair>> {
    let [cluster] = args.clusters.as_slice() else {
        bail!("say which cluster is compared with those of --with: --cluster NAME");
    };
    let name = |cluster: &str| format!("{cluster}/{}", asked.called());
    let own = compare::neutral(&asked.read_in(cluster).await?, args.status);
    let mut pairs = Vec::new();
    for other in &args.with {
        let theirs = compare::neutral(&asked.read_in(other).await?, args.status);
        pairs.push(Pair { names: [name(cluster), name(other)], texts: compare::texts(Some(&own), &theirs) });
    }
    Ok(pairs)
}

async fn between_versions(args: &DiffArgs, asked: &Asked, from: u64) -> anyhow::Result<Pair> {
    let cluster = match args.clusters.as_slice() {
        [] => asked.cluster(None).await?,
        [one] => one.clone(),
        _ => bail!("versions are those of one cluster: say which one with --cluster"),
    };
    // What is now is the newest version, or the object itself.
    let version = async |wanted: &str| match wanted {
        "now" => asked.read_in(&cluster).await,
        seq if seq.parse::<u64>().is_ok() => asked.ask("history", &cluster, &format!("&seq={seq}")).await,
        other => bail!("--to {other:?} is no SEQ of `crowsnest history`, nor `now`"),
    };
    let from = from.to_string();
    let neutral = |object: &Value| compare::neutral(object, args.status);
    let (before, after) = (neutral(&version(&from).await?), neutral(&version(&args.to).await?));
    let texts = compare::texts(Some(&before), &after);
    let name = |version: &str| format!("{cluster}/{} {version}", asked.called());
    Ok(Pair { names: [name(&from), name(&args.to)], texts })
}

/// What the control plane's Works say, beside what members have.
async fn drifted(args: &DiffArgs, asked: &Asked) -> anyhow::Result<ExitCode> {
    let works = works(asked).await?;
    let wanted: Vec<&(String, Value)> = match args.clusters.as_slice() {
        [] => works.iter().collect(),
        named => named
            .iter()
            .map(|name| {
                works.iter().find(|(cluster, _)| cluster == name).ok_or_else(|| {
                    anyhow!("{} is not propagated to {name}: `crowsnest explain` tells why", asked.called())
                })
            })
            .collect::<anyhow::Result<_>>()?,
    };
    let interpreter = Interpreter::new(Gates::default());
    let (mut pairs, mut refused) = (Vec::new(), Vec::new());
    for (cluster, desired) in wanted {
        let name = |what: &str| format!("{cluster}/{} {what}", asked.called());
        let names = [name("as it is"), name("as it should be")];
        match asked.read(&reach::member(&asked.config, cluster)?, Some(cluster)).await {
            Ok(None) => {
                pairs.push(Pair { names, texts: compare::texts(None, &compare::wanted(desired)) });
            }
            Ok(Some(live)) => {
                let mut desired = desired.clone();
                // What members may keep is no difference.
                interpreter
                    .retain(&mut desired, &live)
                    .await
                    .with_context(|| format!("{cluster}: asking what the member may keep"))?;
                let desired = compare::wanted(&desired);
                let live = compare::within(&live, &desired);
                pairs.push(Pair { names, texts: compare::texts(Some(&live), &desired) });
            }
            Err(error) => refused.push(error),
        }
    }
    let differs = print(args, &pairs)?;
    let mut err = terminal::stderr();
    for why in &refused {
        writeln!(err, "error: {why:#}")?;
    }
    Ok(match (refused.is_empty(), differs) {
        (false, _) => ExitCode::from(FAILED),
        (true, true) => ExitCode::from(DIFFERENT),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// By cluster, what its Work wants the object to be.
async fn works(asked: &Asked) -> anyhow::Result<Vec<(String, Value)>> {
    let called = asked.called();
    let template = asked.read(&asked.control_plane, None).await?;
    let template = template.ok_or_else(|| {
        anyhow!("the control plane has no {called}, so nothing says how it should be: compare clusters with --cluster and --with")
    })?;
    let (place, id) = match &asked.namespace {
        Some(namespace) => {
            (format!("namespaces/{}/resourcebindings", path_segment(namespace)), label::RESOURCE_BINDING_PERMANENT_ID)
        }
        None => ("clusterresourcebindings".to_owned(), label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID),
    };
    let identity = ObjectIdentity::of(&template);
    let mut binding = None;
    for key in [identity.usual_binding_key(), identity.distinct_binding_key()] {
        let path = format!("{BINDINGS}/{place}/{}", path_segment(&key.name));
        binding = reach::find(&asked.control_plane, None, &path).await?.filter(|found| identity.is_template_of(found));
        if binding.is_some() {
            break;
        }
    }
    let binding = binding.ok_or_else(|| anyhow!("{called} is propagated nowhere: `crowsnest explain` tells why"))?;
    let value = binding["metadata"]["labels"][id].as_str().unwrap_or_default().to_owned();
    let works = format!("{WORKS}?labelSelector={}", percent_encoded(&format!("{id}={value}")));
    let list = reach::find(&asked.control_plane, None, &works).await?;
    let list = list.context("the control plane serves no Works")?;
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
        true => bail!("{called} is propagated nowhere: `crowsnest explain` tells why"),
        false => Ok(works),
    }
}
