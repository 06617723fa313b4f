//! Validates `CROWSNEST_…` environment variables. An unknown one is most likely a typo whose setting would be ignored
//! silently, so daemons refuse to start with it. Has no side effects.

use std::collections::BTreeSet;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};

const PREFIX: &str = "CROWSNEST_";
/// Long-running commands, configured by files and variables.
const DAEMONS: [&str; 3] = ["serve", "agent", "estimator"];
/// Variables that this program reads and that set no flag.
const VARIABLES_WITHOUT_FLAG: [&str; 2] = ["CROWSNEST_LOG", "CROWSNEST_PAGER"];
/// Variables of the build and the tests. They are ignored, because tests start this program.
const DEVELOPMENT_VARIABLES: [&str; 13] = [
    "CROWSNEST_BINARY",
    "CROWSNEST_CHROMIUM",
    "CROWSNEST_COMMIT",
    "CROWSNEST_CONFORMANCE",
    "CROWSNEST_HOSTILE_SERVER",
    "CROWSNEST_KUBECTL",
    "CROWSNEST_NODE_CLIENT",
    "CROWSNEST_ORDER_SEED",
    "CROWSNEST_POSTGRES",
    "CROWSNEST_PYTHON",
    "CROWSNEST_UI",
    "CROWSNEST_WEB",
    "CROWSNEST_WEB_DIR",
];
/// Prefixes of further variables of the build and the tests.
const DEVELOPMENT_PREFIXES: [&str; 4] =
    ["CROWSNEST_CRASH_", "CROWSNEST_FAULT_", "CROWSNEST_FLEET_", "CROWSNEST_GROUND"];

/// Returns an error if a daemon is started with unknown variables.
pub(in crate::commands) fn unknown_variables_error(
    root: &Command,
    matches: &ArgMatches,
    names: impl IntoIterator<Item = String>,
) -> Option<clap::Error> {
    let (name, _) = matches.subcommand()?;
    let daemon = root.find_subcommand(name).filter(|_| DAEMONS.contains(&name))?;
    let set = names.into_iter().filter(|name| name.starts_with(PREFIX)).collect();
    let unknown = unknown_variables(root, &set);
    let daemon_variables = variables(daemon);
    let lines: Vec<String> =
        unknown.into_iter().map(|unknown| describe_unknown(daemon, unknown, &daemon_variables)).collect();
    (!lines.is_empty()).then(|| clap::Error::raw(ErrorKind::UnknownArgument, lines.concat()))
}

fn describe_unknown(daemon: &Command, unknown: &str, daemon_variables: &BTreeSet<String>) -> String {
    let hint = match nearest(unknown, daemon_variables) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("`crowsnest {} --help` lists all variables", daemon.get_name()),
    };
    format!("unknown environment variable {unknown}: {hint}\n")
}

/// Variables that neither a command nor the build and the tests read.
fn unknown_variables<'n>(root: &Command, names: &'n BTreeSet<String>) -> Vec<&'n str> {
    let mut known = variables(root);
    known.extend(VARIABLES_WITHOUT_FLAG.into_iter().chain(DEVELOPMENT_VARIABLES).map(str::to_owned));
    let is_known = |name: &str| {
        known.contains(name)
            || DEVELOPMENT_PREFIXES.iter().any(|family| name.starts_with(family))
            || is_service_variable(name, names)
    };
    names.iter().map(String::as_str).filter(|name| !is_known(name)).collect()
}

/// Variables of the flags of a command and its subcommands.
fn variables(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(Arg::get_env).map(|name| name.to_string_lossy().into_owned());
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

/// True for variables that kubelets set for Services, such as `CROWSNEST_DB_SERVICE_HOST` and `CROWSNEST_DB_PORT` for
/// the Service `crowsnest-db`.
fn is_service_variable(name: &str, all: &BTreeSet<String>) -> bool {
    let has_service_before = |separator: &str| {
        let mut services = name.match_indices(separator).map(|(at, _)| &name[..at]);
        services.any(|service| all.contains(&format!("{service}_SERVICE_HOST")))
    };
    has_service_before("_SERVICE_") || has_service_before("_PORT")
}

/// The most similar known variable, if at most a third of the characters differ.
fn nearest<'n>(name: &str, known: &'n BTreeSet<String>) -> Option<&'n str> {
    let distance_to = |other: &str| {
        let (name, other) = (name.trim_start_matches(PREFIX), other.trim_start_matches(PREFIX));
        (strsim::osa_distance(name, other), name.len().max(other.len()))
    };
    let distances = known.iter().map(|other| (distance_to(other), other));
    let ((distance, length), other) = distances.min_by_key(|((distance, _), _)| *distance)?;
    (distance * 3 <= length).then_some(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, FromArgMatches};
    use rstest::rstest;

    use crate::commands::Cli;

    fn error_of(line: &str, names: &[&str]) -> Option<String> {
        let root = Cli::command();
        let matches = root.clone().try_get_matches_from(line.split_whitespace()).unwrap();
        unknown_variables_error(&root, &matches, names.iter().map(|name| (*name).to_owned()))
            .map(|error| error.to_string())
    }

    /// Every flag of a daemon has an environment variable of its own name.
    #[test]
    fn each_flag_has_a_variable() {
        let mut root = Cli::command();
        root.build();
        let mut mismatches = Vec::new();
        for daemon in DAEMONS {
            let flags = root.find_subcommand(daemon).unwrap().get_arguments();
            for (flag, name) in flags.filter_map(|flag| Some((flag, flag.get_long()?))) {
                let expected = format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"));
                let found = flag.get_env().map(|env| env.to_string_lossy().into_owned());
                if !["help", "verbose"].contains(&name) && found.as_ref() != Some(&expected) {
                    mismatches.push(format!("{daemon} --{name}: {found:?}"));
                }
            }
        }
        assert!(mismatches.is_empty(), "{mismatches:#?}");
    }

    #[rstest]
    #[case::flag("x serve", &["CROWSNEST_LISTEN", "HOME"], None)]
    #[case::variable_of_another_command("x serve", &["CROWSNEST_UI_URL", "CROWSNEST_TOKEN"], None)]
    #[case::variable_without_flag("x serve", &["CROWSNEST_LOG", "CROWSNEST_PAGER"], None)]
    #[case::test_variable("x serve", &["CROWSNEST_KUBECTL", "CROWSNEST_CRASH_SEED"], None)]
    #[case::typo("x serve", &["CROWSNEST_LISTN"], Some("unknown environment variable CROWSNEST_LISTN: did you mean CROWSNEST_LISTEN?"))]
    #[case::agent("x agent --cluster-name m1 --karmada-kubeconfig cp", &["CROWSNEST_CLUSTERNAME"], Some("did you mean CROWSNEST_CLUSTER_NAME?"))]
    #[case::no_similar_variable("x serve", &["CROWSNEST_PASSPHRASE"], Some("`crowsnest serve --help` lists all variables"))]
    #[case::no_daemon("x get pods", &["CROWSNEST_LISTN"], None)]
    #[case::service_variable("x serve", &["CROWSNEST_A_SERVICE_HOST", "CROWSNEST_A_SERVICE_PORT_API", "CROWSNEST_A_PORT", "CROWSNEST_A_PORT_80_TCP_ADDR"], None)]
    #[case::no_such_service("x serve", &["CROWSNEST_A_PORT"], Some("CROWSNEST_A_PORT"))]
    fn unknown_variables_are_rejected(#[case] line: &str, #[case] names: &[&str], #[case] expected: Option<&str>) {
        let error = error_of(line, names);
        assert_eq!(error.is_some(), expected.is_some(), "{error:?}");
        assert!(error.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    #[test]
    fn all_unknown_variables_are_reported() {
        let error = error_of("x serve", &["CROWSNEST_LISTN", "CROWSNEST_ROLE"]).unwrap();
        assert_eq!(error.lines().count(), 2, "{error}");
    }

    /// A variable can contain several values of a repeatable flag.
    #[rstest]
    #[case("--oidc-required-claim=a=1,b=2", "[(\"a\", \"1\"), (\"b\", \"2\")]")]
    #[case(
        "--tls-sni-cert-key=a.crt,a.key;b.crt,b.key",
        "[CertificateKeyPair([\"a.crt\", \"a.key\"]), CertificateKeyPair([\"b.crt\", \"b.key\"])]"
    )]
    fn variables_hold_several_values(#[case] flag: &str, #[case] expected: &str) {
        let matches = Cli::command().try_get_matches_from(["x", "serve", flag]).unwrap();
        let cli = format!("{:?}", Cli::from_arg_matches(&matches).unwrap());
        assert!(cli.contains(expected), "{cli}");
    }
}
