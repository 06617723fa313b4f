//! The command line: what can be asked, and where each command lives. Data goes to standard output, everything else to standard
//! error; exit codes are kubectl's (0 ok, 1 error, of `exec` the command's own, of `diff` 1 where something differs) plus 3 for
//! `--fail-on-empty`, 4 for `--fail-on-change` and 5 for a partial answer.

use std::io::Write;
use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

pub(crate) mod agent;
pub(crate) mod apiserver;
mod apply;
mod attach;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod columns;
pub(crate) mod complete;
pub(crate) mod connection;
pub(crate) mod controllers;
pub(crate) mod cordon;
mod cp;
mod credentials;
mod describe;
mod diff;
pub(crate) mod edge;
pub(crate) mod estimator;
mod eventlog;
mod events;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod get;
mod history;
pub(crate) mod interpret;
pub(crate) mod join;
pub(crate) mod journal;
pub(crate) mod keep;
pub(crate) mod logs;
mod man;
mod object;
pub(crate) mod oidc;
mod output;
pub(crate) mod plan;
mod portforward;
mod process;
mod promote;
mod reach;
mod register;
pub(crate) mod rights;
pub(crate) mod search;
pub(crate) mod sim;
pub(crate) mod taint;
mod token;
mod top;
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
    /// At a cluster that nobody can dial: register it with a token, and have its agent run
    Register(Box<register::RegisterArgs>),
    /// Tokens with which clusters register themselves
    Token(token::TokenArgs),
    /// Let a cluster take nothing new
    #[command(after_help = "Examples:\n  crowsnest cordon member1")]
    Cordon(cordon::CordonArgs),
    /// Let a cordoned cluster take new workloads again
    #[command(after_help = "Examples:\n  crowsnest uncordon member1")]
    Uncordon(cordon::CordonArgs),
    /// Put taints on clusters, or take them off
    Taint(taint::TaintArgs),
    /// Start the embedded control plane alone: a plain Kubernetes API server
    Apiserver(apiserver::ApiserverArgs),
    /// Make the certificates and passwords by which the parts of an installation know each other
    Credentials(credentials::CredentialsArgs),
    /// In a member that nobody can dial: register it and let the control plane reach it
    Agent(agent::AgentArgs),
    /// Beside a member: say how much fits there, for our scheduler or Karmada's
    Estimator(estimator::EstimatorArgs),
    /// Find objects and events in all clusters
    Search(search::SearchArgs),
    /// Show objects of all clusters, as kubectl shows those of one
    Get(get::GetArgs),
    /// Show an object of one or several clusters with all its fields and its events
    Describe(describe::DescribeArgs),
    /// How an object differs from what it should be, from another cluster's or from what it was
    Diff(diff::DiffArgs),
    /// The versions of an object that are kept, and what changed with each
    History(history::HistoryArgs),
    /// What happened in all clusters, the latest last
    Events(eventlog::EventsArgs),
    /// What pods or nodes of all clusters use
    Top(top::TopArgs),
    /// Print the logs of pods in all clusters
    Logs(logs::LogsArgs),
    /// Run a command in a container of any cluster
    Exec(exec::ExecArgs),
    /// Take over input and output of a container of any cluster
    Attach(attach::AttachArgs),
    /// Copy files to and from a container of any cluster
    Cp(cp::CpArgs),
    /// Let ports of this machine lead to a pod of any cluster
    PortForward(portforward::PortForwardArgs),
    /// Write objects into the control plane, and with clusters their policies
    Apply(Box<apply::ApplyArgs>),
    /// Take an object of a member up into the control plane
    Promote(Box<promote::PromoteArgs>),
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
    /// Print what completes commands and names in a shell
    Completion(complete::CompletionArgs),
    /// Print manual pages
    Man(man::ManArgs),
}

impl Cli {
    /// What the line says, by the name we are called by. Ends the process where it makes no sense or asks for help.
    pub(crate) fn read() -> Self {
        Self::from_arg_matches(&complete::command().get_matches()).unwrap_or_else(|error| error.exit())
    }

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
        Command::Register(args) => register::run(*args).await,
        Command::Token(args) => token::run(args).await,
        Command::Cordon(args) => cordon::run(args, cordon::Wanted::Cordoned).await,
        Command::Uncordon(args) => cordon::run(args, cordon::Wanted::Uncordoned).await,
        Command::Taint(args) => taint::run(args).await,
        Command::Apiserver(args) => apiserver::run(args).await,
        Command::Credentials(args) => credentials::run(args).await,
        Command::Agent(args) => agent::run(args).await,
        Command::Estimator(args) => estimator::run(args).await,
        Command::Search(args) => search::run(args).await,
        Command::Get(args) => get::run(args).await,
        Command::Describe(args) => describe::run(args).await,
        Command::Diff(args) => diff::run(args).await,
        Command::History(args) => history::run(args).await,
        Command::Events(args) => eventlog::run(args).await,
        Command::Top(args) => top::run(args).await,
        Command::Logs(args) => logs::run(args).await,
        Command::Exec(args) => exec::run(args).await,
        Command::Attach(args) => attach::run(args).await,
        Command::Cp(args) => cp::run(args).await,
        Command::PortForward(args) => portforward::run(args).await,
        Command::Apply(args) => apply::run(*args).await,
        Command::Promote(args) => promote::run(*args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Journal(args) => journal::run(args).await,
        Command::Plan(args) => plan::run(args).await,
        Command::Interpret(args) => interpret::run(args).await,
        Command::Cache(args) => cache::run(args).await,
        Command::Sim(args) => sim::run(args).await,
        Command::Bench(args) => bench::run(args).await,
        Command::Completion(args) => complete::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// Prints an error as one line, its causes included, and gives exit code 1.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    // `{:#}` joins the chain; a closed standard error changes nothing.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}
