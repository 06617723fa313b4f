//! Which `CROWSNEST_…` in the environment are settings. One that nobody reads is a slip of the keyboard: what it was to change would
//! stay as it was, and nobody would be told. What runs for long does not start with one. Pure.

use std::collections::BTreeSet;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};

const PREFIX: &str = "CROWSNEST_";
/// What runs for long, set up by files and variables.
const DAEMONS: [&str; 3] = ["serve", "agent", "estimator"];
/// Read beside those of flags.
const BESIDE_FLAGS: [&str; 2] = ["CROWSNEST_LOG", "CROWSNEST_PAGER"];
/// Of what builds and tests this program, and may start it.
const OF_DEVELOPERS: [&str; 13] = [
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
/// The same, by what they begin with.
const FAMILIES_OF_DEVELOPERS: [&str; 4] =
    ["CROWSNEST_CRASH_", "CROWSNEST_FAULT_", "CROWSNEST_FLEET_", "CROWSNEST_GROUND"];

/// Why a command does not start with variables of these names; none where all are known, or it is no daemon.
pub(in crate::commands) fn refused(
    root: &Command,
    matches: &ArgMatches,
    names: impl IntoIterator<Item = String>,
) -> Option<clap::Error> {
    let (name, _) = matches.subcommand()?;
    let daemon = root.find_subcommand(name).filter(|_| DAEMONS.contains(&name))?;
    let ours = names.into_iter().filter(|name| name.starts_with(PREFIX)).collect();
    let unknown = unknown(root, &ours);
    let own = variables(daemon);
    let lines: Vec<String> = unknown.into_iter().map(|unknown| told(daemon, unknown, &own)).collect();
    (!lines.is_empty()).then(|| clap::Error::raw(ErrorKind::UnknownArgument, lines.concat()))
}

fn told(daemon: &Command, unknown: &str, own: &BTreeSet<String>) -> String {
    let what = match nearest(unknown, own) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("`crowsnest {} --help` names them all", daemon.get_name()),
    };
    format!("unknown variable {unknown} in the environment: {what}\n")
}

/// Those that no command reads, nor anybody else who is known.
fn unknown<'n>(root: &Command, names: &'n BTreeSet<String>) -> Vec<&'n str> {
    let mut known = variables(root);
    known.extend(BESIDE_FLAGS.into_iter().chain(OF_DEVELOPERS).map(str::to_owned));
    let is_known = |name: &str| {
        known.contains(name)
            || FAMILIES_OF_DEVELOPERS.iter().any(|family| name.starts_with(family))
            || is_of_a_service(name, names)
    };
    names.iter().map(String::as_str).filter(|name| !is_known(name)).collect()
}

/// The variables of a command's flags, and of those below it.
fn variables(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(Arg::get_env).map(|name| name.to_string_lossy().into_owned());
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

/// A kubelet tells pods of Services; of one that is called `crowsnest-db` by `CROWSNEST_DB_SERVICE_HOST`, `CROWSNEST_DB_PORT` and more.
fn is_of_a_service(name: &str, all: &BTreeSet<String>) -> bool {
    let behind = |mark: &str| {
        let mut places = name.match_indices(mark).map(|(at, _)| &name[..at]);
        places.any(|service| all.contains(&format!("{service}_SERVICE_HOST")))
    };
    behind("_SERVICE_") || behind("_PORT")
}

/// The known name that was most likely meant.
fn nearest<'n>(name: &str, known: &'n BTreeSet<String>) -> Option<&'n str> {
    let far = |other: &str| {
        let (one, other) = (name.trim_start_matches(PREFIX), other.trim_start_matches(PREFIX));
        (strsim::osa_distance(one, other), one.len().max(other.len()))
    };
    let measured = known.iter().map(|other| (far(other), other));
    let ((distance, length), other) = measured.min_by_key(|((distance, _), _)| *distance)?;
    (distance * 3 <= length).then_some(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, FromArgMatches};
    use rstest::rstest;

    use crate::commands::Cli;

    fn said(line: &str, names: &[&str]) -> Option<String> {
        let root = Cli::command();
        let matches = root.clone().try_get_matches_from(line.split_whitespace()).unwrap();
        refused(&root, &matches, names.iter().map(|name| (*name).to_owned())).map(|error| error.to_string())
    }

    /// All that a daemon's flags say can be said in the environment, under the flag's own name.
    #[test]
    fn each_flag_has_its_variable() {
        let mut root = Cli::command();
        root.build();
        let mut wrong = Vec::new();
        for daemon in DAEMONS {
            let flags = root.find_subcommand(daemon).unwrap().get_arguments();
            for (flag, name) in flags.filter_map(|flag| Some((flag, flag.get_long()?))) {
                let expected = format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"));
                let found = flag.get_env().map(|env| env.to_string_lossy().into_owned());
                if !["help", "verbose"].contains(&name) && found.as_ref() != Some(&expected) {
                    wrong.push(format!("{daemon} --{name}: {found:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[rstest]
    #[case::a_flag("x serve", &["CROWSNEST_LISTEN", "HOME"], None)]
    #[case::of_another_command("x serve", &["CROWSNEST_UI_URL", "CROWSNEST_TOKEN"], None)]
    #[case::no_flag("x serve", &["CROWSNEST_LOG", "CROWSNEST_PAGER"], None)]
    #[case::a_test("x serve", &["CROWSNEST_KUBECTL", "CROWSNEST_CRASH_SEED"], None)]
    #[case::a_slip("x serve", &["CROWSNEST_LISTN"], Some("CROWSNEST_LISTN in the environment: did you mean CROWSNEST_LISTEN?"))]
    #[case::of_the_agent("x agent --cluster-name m1 --karmada-kubeconfig cp", &["CROWSNEST_CLUSTERNAME"], Some("did you mean CROWSNEST_CLUSTER_NAME?"))]
    #[case::nothing_near("x serve", &["CROWSNEST_PASSPHRASE"], Some("`crowsnest serve --help` names them all"))]
    #[case::no_daemon("x get pods", &["CROWSNEST_LISTN"], None)]
    #[case::a_service("x serve", &["CROWSNEST_A_SERVICE_HOST", "CROWSNEST_A_SERVICE_PORT_API", "CROWSNEST_A_PORT", "CROWSNEST_A_PORT_80_TCP_ADDR"], None)]
    #[case::no_service("x serve", &["CROWSNEST_A_PORT"], Some("CROWSNEST_A_PORT"))]
    fn what_nobody_reads_is_refused(#[case] line: &str, #[case] names: &[&str], #[case] expected: Option<&str>) {
        let said = said(line, names);
        assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
        assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let said = said("x serve", &["CROWSNEST_LISTN", "CROWSNEST_ROLE"]).unwrap();
        assert_eq!(said.lines().count(), 2, "{said}");
    }

    /// What may be repeated stands in one variable.
    #[rstest]
    #[case("--oidc-required-claim=a=1,b=2", "[(\"a\", \"1\"), (\"b\", \"2\")]")]
    #[case(
        "--tls-sni-cert-key=a.crt,a.key;b.crt,b.key",
        "[Pair([\"a.crt\", \"a.key\"]), Pair([\"b.crt\", \"b.key\"])]"
    )]
    fn one_text_says_several(#[case] flag: &str, #[case] expected: &str) {
        let matches = Cli::command().try_get_matches_from(["x", "serve", flag]).unwrap();
        let cli = format!("{:?}", Cli::from_arg_matches(&matches).unwrap());
        assert!(cli.contains(expected), "{cli}");
    }
}
