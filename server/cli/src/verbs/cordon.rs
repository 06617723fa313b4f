//! `crowsnest cordon` and `crowsnest uncordon`: set and remove the taint that keeps new workloads off a cluster;
//! running ones stay.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use crowsnest_api::constants::taint::UNSCHEDULABLE;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::taints::NO_SCHEDULE;
use k8s_openapi::api::core::v1::Taint;

use super::taint::update_taints;
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
pub(crate) enum SchedulingState {
    Cordoned,
    Uncordoned,
}

impl SchedulingState {
    fn as_str(self) -> &'static str {
        match self {
            SchedulingState::Cordoned => "cordoned",
            SchedulingState::Uncordoned => "uncordoned",
        }
    }

    /// The taints to write; `None` if they are already as requested.
    fn apply(self, taints: &[Taint]) -> Option<Vec<Taint>> {
        let cordons = |taint: &Taint| taint.key == UNSCHEDULABLE && taint.effect == NO_SCHEDULE;
        match (self, taints.iter().any(cordons)) {
            (SchedulingState::Cordoned, false) => {
                let taint = Taint { key: UNSCHEDULABLE.into(), effect: NO_SCHEDULE.into(), ..Taint::default() };
                Some(taints.iter().cloned().chain([taint]).collect())
            }
            (SchedulingState::Uncordoned, true) => {
                Some(taints.iter().filter(|taint| !cordons(taint)).cloned().collect())
            }
            _ => None,
        }
    }
}

pub(crate) async fn run(args: CordonArgs, target: SchedulingState) -> anyhow::Result<ExitCode> {
    let client = args.connection.client().await?;
    let update =
        update_taints(&client, &args.name, args.dry_run, |taints| Ok(target.apply(taints).map(|taints| (taints, ()))));
    let already = if update.await?.is_some() { "" } else { "already " };
    let dry_run = if args.dry_run { " (dry run)" } else { "" };
    writeln!(std::io::stdout(), "{} cluster {already}{}{dry_run}", args.name, target.as_str())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::cordoned(SchedulingState::Cordoned, &["a:NoSchedule"], Some(vec!["a:NoSchedule", "cluster.karmada.io/unschedulable:NoSchedule"]))]
    #[case::other_effect(
        SchedulingState::Cordoned,
        &["cluster.karmada.io/unschedulable:NoExecute"],
        Some(vec!["cluster.karmada.io/unschedulable:NoExecute", "cluster.karmada.io/unschedulable:NoSchedule"])
    )]
    #[case::already(SchedulingState::Cordoned, &["cluster.karmada.io/unschedulable:NoSchedule"], None)]
    #[case::uncordoned(SchedulingState::Uncordoned, &["cluster.karmada.io/unschedulable:NoSchedule", "a:NoSchedule"], Some(vec!["a:NoSchedule"]))]
    #[case::not_cordoned(SchedulingState::Uncordoned, &["a:NoSchedule"], None)]
    fn taint_is_added_and_removed(
        #[case] target: SchedulingState,
        #[case] taints: &[&str],
        #[case] expected: Option<Vec<&str>>,
    ) {
        let taint = |text: &&str| {
            let (key, effect) = text.split_once(':').unwrap();
            Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
        };
        let applied = target.apply(&taints.iter().map(taint).collect::<Vec<_>>());
        assert_eq!(applied, expected.map(|expected| expected.iter().map(taint).collect::<Vec<_>>()));
    }
}
