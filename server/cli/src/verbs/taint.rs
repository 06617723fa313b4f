//! `crowsnest taint clusters NAME… KEY=VALUE:EFFECT… KEY:EFFECT-`: sets and removes taints of clusters, with the syntax
//! of `kubectl taint`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Args;
use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::names::{ClusterName, format};
use crowsnest_apimachinery::taints::{NO_EXECUTE, NO_SCHEDULE};
use k8s_openapi::api::core::v1::Taint;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::connection::ConnectionArgs;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest taint clusters east dedicated=team-a:NoSchedule    keep out new workloads without a toleration",
    "crowsnest taint clusters east west dedicated:NoSchedule-     remove the taint",
    "crowsnest taint clusters east dedicated-                     remove it with any effect",
])]
pub struct TaintArgs {
    /// `clusters`, names of clusters, then taints: KEY=VALUE:EFFECT or KEY:EFFECT to add, KEY:EFFECT- or KEY- to remove
    #[arg(required = true, num_args = 1.., value_name = "ARGUMENTS", allow_hyphen_values = false)]
    arguments: Vec<String>,
    /// Replace taints of the same key and effect
    #[arg(long)]
    overwrite: bool,
    /// Preview only: do not change the Clusters
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: TaintArgs) -> anyhow::Result<ExitCode> {
    let requested = TaintChange::parse(&args.arguments)?;
    let client = args.connection.client().await?;
    for name in &requested.clusters {
        let update = update_taints(&client, name, args.dry_run, |taints| {
            requested.apply(name, taints, args.overwrite).map(Some)
        });
        let Some(outcome) = update.await? else { continue };
        let dry_run = if args.dry_run { " (dry run)" } else { "" };
        writeln!(std::io::stdout(), "cluster/{name} {outcome}{dry_run}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the taints of a cluster, computes the new ones with `decide` and writes them; repeats on conflicting writes.
/// If `decide` returns `None`, nothing is written.
pub(crate) async fn update_taints<T>(
    client: &Client,
    name: &ClusterName,
    dry_run: bool,
    decide: impl Fn(&[Taint]) -> anyhow::Result<Option<(Vec<Taint>, T)>>,
) -> anyhow::Result<Option<T>> {
    const MAX_ATTEMPTS: usize = 5;
    let clusters: Api<Cluster> = Api::all(client.clone());
    for attempt in 1.. {
        let cluster = clusters.get_opt(name.as_str()).await.with_context(|| format!("cannot read cluster {name}"))?;
        let cluster = cluster.with_context(|| format!("cluster {name} not found"))?;
        let Some((taints, outcome)) = decide(&cluster.spec.taints)? else { return Ok(None) };
        if dry_run {
            return Ok(Some(outcome));
        }
        let version = cluster.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        match clusters.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => return Ok(Some(outcome)),
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < MAX_ATTEMPTS => {}
            Err(error) => return Err(error).with_context(|| format!("cannot update the taints of cluster {name}")),
        }
    }
    bail!("cannot update cluster {name}: too many conflicting writes; try again")
}

/// Taints to add to clusters and to remove from them.
#[derive(Debug, PartialEq)]
struct TaintChange {
    clusters: Vec<ClusterName>,
    added: Vec<Taint>,
    /// Taints to remove; without an effect, with any effect.
    removed: Vec<Taint>,
}

impl TaintChange {
    fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let is_taint = |argument: &&String| argument.contains(['=', ':']) || argument.ends_with('-');
        let (taints, names): (Vec<&String>, Vec<&String>) = arguments.iter().partition(is_taint);
        if let Some(late) =
            arguments.iter().skip_while(|argument| !is_taint(argument)).find(|argument| !is_taint(argument))
        {
            bail!("all resources must be specified before taint changes: {late}");
        }
        let Some((kind, names)) = names.split_first() else {
            bail!("one or more resources must be specified as <resource> <name>");
        };
        ensure!(
            ["cluster", "clusters"].contains(&kind.to_lowercase().as_str()),
            "invalid resource type {kind}, only clusters are supported; use crowsnest taint clusters NAME KEY:EFFECT"
        );
        ensure!(!names.is_empty(), "at least one resource name must be specified");
        ensure!(!taints.is_empty(), "at least one taint update is required");
        let cluster =
            |name: &&String| ClusterName::parse(name).with_context(|| format!("invalid cluster name {name:?}"));
        let clusters = names.iter().map(cluster).collect::<anyhow::Result<_>>()?;
        let mut change = TaintChange { clusters, added: Vec::new(), removed: Vec::new() };
        for text in taints {
            match text.strip_suffix('-') {
                Some(removed) => change.removed.push(parse_taint(removed)?),
                None => {
                    let taint = parse_taint(text)?;
                    ensure!(
                        !taint.effect.is_empty(),
                        "invalid taint spec: {text}: missing effect, expected KEY:NoSchedule"
                    );
                    let is_same = |added: &Taint| (&added.key, &added.effect) == (&taint.key, &taint.effect);
                    ensure!(
                        !change.added.iter().any(is_same),
                        "duplicated taints with the same key and effect: {text}"
                    );
                    change.added.push(taint);
                }
            }
        }
        let clash =
            change.removed.iter().find(|removed| change.added.iter().any(|added| is_removed_by(removed, added)));
        if let Some(clash) = clash {
            bail!("can not both modify and remove the following taint(s) in the same command: {}", format_taint(clash));
        }
        Ok(change)
    }

    /// Returns the taints after the change, and the verb for the output.
    fn apply(
        &self,
        name: &ClusterName,
        taints: &[Taint],
        overwrite: bool,
    ) -> anyhow::Result<(Vec<Taint>, &'static str)> {
        let is_replaced = |old: &Taint| self.added.iter().any(|new| (&new.key, &new.effect) == (&old.key, &old.effect));
        let replaced: Vec<String> = taints.iter().filter(|old| is_replaced(old)).map(format_taint).collect();
        ensure!(
            overwrite || replaced.is_empty(),
            "cluster {name} already has {} taint(s) with same effect(s) and --overwrite is false",
            replaced.join(", ")
        );
        if let Some(missing) = self.removed.iter().find(|removed| !taints.iter().any(|old| is_removed_by(removed, old)))
        {
            bail!("cluster {name}: taint {:?} not found", format_taint(missing));
        }
        let is_kept =
            |old: &&Taint| !is_replaced(old) && !self.removed.iter().any(|removed| is_removed_by(removed, old));
        let kept = taints.iter().filter(is_kept).cloned();
        let after: Vec<Taint> = kept.chain(self.added.iter().cloned()).collect();
        let outcome = match (self.added.is_empty(), self.removed.is_empty() && replaced.is_empty()) {
            (true, _) => "untainted",
            (false, true) => "tainted",
            (false, false) => "modified",
        };
        Ok((after, outcome))
    }
}

fn is_removed_by(removed: &Taint, taint: &Taint) -> bool {
    removed.key == taint.key && (removed.effect.is_empty() || removed.effect == taint.effect)
}

fn format_taint(taint: &Taint) -> String {
    match taint.effect.as_str() {
        "" => taint.key.clone(),
        effect => format!("{}:{effect}", taint.key),
    }
}

/// Parses `KEY`, `KEY:EFFECT` or `KEY=VALUE:EFFECT`.
fn parse_taint(text: &str) -> anyhow::Result<Taint> {
    let (key, effect) = text.split_once(':').unwrap_or((text, ""));
    let (key, value) = match key.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (key, None),
    };
    if text.contains(':') {
        ensure!(
            [NO_SCHEDULE, NO_EXECUTE].contains(&effect),
            "invalid taint effect: {effect}; supported are NoSchedule and NoExecute"
        );
    }
    let problems =
        [format::validate_qualified_name(key), value.map(format::validate_label_value).unwrap_or_default()].concat();
    ensure!(problems.is_empty(), "invalid taint spec: {text}, {}", problems.join("; "));
    let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
    Ok(Taint { key: key.to_owned(), effect: effect.to_owned(), value, time_added: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn parse_line(text: &str) -> anyhow::Result<TaintChange> {
        TaintChange::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn all(taints: &[Taint]) -> Vec<String> {
        let format_taint =
            |taint: &Taint| format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or(""), taint.effect);
        taints.iter().map(format_taint).collect()
    }

    #[rstest]
    #[case("clusters", "at least one resource name")]
    #[case("clusters m1", "at least one taint update is required")]
    #[case("a:NoSchedule", "one or more resources")]
    #[case("nodes m1 a:NoSchedule", "invalid resource type nodes")]
    #[case("clusters m1 a:NoSchedule m2", "before taint changes: m2")]
    #[case("clusters m1 a=b", "invalid taint spec: a=b: missing effect")]
    #[case("clusters m1 a:Never", "invalid taint effect: Never")]
    #[case("clusters m1 a:PreferNoSchedule", "supported are NoSchedule and NoExecute")]
    #[case("clusters m1 a:NoSchedule:NoExecute", "invalid taint effect: NoSchedule:NoExecute")]
    #[case("clusters m1 -a:NoSchedule", "invalid taint spec: -a:NoSchedule, ")]
    #[case("clusters m1 a=b/c:NoSchedule", "invalid taint spec")]
    #[case("clusters m1 a=1:NoSchedule a=2:NoSchedule", "duplicated taints")]
    #[case("clusters m1 a:NoSchedule a-", "both modify and remove the following taint(s) in the same command: a")]
    #[case("clusters M_1 a:NoSchedule", "invalid cluster name \"M_1\"")]
    fn invalid_taints_are_rejected(#[case] text: &str, #[case] expected: &str) {
        let error = format!("{:#}", parse_line(text).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case::added("b=v:NoExecute", &["a:NoSchedule"], false, Ok(("tainted", vec!["a=:NoSchedule", "b=v:NoExecute"])))]
    #[case::already_set("a=v:NoSchedule", &["a:NoSchedule"], false, Err("already has a:NoSchedule taint(s)"))]
    #[case::overwritten("a=v:NoSchedule", &["a:NoSchedule"], true, Ok(("modified", vec!["a=v:NoSchedule"])))]
    #[case::another_effect("a:NoExecute", &["a:NoSchedule"], false, Ok(("tainted", vec!["a=:NoSchedule", "a=:NoExecute"])))]
    #[case::removed("a:NoSchedule-", &["a:NoSchedule", "a:NoExecute"], false, Ok(("untainted", vec!["a=:NoExecute"])))]
    #[case::by_key("a-", &["a:NoSchedule", "b:NoSchedule", "a:NoExecute"], false, Ok(("untainted", vec!["b=:NoSchedule"])))]
    #[case::both("b:NoSchedule a-", &["a:NoSchedule"], false, Ok(("modified", vec!["b=:NoSchedule"])))]
    #[case::missing("b-", &["a:NoSchedule"], false, Err("taint \"b\" not found"))]
    fn taints_are_changed(
        #[case] text: &str,
        #[case] existing: &[&str],
        #[case] overwrite: bool,
        #[case] expected: Result<(&str, Vec<&str>), &str>,
    ) {
        let existing: Vec<Taint> = existing.iter().map(|text| parse_taint(text).unwrap()).collect();
        let change = parse_line(&format!("clusters m1 {text}")).unwrap();
        match (change.apply(&change.clusters[0], &existing, overwrite), expected) {
            (Ok((taints, done)), Ok(expected)) => {
                assert_eq!((done, all(&taints)), (expected.0, expected.1.iter().map(|s| (*s).to_owned()).collect()));
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (applied, expected) => panic!("{applied:?} is not {expected:?}"),
        }
    }
}
