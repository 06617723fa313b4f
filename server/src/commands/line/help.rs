//! `crowsnest --help` and `crowsnest options`: commands grouped by purpose on one screen, and the common flags.

use std::io::Write;
use std::process::ExitCode;

use clap::{Arg, Args, Command};

use crowsnest_cli::connection::ConnectionArgs;
use crowsnest_cli::examples;
use crowsnest_cli::pager;

/// Groups of commands.
const GROUPS: [(&str, &[&str]); 7] = [
    (
        "Look",
        &[
            "search",
            "get",
            "describe",
            "events",
            "logs",
            "top",
            "history",
            "diff",
            "explain",
            "journal",
            "path",
            "blast-radius",
            "who-can",
            "can",
        ],
    ),
    ("Steer", &["plan", "apply", "promote", "create", "delete", "edit", "patch", "label", "annotate"]),
    ("In containers", &["exec", "attach", "cp", "port-forward"]),
    ("Clusters", &["join", "unjoin", "register", "unregister", "token", "cordon", "uncordon", "taint"]),
    ("Run", &["up", "serve", "apiserver", "member", "agent", "estimator", "mcp"]),
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

/// Help is formatted for this width in columns; narrower terminals wrap it.
pub(in crate::commands) const WIDTH: usize = 160;

/// Template of the top-level help.
pub(in crate::commands) fn template() -> String {
    let width = GROUPS.iter().map(|(head, _)| head.len() + 1).max().unwrap_or_default();
    let lines: Vec<String> =
        GROUPS.iter().map(|(head, names)| format!("  {:<width$}  {}", format!("{head}:"), names.join(" "))).collect();
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\nCommands (see `help COMMAND` for details):\n{}\n\nOptions:\n{{options}}{{after-help}}",
        lines.join("\n")
    )
}

#[derive(Debug, Args)]
#[command(after_help = examples!["crowsnest options"])]
pub(crate) struct OptionsArgs {}

/// Prints the flags that most commands accept.
pub(crate) fn run(_: &OptionsArgs) -> anyhow::Result<ExitCode> {
    let verbose = Arg::new("verbose").short('v').long("verbose").action(clap::ArgAction::Count);
    let verbose = verbose.help("More log lines on standard error: -v info, -vv debug, -vvv trace");
    let command = ConnectionArgs::augment_args(Command::new("options").arg(verbose)).disable_help_flag(true);
    pager::begin();
    let help = command.help_template("Common options:\n{options}").render_long_help();
    writeln!(std::io::stdout(), "{help}")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    use crate::commands::Cli;

    /// Lines of a terminal window of common size.
    const SCREEN: usize = 50;

    #[test]
    fn every_command_is_in_a_group() {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let names: BTreeSet<&str> = shown.map(Command::get_name).collect();
        let grouped: BTreeSet<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped, names);
    }

    #[test]
    fn help_fits_a_screen() {
        let mut command = Cli::command();
        command.build();
        let mut all = vec![command];
        while let Some(mut command) = all.pop() {
            let help = command.render_help().to_string();
            let lines = help.lines().count();
            // Servers have a flag per setting and need more lines.
            let servers = ["up", "serve", "apiserver", "agent", "estimator", "bench"];
            let is_server = servers.iter().any(|name| help.contains(&format!("Usage: crowsnest {name}")));
            assert!(lines <= SCREEN || is_server, "{} has {lines} lines:\n{help}", command.get_name());
            all.extend(command.get_subcommands().filter(|sub| sub.get_name() != "help").cloned());
        }
    }
}
