//! Completion candidates from the control plane, limited to what the caller can read.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Command, CommandFactory};
use clap_complete::CompletionCandidate;
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_apimachinery::unstructured::list;
use kube::config::Kubeconfig;
use serde_json::Value;

use crate::commands::Cli;
use crowsnest_cli::clients;
use crowsnest_cli::connection::ConnectionArgs;
use crowsnest_cli::object::{SEARCH_API_PATH, text};
use crowsnest_cli::verbs::get::requests;
use crowsnest_cli::verbs::kubectl::translate_arguments;

/// Timeout of a completion request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of candidates.
const MAX_CANDIDATES: usize = 100;

type Candidates = Vec<CompletionCandidate>;

pub(super) fn clusters(current: &OsStr) -> Candidates {
    let found = fetch_candidates(async |client: kube::Client| requests::list_clusters(&client).await);
    filter_by_prefix(current, exclude_chosen(&words().pop().unwrap_or_default(), found))
}

pub(super) fn namespaces(current: &OsStr) -> Candidates {
    let found = fetch_candidates(async |client: kube::Client| {
        let response = clients::get(
            &client,
            &format!("{SEARCH_API_PATH}/query?limit={MAX_CANDIDATES}&facets=namespace&q=kind%3Anamespace"),
        )
        .await?;
        Ok(hit_names(&response))
    });
    filter_by_prefix(current, found)
}

/// Distinct names of the hits.
fn hit_names(response: &Value) -> Vec<String> {
    let mut names: Vec<String> = list(response, "/hits").iter().map(|hit| text(hit, "/name").to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// Completes the last term of a query.
pub(super) fn query(current: &OsStr) -> Candidates {
    let query = current.to_string_lossy().into_owned();
    let input = query.clone();
    let found = fetch_candidates(async move |client: kube::Client| {
        let response = clients::get(
            &client,
            &format!("{SEARCH_API_PATH}/suggest?limit={MAX_CANDIDATES}&q={}", percent_encode(&input)),
        )
        .await?;
        let start = response.get("start").and_then(Value::as_u64).and_then(|at| usize::try_from(at).ok());
        let before = start.and_then(|start| input.get(..start)).unwrap_or_default();
        Ok(list(&response, "/items").iter().map(|item| format!("{before}{}", text(item, "/text"))).collect())
    });
    candidates(found)
}

pub(super) fn query_or_object(current: &OsStr) -> Candidates {
    match current.to_string_lossy().contains('/') {
        true => objects(current),
        false => query(current),
    }
}

/// Completes kinds, then `KIND/NAME`; after a kind, a name.
pub(super) fn objects(current: &OsStr) -> Candidates {
    let word = current.to_string_lossy().into_owned();
    match word.split_once('/') {
        Some((kind, _)) => {
            filter_by_prefix(current, object_names(kind).into_iter().map(|name| format!("{kind}/{name}")).collect())
        }
        None => match preceding_kind() {
            Some(kind) => filter_by_prefix(current, object_names(&kind)),
            None => kinds(current),
        },
    }
}

/// Completes a resource type, then `TYPE/NAME`.
pub(super) fn targets(current: &OsStr) -> Candidates {
    match current.to_string_lossy().split_once('/') {
        Some((kind, _)) => {
            filter_by_prefix(current, object_names(kind).into_iter().map(|name| format!("{kind}/{name}")).collect())
        }
        None => kinds(current),
    }
}

/// Verbs that RBAC rules name.
pub(super) fn rbac_verbs(current: &OsStr) -> Candidates {
    const VERBS: [&str; 13] = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "bind",
        "escalate",
        "impersonate",
        "approve",
        "use",
    ];
    filter_by_prefix(current, VERBS.map(str::to_owned).into())
}

/// Completes names of the preceding kind.
pub(super) fn names(current: &OsStr) -> Candidates {
    preceding_kind().map(|kind| filter_by_prefix(current, object_names(&kind))).unwrap_or_default()
}

pub(super) fn pods(current: &OsStr) -> Candidates {
    match current.to_string_lossy().split_once('/') {
        Some((kind, _)) => {
            filter_by_prefix(current, object_names(kind).into_iter().map(|name| format!("{kind}/{name}")).collect())
        }
        None => filter_by_prefix(current, object_names("pod")),
    }
}

pub(super) fn nodes(current: &OsStr) -> Candidates {
    filter_by_prefix(current, object_names("node"))
}

pub(super) fn contexts(current: &OsStr) -> Candidates {
    let file = flag(&["--kubeconfig"]);
    let kubeconfig = file.map_or_else(Kubeconfig::read, |file| Kubeconfig::read_from(PathBuf::from(file)));
    let names = kubeconfig.map(|config| config.contexts.into_iter().map(|context| context.name).collect());
    filter_by_prefix(current, names.unwrap_or_default())
}

fn kinds(current: &OsStr) -> Candidates {
    let found = fetch_candidates(async |client: kube::Client| {
        let served = crowsnest_members::discovery::discover(&client).await?;
        let preferred = served.preferred_versions();
        let listable = preferred.into_iter().filter(|resource| resource.is_listable());
        Ok(listable.map(|one| one.gvr.group_resource()).collect())
    });
    filter_by_prefix(current, found)
}

/// Names of a kind in the namespace and clusters given on the line.
fn object_names(kind: &str) -> Vec<String> {
    let mut query = format!("kind:{}", kind.split('.').next().unwrap_or(kind));
    for (field, flags) in
        [("namespace:=", &["-n", "--namespace"][..]), ("cluster:", &["-C", "--cluster", "--clusters"])]
    {
        if let Some(value) = flag(flags) {
            query.push_str(&format!(" {field}{value}"));
        }
    }
    fetch_candidates(async move |client: kube::Client| {
        let path = format!("{SEARCH_API_PATH}/query?limit={MAX_CANDIDATES}&facets=kind&q={}", percent_encode(&query));
        let response = clients::get(&client, &path).await?;
        Ok(hit_names(&response))
    })
}

/// The words on the line, without the program.
fn line() -> Vec<String> {
    let all: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // Shell scripts pass the words after `--`, kubectl after the program name.
    let from = all.iter().position(|word| word == "--").map_or(1, |at| at + 2);
    all.into_iter().skip(from).collect()
}

/// The words after the verb.
fn words() -> Vec<String> {
    line().into_iter().skip(1).collect()
}

/// The value of a flag on the line.
fn flag(names: &[&str]) -> Option<String> {
    let words = words();
    let value_of = |name: &&str| {
        words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(*name) {
            Some("") => words.get(at + 1).cloned(),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        })
    };
    names.iter().find_map(value_of).filter(|value| !value.is_empty())
}

/// The first argument before the last word that is neither a flag nor its value.
fn preceding_kind() -> Option<String> {
    let line = line();
    let (_, before) = line.split_last()?;
    let (verb, words) = before.split_first()?;
    positional_words(Cli::command().find_subcommand(verb)?, words).next().map(str::to_owned)
}

/// The words that are neither flags nor their values.
fn positional_words<'w>(command: &Command, words: &'w [String]) -> impl Iterator<Item = &'w str> {
    let takes_value = |word: &str| {
        let mut args = command.get_arguments();
        let option = match word.strip_prefix("--") {
            _ if word.contains('=') => None,
            Some(long) => args.find(|arg| arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&long))),
            // In combined short flags such as -it, only the last can take a value.
            None => word.strip_prefix('-').and_then(|shorts| args.find(|arg| arg.get_short() == shorts.chars().last())),
        };
        option.is_some_and(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
    };
    let value_follows: Vec<bool> = words.iter().map(|word| takes_value(word)).collect();
    let is_value =
        move |at: usize| at.checked_sub(1).and_then(|at| value_follows.get(at)).is_some_and(|follows| *follows);
    let words = words.iter().enumerate().filter(move |(at, word)| !word.starts_with('-') && !is_value(*at));
    words.map(|(_, word)| word.as_str())
}

/// Requests candidates; none on errors and timeouts.
fn fetch_candidates(request: impl AsyncFnOnce(kube::Client) -> anyhow::Result<Vec<String>>) -> Vec<String> {
    run_with_timeout(async {
        let (kubeconfig, context) = (flag(&["--kubeconfig"]), flag(&["--context", "--karmada-context"]));
        let client = ConnectionArgs::new(kubeconfig.map(PathBuf::from), context).client().await?;
        request(client).await
    })
}

fn run_with_timeout(request: impl Future<Output = anyhow::Result<Vec<String>>>) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result =
        runtime.map(|runtime| runtime.block_on(async { tokio::time::timeout(REQUEST_TIMEOUT, request).await }));
    match result {
        Ok(Ok(Ok(found))) => found,
        Ok(Ok(Err(error))) => {
            tracing::debug!(error = %format_args!("{error:#}"), "cannot complete the command line");
            Vec::new()
        }
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// Completes the arguments of verbs that run kubectl, with kubectl's own completion.
pub(super) fn kubectl_arguments(current: &OsStr) -> Candidates {
    let mut words: Vec<OsString> = line().into_iter().map(OsString::from).collect();
    // The last word is the one to complete.
    words.pop();
    words.push(current.to_owned());
    let mut command = tokio::process::Command::new("kubectl");
    command.arg("__complete").args(translate_arguments(words)).kill_on_drop(true);
    candidates(run_with_timeout(async move {
        let output = command.output().await?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        // The last line is the completion directive.
        let lines = output.lines().take_while(|line| !line.starts_with(':'));
        Ok(lines.filter_map(|line| line.split('\t').next()).map(str::to_owned).collect())
    }))
}

/// Completes `clusters`, then names of clusters.
pub(super) fn taint_arguments(current: &OsStr) -> Candidates {
    match preceding_kind() {
        None => filter_by_prefix(current, vec!["clusters".to_owned()]),
        Some(_) => clusters(current),
    }
}

fn candidates(found: Vec<String>) -> Candidates {
    found.into_iter().map(CompletionCandidate::new).collect()
}

fn filter_by_prefix(current: &OsStr, found: Vec<String>) -> Candidates {
    let begin = current.to_string_lossy();
    candidates(found.into_iter().filter(|one| one.starts_with(&*begin)).collect())
}

/// Drops candidates that a comma-separated list contains already.
fn exclude_chosen(word: &str, mut found: Vec<String>) -> Vec<String> {
    let before = word.rsplit_once(',').map(|(before, _)| before).unwrap_or_default();
    let chosen: Vec<&str> = before.split([',', '=']).collect();
    found.retain(|one| !chosen.contains(&one.as_str()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(candidates: &Candidates) -> Vec<String> {
        candidates.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[rstest::rstest]
    #[case("get", "-A pods -l app=web", &["pods"])]
    #[case("get", "--namespace shop -o wide deploy", &["deploy"])]
    #[case("get", "--namespace=shop pods web", &["pods", "web"])]
    #[case("exec", "-it web-0", &["web-0"])]
    fn flags_are_not_arguments(#[case] verb: &str, #[case] line: &str, #[case] expected: &[&str]) {
        let root = Cli::command();
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let found: Vec<&str> = positional_words(root.find_subcommand(verb).unwrap(), &words).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn lists_are_completed_after_a_comma() {
        let found = || vec!["m1".to_owned(), "m2".to_owned(), "x".to_owned()];
        assert_eq!(exclude_chosen("m", found()), ["m1", "m2", "x"]);
        assert_eq!(exclude_chosen("m1,", found()), ["m2", "x"]);
        assert_eq!(exclude_chosen("--clusters=m1,x,m", found()), ["m2"]);
        assert_eq!(texts(&filter_by_prefix(OsStr::new("x"), found())), ["x"]);
    }
}
