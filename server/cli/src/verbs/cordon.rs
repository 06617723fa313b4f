//! `crowsnest cordon` and `crowsnest uncordon`: set and remove the taint that keeps new workloads off a cluster;
//! running ones stay.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use crowsnest_api::constants::taint::UNSCHEDULABLE;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::taints::NO_SCHEDULE;
use k8s_openapi::api::core::v1::Taint;

use super::taint::change;
use crate::connection::ConnectionArgs;

#[derive(Debug, Args)]
pub struct CordonArgs {
    /// Cluster name
    name: ClusterName,
    /// Preview only: do not change the Cluster
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Cordoned,
    Uncordoned,
}

impl Wanted {
    fn word(self) -> &'static str {
        match self {
            Wanted::Cordoned => "cordoned",
            Wanted::Uncordoned => "uncordoned",
        }
    }

    /// The taints to write; `None` if they are already as requested.
    fn apply(self, taints: &[Taint]) -> Option<Vec<Taint>> {
        let cordons = |taint: &Taint| taint.key == UNSCHEDULABLE && taint.effect == NO_SCHEDULE;
        match (self, taints.iter().any(cordons)) {
            (Wanted::Cordoned, false) => {
                let taint = Taint { key: UNSCHEDULABLE.into(), effect: NO_SCHEDULE.into(), ..Taint::default() };
                Some(taints.iter().cloned().chain([taint]).collect())
            }
            (Wanted::Uncordoned, true) => Some(taints.iter().filter(|taint| !cordons(taint)).cloned().collect()),
            _ => None,
        }
    }
}

pub(crate) async fn run(args: CordonArgs, wanted: Wanted) -> anyhow::Result<ExitCode> {
    let client = args.connection.client().await?;
    let changed =
        change(&client, &args.name, args.dry_run, |taints| Ok(wanted.apply(taints).map(|taints| (taints, ()))));
    let already = if changed.await?.is_some() { "" } else { "already " };
    let dry_run = if args.dry_run { " (dry run)" } else { "" };
    writeln!(std::io::stdout(), "{} cluster {already}{}{dry_run}", args.name, wanted.word())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::cordoned(Wanted::Cordoned, &["a:NoSchedule"], Some(vec!["a:NoSchedule", "cluster.karmada.io/unschedulable:NoSchedule"]))]
    #[case::by_another_effect(
        Wanted::Cordoned,
        &["cluster.karmada.io/unschedulable:NoExecute"],
        Some(vec!["cluster.karmada.io/unschedulable:NoExecute", "cluster.karmada.io/unschedulable:NoSchedule"])
    )]
    #[case::already(Wanted::Cordoned, &["cluster.karmada.io/unschedulable:NoSchedule"], None)]
    #[case::uncordoned(Wanted::Uncordoned, &["cluster.karmada.io/unschedulable:NoSchedule", "a:NoSchedule"], Some(vec!["a:NoSchedule"]))]
    #[case::never_was(Wanted::Uncordoned, &["a:NoSchedule"], None)]
    fn taint_is_added_and_removed(#[case] wanted: Wanted, #[case] given: &[&str], #[case] expected: Option<Vec<&str>>) {
        let taint = |text: &&str| {
            let (key, effect) = text.split_once(':').unwrap();
            Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
        };
        let applied = wanted.apply(&given.iter().map(taint).collect::<Vec<_>>());
        assert_eq!(applied, expected.map(|expected| expected.iter().map(taint).collect::<Vec<_>>()));
    }
}
