//! What `crowsnest --help` and `crowsnest options` show: commands by what they are for, on one screen, and the flags that most of them take.

use std::io::Write;
use std::process::ExitCode;

use clap::{Arg, Args, Command};

use crowsnest_cli::connection::ConnectionArgs;
use crowsnest_cli::pager;

/// Commands by what they are for.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Look", &["search", "get", "describe", "events", "logs", "top", "history", "diff", "explain", "journal"]),
    ("Steer", &["plan", "apply", "promote", "create", "delete", "edit", "patch", "label", "annotate"]),
    ("In containers", &["exec", "attach", "cp", "port-forward"]),
    ("Clusters", &["join", "unjoin", "register", "unregister", "token", "cordon", "uncordon", "taint"]),
    ("Run", &["up", "serve", "apiserver", "member", "agent", "estimator"]),
    ("Operate", &["install", "uninstall", "doctor", "migrate", "credentials"]),
    (
        "Tools",
        &[
            "interpret",
            "cache",
            "index",
            "sim",
            "bench",
            "api-resources",
            "api-versions",
            "options",
            "version",
            "completion",
            "man",
        ],
    ),
];

/// What a flag is stands beside it; in narrower terminals it goes on below.
pub(in crate::commands) const WIDTH: usize = 160;

/// Of the help of all commands.
pub(in crate::commands) fn template() -> String {
    let width = GROUPS.iter().map(|(head, _)| head.len() + 1).max().unwrap_or_default();
    let lines: Vec<String> =
        GROUPS.iter().map(|(head, names)| format!("  {:<width$}  {}", format!("{head}:"), names.join(" "))).collect();
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\nCommands, of which `help COMMAND` tells more:\n{}\n\nOptions:\n{{options}}{{after-help}}",
        lines.join("\n")
    )
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  crowsnest options")]
pub(crate) struct OptionsArgs {}

/// The flags that most commands take.
pub(crate) fn run(_: &OptionsArgs) -> anyhow::Result<ExitCode> {
    let verbose = Arg::new("verbose").short('v').long("verbose").action(clap::ArgAction::Count);
    let verbose = verbose.help("More log lines on standard error: -v info, -vv debug, -vvv trace");
    let command = ConnectionArgs::augment_args(Command::new("options").arg(verbose)).disable_help_flag(true);
    pager::begin();
    let told = command.help_template("Most commands take:\n{options}").render_long_help();
    writeln!(std::io::stdout(), "{told}")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    use crate::commands::Cli;

    /// Lines of a terminal that people leave as it comes, in the desktop's size.
    const SCREEN: usize = 50;

    #[test]
    fn all_commands_are_in_a_group() {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let there: BTreeSet<&str> = shown.map(Command::get_name).collect();
        let told: BTreeSet<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(told, there);
    }

    #[test]
    fn help_fits_a_screen() {
        let mut command = Cli::command();
        command.build();
        let mut all = vec![command];
        while let Some(mut command) = all.pop() {
            let help = command.render_help().to_string();
            let lines = help.lines().count();
            // What runs servers has a flag for each of their parts.
            let servers = ["up", "serve", "apiserver", "agent", "estimator", "bench"];
            let is_server = servers.iter().any(|name| help.contains(&format!("Usage: crowsnest {name}")));
            assert!(lines <= SCREEN || is_server, "{} has {lines} lines:\n{help}", command.get_name());
            all.extend(command.get_subcommands().filter(|sub| sub.get_name() != "help").cloned());
        }
    }
}
