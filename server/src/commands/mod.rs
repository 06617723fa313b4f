//! The command line of the `crowsnest` binary: the commands that start or install servers, in addition to the verbs of
//! `crowsnest-cli`.

use std::io::Write;
use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};
use crowsnest_cli::output::terminal;
use crowsnest_cli::{Verb, examples};
use line::{complete, environment, help, man, normalize, settings};
use process::LogFormat;

mod adapter;
pub(crate) mod agent;
pub(crate) mod api_args;
pub(crate) mod apiserver;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod cache_options;
pub(crate) mod controllers;
mod credentials;
pub(crate) mod data_dir;
mod doctor;
pub(crate) mod estimator;
mod index_backend;
pub(crate) mod install;
pub(crate) mod line;
pub(crate) mod member;
pub(crate) mod migrate;
pub(crate) mod oidc;
pub(crate) mod process;
mod register;
pub(crate) mod serve;
pub(crate) mod sim;
#[cfg(test)]
mod testing;
pub(crate) mod tracing;
pub(crate) mod ui;
pub(crate) mod up;

/// Search and manage a fleet of Kubernetes clusters.
#[derive(Debug, Parser)]
#[command(
    name = "crowsnest",
    version,
    about,
    arg_required_else_help = true,
    disable_help_flag = true,
    term_width = help::WIDTH,
    help_template = help::template(),
    after_help = examples![
        "crowsnest up                                  start a local fleet",
        "crowsnest search 'kind:pod -status:Running'   pods in all clusters that are not running",
    ]
)]
pub(crate) struct Cli {
    /// Log more to standard error: -v info, -vv debug, -vvv trace; -v=2 as in kubectl
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
    /// Serve an existing control plane: aggregated APIs, webhooks, controllers, cache and UI
    Serve(Box<serve::ServeArgs>),
    /// Install or upgrade the objects that `crowsnest serve` needs in a control plane
    Install(install::InstallArgs),
    /// Remove the APIServices and webhooks of `crowsnest serve` from a control plane; objects and members are kept
    Uninstall(install::UninstallArgs),
    /// Diagnose an installation and suggest solutions
    Doctor(doctor::DoctorArgs),
    /// Migrate a control plane from Karmada, or back
    Migrate(migrate::MigrateArgs),
    /// Register this cluster with a bootstrap token and deploy its agent (pull mode)
    Register(Box<register::RegisterArgs>),
    /// Start the embedded control plane alone, a plain Kubernetes API server
    Apiserver(apiserver::ApiserverArgs),
    /// Start a single simulated member, a cluster to join or register
    Member(member::MemberArgs),
    /// Create the certificates and passwords that the parts of an installation share
    Credentials(credentials::CredentialsArgs),
    /// Run the agent of a member that the control plane cannot reach (pull mode)
    Agent(agent::AgentArgs),
    /// Run the scheduler estimator of a member, for this scheduler or Karmada's
    Estimator(estimator::EstimatorArgs),
    /// Show, check and rebuild the cache
    Cache(cache::CacheArgs),
    /// Inject faults into simulated members of a running `crowsnest up`, and remove them
    Sim(sim::SimArgs),
    /// Run benchmarks; each prints one line per metric
    Bench(bench::BenchArgs),
    /// Print the flags that most commands accept
    Options(help::OptionsArgs),
    /// Print the completion script of a shell
    Completion(complete::CompletionArgs),
    /// Print manual pages
    Man(man::ManArgs),
    #[command(flatten)]
    Verb(Verb),
}

impl Cli {
    /// Parses the command line, including the program name. Exits the process on a usage error and after printing help.
    pub(crate) fn from_process_arguments() -> Self {
        let command = complete::command();
        let normalize::NormalizedLine { words, notes } = normalize::normalize(&command, std::env::args_os().collect());
        let file_arguments = settings::read_arguments(&command, &words).unwrap_or_else(|error| error.exit());
        let matches = command.clone().get_matches_from(words.into_iter().chain(file_arguments));
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        if let Some(error) = environment::unknown_variables_error(&command, &matches, names) {
            error.exit();
        }
        for note in notes {
            // Notes are best effort.
            let _ = writeln!(terminal::stderr(), "note: {note}");
        }
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// True if log lines are JSON.
    pub(crate) fn logs_json(&self) -> bool {
        let format = match &self.command {
            Command::Serve(args) => args.process.log_format,
            Command::Agent(args) => args.process.log_format,
            Command::Estimator(args) => args.process.log_format,
            _ => LogFormat::Text,
        };
        format == LogFormat::Json
    }

    /// The tracing flags and the service name, for commands that export traces.
    pub(crate) fn traces(&self) -> Option<(&tracing::TracingArgs, &'static str)> {
        match &self.command {
            Command::Up(args) => Some((&args.parts.tracing, "up")),
            Command::Serve(args) => Some((&args.parts.tracing, "serve")),
            _ => None,
        }
    }

    pub(crate) fn verbosity(&self) -> u8 {
        self.verbose.iter().fold(0, |all, one| all.saturating_add(*one))
    }
}

/// Runs the command and returns the exit code of the process.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Up(args) => up::run(*args).await,
        Command::Serve(args) => serve::run(*args).await,
        Command::Install(args) => install::run(args).await,
        Command::Uninstall(args) => install::run_uninstall(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Register(args) => register::run(*args).await,
        Command::Apiserver(args) => apiserver::run(args).await,
        Command::Member(args) => member::run(args).await,
        Command::Credentials(args) => credentials::run(args).await,
        Command::Agent(args) => agent::run(args).await,
        Command::Estimator(args) => estimator::run(args).await,
        Command::Cache(args) => cache::run(args).await,
        Command::Sim(args) => sim::run(args).await,
        Command::Bench(args) => bench::run(args).await,
        Command::Options(args) => help::run(&args),
        Command::Completion(args) => complete::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Verb(verb) => verb.run().await,
    }
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
    fn verbosity_is_counted_or_set(#[case] line: &str, #[case] expected: u8) {
        let cli = Cli::try_parse_from(std::iter::once("crowsnest").chain(line.split_whitespace())).unwrap();
        assert_eq!(cli.verbosity(), expected);
    }
}
