//! The command line: what can be asked, and where each command lives. Data goes to standard output, everything else to standard
//! error; exit codes are kubectl's (0 ok, 1 error, of `exec` the command's own) plus 3 for `--fail-on-empty`, 4 for
//! `--fail-on-change` and 5 for a partial answer.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) mod agent;
pub(crate) mod apiserver;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod columns;
pub(crate) mod connection;
pub(crate) mod controllers;
pub(crate) mod cordon;
pub(crate) mod edge;
pub(crate) mod estimator;
mod events;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod interpret;
pub(crate) mod join;
pub(crate) mod journal;
pub(crate) mod keep;
pub(crate) mod logs;
pub(crate) mod oidc;
pub(crate) mod plan;
mod reach;
pub(crate) mod rights;
pub(crate) mod search;
pub(crate) mod sim;
pub(crate) mod taint;
pub(crate) mod unjoin;
pub(crate) mod up;
mod workload;

/// Search and steer a fleet of Kubernetes clusters.
#[derive(Debug, Parser)]
#[command(
    name = "crowsnest",
    version,
    about,
    arg_required_else_help = true,
    after_help = "Examples:\n  crowsnest up                                  a whole fleet on this machine\n  crowsnest search 'kind:pod -status:Running'   pods of all clusters that do not run"
)]
pub(crate) struct Cli {
    /// More log lines on standard error (-v info, -vv debug, -vvv trace)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a control plane, members, the cache, all APIs and the UI on this machine
    Up(Box<up::UpArgs>),
    /// Register a cluster that somebody else runs
    Join(join::JoinArgs),
    /// Take a cluster out that was joined
    Unjoin(unjoin::UnjoinArgs),
    /// Take a cluster out that its agent registered
    Unregister(unjoin::UnregisterArgs),
    /// Let a cluster take nothing new
    Cordon(cordon::CordonArgs),
    /// Let a cordoned cluster take new workloads again
    Uncordon(cordon::CordonArgs),
    /// Put taints on clusters, or take them off
    Taint(taint::TaintArgs),
    /// Start the embedded control plane alone: a plain Kubernetes API server
    Apiserver(apiserver::ApiserverArgs),
    /// In a member that nobody can dial: register it and let the control plane reach it
    Agent(agent::AgentArgs),
    /// Beside a member: say how much fits there, for our scheduler or Karmada's
    Estimator(estimator::EstimatorArgs),
    /// Find objects and events in all clusters
    Search(search::SearchArgs),
    /// Show objects of all clusters, as kubectl shows those of one
    Get(get::GetArgs),
    /// Print the logs of pods in all clusters
    Logs(logs::LogsArgs),
    /// Run a command in a container of any cluster
    Exec(exec::ExecArgs),
    /// Why an object is in its clusters, what each policy and filter said, what it waits for
    Explain(explain::ExplainArgs),
    /// What moved about an object, and because of what
    Journal(journal::JournalArgs),
    /// What would become of the fleet if policies, overrides or objects were applied
    Plan(plan::PlanArgs),
    /// Check, try and edit what says how a kind is interpreted
    Interpret(interpret::InterpretArgs),
    /// What the cache holds, whether it is sound, and filling it anew
    Cache(cache::CacheArgs),
    /// Break and mend simulated members of a running `crowsnest up`
    Sim(sim::SimArgs),
    /// Measure: each benchmark prints one line per figure
    Bench(bench::BenchArgs),
}

impl Cli {
    pub(crate) fn verbosity(&self) -> u8 {
        self.verbose
    }
}

/// Runs the command; the error's chain is printed by [`fail`].
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Up(args) => up::run(*args).await,
        Command::Join(args) => join::run(args).await,
        Command::Unjoin(args) => unjoin::run_unjoin(args).await,
        Command::Unregister(args) => unjoin::run_unregister(args).await,
        Command::Cordon(args) => cordon::run(args, cordon::Wanted::Cordoned).await,
        Command::Uncordon(args) => cordon::run(args, cordon::Wanted::Uncordoned).await,
        Command::Taint(args) => taint::run(args).await,
        Command::Apiserver(args) => apiserver::run(args).await,
        Command::Agent(args) => agent::run(args).await,
        Command::Estimator(args) => estimator::run(args).await,
        Command::Search(args) => search::run(args).await,
        Command::Get(args) => get::run(args).await,
        Command::Logs(args) => logs::run(args).await,
        Command::Exec(args) => exec::run(args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Journal(args) => journal::run(args).await,
        Command::Plan(args) => plan::run(args).await,
        Command::Interpret(args) => interpret::run(args).await,
        Command::Cache(args) => cache::run(args).await,
        Command::Sim(args) => sim::run(args).await,
        Command::Bench(args) => bench::run(args).await,
    }
}

/// Prints an error as one line, its causes included, and gives exit code 1.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    // `{:#}` joins the chain; a closed standard error changes nothing.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}
