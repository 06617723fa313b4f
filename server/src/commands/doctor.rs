//! `crowsnest doctor`: prints the checks of an installation, most severe problems first, with their fixes. Exits with 1
//! if a check has the severity Broken.

use std::cmp::Reverse;
use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use crowsnest_api::role::Role;

use super::serve::RoleArg;
use crowsnest_cli::connection::ConnectionArgs;
use crowsnest_cli::examples;
use crowsnest_cli::output::terminal;
use crowsnest_install::doctor::{Finding, Severity, examine};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest doctor --kubeconfig karmada-apiserver.config",
    "crowsnest doctor -o json",
])]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Roles of `crowsnest serve` whose permissions are checked, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all", value_name = "ROLES")]
    roles: Vec<RoleArg>,
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub(crate) async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let roles: Vec<Role> = args.roles.iter().copied().map(Role::from).collect();
    let mut findings = examine(args.connection.load_config().await?, &roles).await?;
    findings.sort_by_key(|finding| Reverse(finding.severity));
    print(&mut terminal::stdout(), &findings, args.output)?;
    let is_broken = findings.iter().any(|finding| finding.severity == Severity::Broken);
    Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(out: &mut impl Write, findings: &[Finding], output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        writeln!(out, "{:#}", serde_json::to_value(findings)?)?;
        return Ok(());
    }
    for Finding { severity, subject, observation, fix } in findings {
        let label = match severity {
            Severity::Good => "ok     ",
            Severity::Warning => "warning",
            Severity::Broken => "BROKEN ",
        };
        writeln!(out, "{label}  {subject}: {observation}")?;
        if !fix.is_empty() {
            writeln!(out, "         fix: {fix}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_printed_with_their_fix() {
        let findings = [Finding::broken("cluster m1", "not ready", "start it"), Finding::good("clocks", "they agree")];
        let mut out = Vec::new();
        print(&mut out, &findings, Output::Text).unwrap();
        let expected = "BROKEN   cluster m1: not ready\n         fix: start it\nok       clocks: they agree\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
