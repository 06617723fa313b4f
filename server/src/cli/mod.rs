//! The command line: what can be asked, and where each command lives. Data goes to standard output, everything else to standard
//! error; exit codes are kubectl's (0 ok, 1 error, of `exec` the command's own, of `diff` 1 where something differs) plus 3 for
//! `--fail-on-empty`, 4 for `--fail-on-change` and 5 for a partial answer.

use std::io::Write;
use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

mod adapter;
pub(crate) mod agent;
mod apiresources;
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
mod doctor;
pub(crate) mod edge;
mod elsewhere;
mod environment;
pub(crate) mod estimator;
mod eventlog;
mod events;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod get;
mod help;
mod history;
mod index;
mod index_backend;
pub(crate) mod install;
pub(crate) mod interpret;
pub(crate) mod join;
pub(crate) mod journal;
pub(crate) mod keep;
mod kubectl;
pub(crate) mod logs;
mod man;
pub(crate) mod member;
pub(crate) mod migrate;
mod object;
pub(crate) mod oidc;
mod output;
pub(crate) mod pager;
pub(crate) mod place;
pub(crate) mod plan;
mod portforward;
mod process;
mod promote;
pub(crate) mod reach;
mod register;
pub(crate) mod rights;
pub(crate) mod search;
pub(crate) mod serve;
mod settings;
pub(crate) mod sim;
mod sources;
mod spelling;
pub(crate) mod taint;
mod token;
mod top;
pub(crate) mod tracing;
pub(crate) mod ui;
pub(crate) mod unjoin;
pub(crate) mod up;
mod version;
mod waiting;
mod workload;

/// Search and steer a fleet of Kubernetes clusters.
#[derive(Debug, Parser)]
#[command(
    name = "crowsnest",
    version,
    about,
    arg_required_else_help = true,
    disable_help_flag = true,
    term_width = help::WIDTH,
    help_template = help::template(),
    after_help = "Examples:\n  crowsnest up                                  a whole fleet on this machine\n  crowsnest search 'kind:pod -status:Running'   pods of all clusters that do not run"
)]
pub(crate) struct Cli {
    /// More log lines on standard error: -v info, -vv debug, -vvv trace; or as kubectl has it, -v=2
    #[arg(short, long, alias = "v", global = true, num_args = 0..=1, require_equals = true, default_missing_value = "1", value_name = "LEVEL")]
    verbose: Vec<u8>,
    /// Print help
    #[arg(short, long, global = true, action = clap::ArgAction::HelpShort)]
    help: Option<bool>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a control plane, members, the cache, all APIs and the UI on this machine
    Up(Box<up::UpArgs>),
    /// Serve a control plane that runs elsewhere: its aggregated APIs, webhooks, controllers, cache and UI
    Serve(Box<serve::ServeArgs>),
    /// Put into a control plane what `crowsnest serve` needs there, or bring it to this version
    Install(install::InstallArgs),
    /// Take out of a control plane what makes it ask `crowsnest serve`; objects and members stay as they are
    Uninstall(install::UninstallArgs),
    /// Say what is wrong with an installation, and what mends it
    Doctor(doctor::DoctorArgs),
    /// Take over from Karmada in its own control plane, and go back
    Migrate(migrate::MigrateArgs),
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
    /// Start a simulated member alone: a cluster to join or register
    Member(member::MemberArgs),
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
    /// Show the index of text search, compare it with the cache, build it anew
    Index(index::IndexArgs),
    /// Break and mend simulated members of a running `crowsnest up`
    Sim(sim::SimArgs),
    /// Measure: each benchmark prints one line per figure
    Bench(bench::BenchArgs),
    /// What kinds the control plane serves, or a member
    ApiResources(apiresources::ApiResourcesArgs),
    /// Which versions of groups the control plane serves, or a member
    ApiVersions(apiresources::ApiVersionsArgs),
    /// Make an object in the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest create configmap settings -n shop --from-literal level=one\n\n`kubectl create --help` tells what it takes."
    )]
    Create(kubectl::KubectlArgs),
    /// Delete objects of the control plane, and so what was propagated of them, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest delete configmap settings -n shop\n\n`kubectl delete --help` tells what it takes."
    )]
    Delete(kubectl::KubectlArgs),
    /// Edit an object of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest edit deploy/web -n shop\n\n`kubectl edit --help` tells what it takes."
    )]
    Edit(kubectl::KubectlArgs),
    /// Change fields of an object of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest patch deploy/web -n shop -p '{}'\n\n`kubectl patch --help` tells what it takes."
    )]
    Patch(kubectl::KubectlArgs),
    /// Label objects of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest label deploy/web tier=front -n shop\n\n`kubectl label --help` tells what it takes."
    )]
    Label(kubectl::KubectlArgs),
    /// Annotate objects of the control plane, by kubectl
    #[command(
        after_help = "Examples:\n  crowsnest annotate deploy/web note=hello -n shop\n\n`kubectl annotate --help` tells what it takes."
    )]
    Annotate(kubectl::KubectlArgs),
    /// Said by karmadactl: what does it here
    #[command(hide = true)]
    Init(elsewhere::ElsewhereArgs),
    /// The same
    #[command(hide = true)]
    Deinit(elsewhere::ElsewhereArgs),
    /// The same
    #[command(hide = true)]
    Addons(elsewhere::ElsewhereArgs),
    /// Print the flags that most commands take
    Options(help::OptionsArgs),
    /// Print our version, and the control plane's
    Version(version::VersionArgs),
    /// Print what completes commands and names in a shell
    Completion(complete::CompletionArgs),
    /// Print manual pages
    Man(man::ManArgs),
}

impl Cli {
    /// What the line says, by the name we are called by. Ends the process where it makes no sense or asks for help.
    pub(crate) fn read() -> Self {
        let command = complete::command();
        let spelling::Spelled { words, notes } = spelling::spelled(&command, std::env::args_os().collect());
        let more = settings::added(&command, &words).unwrap_or_else(|error| error.exit());
        let matches = command.clone().get_matches_from(words.into_iter().chain(more));
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        if let Some(error) = environment::refused(&command, &matches, names) {
            error.exit();
        }
        for note in notes {
            // A closed standard error changes nothing.
            let _ = writeln!(output::terminal::stderr(), "note: {note}");
        }
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Whether log lines are JSON.
    pub(crate) fn logs_json(&self) -> bool {
        let format = match &self.command {
            Command::Serve(args) => args.log_format,
            Command::Agent(args) => args.log_format,
            Command::Estimator(args) => args.log_format,
            _ => serve::LogFormat::Text,
        };
        format == serve::LogFormat::Json
    }

    /// Whether traces are made, where they go, and the command's name there.
    pub(crate) fn traces(&self) -> Option<(&tracing::TracingArgs, &'static str)> {
        match &self.command {
            Command::Up(args) => Some((&args.tracing, "up")),
            Command::Serve(args) => Some((&args.tracing, "serve")),
            _ => None,
        }
    }

    pub(crate) fn verbosity(&self) -> u8 {
        self.verbose.iter().fold(0, |all, one| all.saturating_add(*one))
    }
}

/// Runs the command; the error's chain is printed by [`fail`].
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Up(args) => up::run(*args).await,
        Command::Serve(args) => serve::run(*args).await,
        Command::Install(args) => install::run(args).await,
        Command::Uninstall(args) => install::run_uninstall(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Join(args) => join::run(args).await,
        Command::Unjoin(args) => unjoin::run_unjoin(args).await,
        Command::Unregister(args) => unjoin::run_unregister(args).await,
        Command::Register(args) => register::run(*args).await,
        Command::Token(args) => token::run(args).await,
        Command::Cordon(args) => cordon::run(args, cordon::Wanted::Cordoned).await,
        Command::Uncordon(args) => cordon::run(args, cordon::Wanted::Uncordoned).await,
        Command::Taint(args) => taint::run(args).await,
        Command::Apiserver(args) => apiserver::run(args).await,
        Command::Member(args) => member::run(args).await,
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
        Command::Index(args) => index::run(args).await,
        Command::Sim(args) => sim::run(args).await,
        Command::Bench(args) => bench::run(args).await,
        Command::ApiResources(args) => apiresources::run_resources(args).await,
        Command::ApiVersions(args) => apiresources::run_versions(args).await,
        Command::Create(args) => kubectl::run("create", args).await,
        Command::Delete(args) => kubectl::run("delete", args).await,
        Command::Edit(args) => kubectl::run("edit", args).await,
        Command::Patch(args) => kubectl::run("patch", args).await,
        Command::Label(args) => kubectl::run("label", args).await,
        Command::Annotate(args) => kubectl::run("annotate", args).await,
        Command::Init(args) => elsewhere::run(elsewhere::Verb::Init, &args),
        Command::Deinit(args) => elsewhere::run(elsewhere::Verb::Deinit, &args),
        Command::Addons(args) => elsewhere::run(elsewhere::Verb::Addons, &args),
        Command::Options(args) => help::run(&args),
        Command::Version(args) => version::run(args).await,
        Command::Completion(args) => complete::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// Prints an error as one line, its causes included, and gives exit code 1.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    // A closed standard error changes nothing.
    let _ = writeln!(output::terminal::stderr(), "error: {}", told(error));
    ExitCode::FAILURE
}

/// The same as a line of the log, for whoever reads that alone.
pub(crate) fn fail_logged(error: &anyhow::Error) -> ExitCode {
    ::tracing::error!(error = told(error), "it ends");
    ExitCode::FAILURE
}

/// An error's causes from the outermost on; the last is what a server said, or that none did.
fn told(error: &anyhow::Error) -> String {
    let mut causes = Vec::new();
    for cause in error.chain() {
        if let Some(request) = reach::of_a_request(cause) {
            causes.push(reach::failure(None, request));
            break;
        }
        causes.push(cause.to_string());
    }
    causes.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("get pods", 0)]
    #[case("get pods -v", 1)]
    #[case("-vv get pods", 2)]
    #[case("get pods -v=4", 4)]
    #[case("get --v=2 pods", 2)]
    fn verbosity_is_counted_or_said(#[case] line: &str, #[case] expected: u8) {
        let cli = Cli::try_parse_from(std::iter::once("crowsnest").chain(line.split_whitespace())).unwrap();
        assert_eq!(cli.verbosity(), expected);
    }
}
