//! `crowsnest taint clusters NAME… KEY=VALUE:EFFECT… KEY:EFFECT-`: taints of clusters, in the words of `kubectl taint`.

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
#[command(
    after_help = "Examples:\n  crowsnest taint clusters east dedicated=team-a:NoSchedule    keep new workloads out that do not tolerate it\n  crowsnest taint clusters east west dedicated:NoSchedule-     take it off again\n  crowsnest taint clusters east dedicated-                     whatever its effects"
)]
pub struct TaintArgs {
    /// `clusters`, their names, then taints: KEY=VALUE:EFFECT or KEY:EFFECT to put one on, with a - behind it (or KEY-) to take it off
    #[arg(required = true, num_args = 1.., value_name = "ARGUMENTS", allow_hyphen_values = false)]
    arguments: Vec<String>,
    /// Replace taints of the same key and effect
    #[arg(long)]
    overwrite: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: TaintArgs) -> anyhow::Result<ExitCode> {
    let asked = Asked::read(&args.arguments)?;
    let client = args.connection.client().await?;
    for name in &asked.clusters {
        let changed = change(&client, name, args.dry_run, |taints| asked.apply(name, taints, args.overwrite).map(Some));
        let Some(done) = changed.await? else { continue };
        let dry_run = if args.dry_run { " (dry run)" } else { "" };
        writeln!(std::io::stdout(), "cluster/{name} {done}{dry_run}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a cluster's taints, decides by them, and writes them back; again when somebody else wrote meanwhile. `None` of the decision
/// leaves them as they are.
pub(crate) async fn change<T>(
    client: &Client,
    name: &ClusterName,
    dry_run: bool,
    decide: impl Fn(&[Taint]) -> anyhow::Result<Option<(Vec<Taint>, T)>>,
) -> anyhow::Result<Option<T>> {
    const TRIES: usize = 5;
    let clusters: Api<Cluster> = Api::all(client.clone());
    for attempt in 1.. {
        let read = clusters.get_opt(name.as_str()).await.with_context(|| format!("reading cluster {name}"))?;
        let cluster = read.with_context(|| format!("cluster {name} is not registered"))?;
        let Some((taints, done)) = decide(&cluster.spec.taints)? else { return Ok(None) };
        if dry_run {
            return Ok(Some(done));
        }
        let version = cluster.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        match clusters.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => return Ok(Some(done)),
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < TRIES => {}
            Err(error) => return Err(error).with_context(|| format!("writing the taints of cluster {name}")),
        }
    }
    bail!("cluster {name} is written by somebody else all the time")
}

/// What a command line asks for.
#[derive(Debug, PartialEq)]
struct Asked {
    clusters: Vec<ClusterName>,
    added: Vec<Taint>,
    /// Without an effect: whatever it is.
    removed: Vec<Taint>,
}

impl Asked {
    fn read(arguments: &[String]) -> anyhow::Result<Self> {
        let is_taint = |argument: &&String| argument.contains(['=', ':']) || argument.ends_with('-');
        let (taints, names): (Vec<&String>, Vec<&String>) = arguments.iter().partition(is_taint);
        if let Some(late) = arguments.iter().skip_while(|argument| !is_taint(argument)).find(|one| !is_taint(one)) {
            bail!("all resources must be specified before taint changes: {late}");
        }
        let Some((kind, names)) = names.split_first() else {
            bail!("one or more resources must be specified as <resource> <name>");
        };
        ensure!(
            ["cluster", "clusters"].contains(&kind.to_lowercase().as_str()),
            "invalid resource type {kind}, only clusters have taints here: crowsnest taint clusters NAME KEY:EFFECT"
        );
        ensure!(!names.is_empty(), "at least one resource name must be specified");
        ensure!(!taints.is_empty(), "at least one taint update is required");
        let cluster =
            |name: &&String| ClusterName::parse(name).with_context(|| format!("invalid cluster name {name:?}"));
        let clusters = names.iter().map(cluster).collect::<anyhow::Result<_>>()?;
        let mut asked = Asked { clusters, added: Vec::new(), removed: Vec::new() };
        for text in taints {
            match text.strip_suffix('-') {
                Some(removed) => asked.removed.push(taint(removed)?),
                None => {
                    let taint = taint(text)?;
                    ensure!(
                        !taint.effect.is_empty(),
                        "invalid taint spec: {text}: it has no effect, as KEY:NoSchedule"
                    );
                    let is_same = |one: &Taint| (&one.key, &one.effect) == (&taint.key, &taint.effect);
                    ensure!(!asked.added.iter().any(is_same), "duplicated taints with the same key and effect: {text}");
                    asked.added.push(taint);
                }
            }
        }
        let clash = asked.removed.iter().find(|removed| asked.added.iter().any(|added| is_meant(removed, added)));
        if let Some(clash) = clash {
            bail!("can not both modify and remove the following taint(s) in the same command: {}", shown(clash));
        }
        Ok(asked)
    }

    /// The taints of a cluster afterwards, and what to call that.
    fn apply(
        &self,
        name: &ClusterName,
        taints: &[Taint],
        overwrite: bool,
    ) -> anyhow::Result<(Vec<Taint>, &'static str)> {
        let is_replaced = |old: &Taint| self.added.iter().any(|new| (&new.key, &new.effect) == (&old.key, &old.effect));
        let there: Vec<String> = taints.iter().filter(|old| is_replaced(old)).map(shown).collect();
        ensure!(
            overwrite || there.is_empty(),
            "cluster {name} already has {} taint(s) with same effect(s) and --overwrite is false",
            there.join(", ")
        );
        if let Some(missing) = self.removed.iter().find(|removed| !taints.iter().any(|old| is_meant(removed, old))) {
            bail!("cluster {name}: taint {:?} not found", shown(missing));
        }
        let stays = |old: &&Taint| !is_replaced(old) && !self.removed.iter().any(|removed| is_meant(removed, old));
        let kept = taints.iter().filter(stays).cloned();
        let after: Vec<Taint> = kept.chain(self.added.iter().cloned()).collect();
        let done = match (self.added.is_empty(), self.removed.is_empty() && there.is_empty()) {
            (true, _) => "untainted",
            (false, true) => "tainted",
            (false, false) => "modified",
        };
        Ok((after, done))
    }
}

fn is_meant(removed: &Taint, taint: &Taint) -> bool {
    removed.key == taint.key && (removed.effect.is_empty() || removed.effect == taint.effect)
}

fn shown(taint: &Taint) -> String {
    match taint.effect.as_str() {
        "" => taint.key.clone(),
        effect => format!("{}:{effect}", taint.key),
    }
}

/// `KEY`, `KEY:EFFECT` or `KEY=VALUE:EFFECT`.
fn taint(text: &str) -> anyhow::Result<Taint> {
    let (key, effect) = text.split_once(':').unwrap_or((text, ""));
    let (key, value) = match key.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (key, None),
    };
    if text.contains(':') {
        ensure!(
            [NO_SCHEDULE, NO_EXECUTE].contains(&effect),
            "invalid taint effect: {effect}, clusters have NoSchedule and NoExecute"
        );
    }
    let problems = [format::qualified_name(key), value.map(format::label_value).unwrap_or_default()].concat();
    ensure!(problems.is_empty(), "invalid taint spec: {text}, {}", problems.join("; "));
    let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
    Ok(Taint { key: key.to_owned(), effect: effect.to_owned(), value, time_added: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn asked(text: &str) -> anyhow::Result<Asked> {
        Asked::read(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn all(taints: &[Taint]) -> Vec<String> {
        let one = |taint: &Taint| format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or(""), taint.effect);
        taints.iter().map(one).collect()
    }

    #[rstest]
    #[case("clusters", "at least one resource name")]
    #[case("clusters m1", "at least one taint update is required")]
    #[case("a:NoSchedule", "one or more resources")]
    #[case("nodes m1 a:NoSchedule", "invalid resource type nodes")]
    #[case("clusters m1 a:NoSchedule m2", "before taint changes: m2")]
    #[case("clusters m1 a=b", "invalid taint spec: a=b: it has no effect")]
    #[case("clusters m1 a:Never", "invalid taint effect: Never")]
    #[case("clusters m1 a:PreferNoSchedule", "clusters have NoSchedule and NoExecute")]
    #[case("clusters m1 a:NoSchedule:NoExecute", "invalid taint effect: NoSchedule:NoExecute")]
    #[case("clusters m1 -a:NoSchedule", "invalid taint spec: -a:NoSchedule, ")]
    #[case("clusters m1 a=b/c:NoSchedule", "invalid taint spec")]
    #[case("clusters m1 a=1:NoSchedule a=2:NoSchedule", "duplicated taints")]
    #[case("clusters m1 a:NoSchedule a-", "both modify and remove the following taint(s) in the same command: a")]
    #[case("clusters M_1 a:NoSchedule", "invalid cluster name \"M_1\"")]
    fn what_makes_no_sense_is_refused(#[case] text: &str, #[case] expected: &str) {
        let error = format!("{:#}", asked(text).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case::added("b=v:NoExecute", &["a:NoSchedule"], false, Ok(("tainted", vec!["a=:NoSchedule", "b=v:NoExecute"])))]
    #[case::there_already("a=v:NoSchedule", &["a:NoSchedule"], false, Err("already has a:NoSchedule taint(s)"))]
    #[case::overwritten("a=v:NoSchedule", &["a:NoSchedule"], true, Ok(("modified", vec!["a=v:NoSchedule"])))]
    #[case::another_effect("a:NoExecute", &["a:NoSchedule"], false, Ok(("tainted", vec!["a=:NoSchedule", "a=:NoExecute"])))]
    #[case::removed("a:NoSchedule-", &["a:NoSchedule", "a:NoExecute"], false, Ok(("untainted", vec!["a=:NoExecute"])))]
    #[case::by_key("a-", &["a:NoSchedule", "b:NoSchedule", "a:NoExecute"], false, Ok(("untainted", vec!["b=:NoSchedule"])))]
    #[case::both("b:NoSchedule a-", &["a:NoSchedule"], false, Ok(("modified", vec!["b=:NoSchedule"])))]
    #[case::missing("b-", &["a:NoSchedule"], false, Err("taint \"b\" not found"))]
    fn taints_come_and_go(
        #[case] text: &str,
        #[case] given: &[&str],
        #[case] overwrite: bool,
        #[case] expected: Result<(&str, Vec<&str>), &str>,
    ) {
        let given: Vec<Taint> = given.iter().map(|text| taint(text).unwrap()).collect();
        let asked = asked(&format!("clusters m1 {text}")).unwrap();
        match (asked.apply(&asked.clusters[0], &given, overwrite), expected) {
            (Ok((taints, done)), Ok(expected)) => {
                assert_eq!((done, all(&taints)), (expected.0, expected.1.iter().map(|s| (*s).to_owned()).collect()));
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (applied, expected) => panic!("{applied:?} is not {expected:?}"),
        }
    }
}
