//! What is there now, as the caller may see it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use kube::config::Kubeconfig;
use serde_json::Value;

use crate::cli::connection::ConnectionArgs;
use crate::cli::get::ask;
use crate::cli::object::{SEARCH, escaped, text};

/// Whoever waits for a completion does not wait long.
const PATIENCE: Duration = Duration::from_secs(2);
/// Names that are offered.
const MOST: usize = 100;

type Candidates = Vec<CompletionCandidate>;

pub(super) fn clusters(current: &OsStr) -> Candidates {
    let found = asked(async |client: kube::Client| ask::clusters(&client).await);
    beginning(current, unchosen(&words().pop().unwrap_or_default(), found))
}

pub(super) fn namespaces(current: &OsStr) -> Candidates {
    let found = asked(async |client: kube::Client| {
        let answer = get(&client, &format!("{SEARCH}/query?limit={MOST}&facets=namespace&q=kind%3Anamespace")).await?;
        Ok(names_of(&answer))
    });
    beginning(current, found)
}

/// Each once.
fn names_of(answer: &Value) -> Vec<String> {
    let mut names: Vec<String> = list(answer, "/hits").iter().map(|hit| text(hit, "/name").to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// What may be written at the end of a query.
pub(super) fn query(current: &OsStr) -> Candidates {
    let query = current.to_string_lossy().into_owned();
    let asked_of = query.clone();
    let found = asked(async move |client: kube::Client| {
        let answer = get(&client, &format!("{SEARCH}/suggest?limit={MOST}&q={}", escaped(&asked_of))).await?;
        let start = answer.get("start").and_then(Value::as_u64).and_then(|at| usize::try_from(at).ok());
        let before = start.and_then(|start| asked_of.get(..start)).unwrap_or_default();
        Ok(list(&answer, "/items").iter().map(|item| format!("{before}{}", text(item, "/text"))).collect())
    });
    candidates(found)
}

pub(super) fn query_or_object(current: &OsStr) -> Candidates {
    match current.to_string_lossy().contains('/') {
        true => objects(current),
        false => query(current),
    }
}

/// Kinds, then `KIND/NAME`; a name alone behind a kind.
pub(super) fn objects(current: &OsStr) -> Candidates {
    let word = current.to_string_lossy().into_owned();
    match word.split_once('/') {
        Some((kind, _)) => beginning(current, named(kind).into_iter().map(|name| format!("{kind}/{name}")).collect()),
        None => match kind_before() {
            Some(kind) => beginning(current, named(&kind)),
            None => kinds(current),
        },
    }
}

/// Names of the kind that is the word before.
pub(super) fn names(current: &OsStr) -> Candidates {
    kind_before().map(|kind| beginning(current, named(&kind))).unwrap_or_default()
}

pub(super) fn pods(current: &OsStr) -> Candidates {
    match current.to_string_lossy().split_once('/') {
        Some((kind, _)) => beginning(current, named(kind).into_iter().map(|name| format!("{kind}/{name}")).collect()),
        None => beginning(current, named("pod")),
    }
}

pub(super) fn contexts(current: &OsStr) -> Candidates {
    let file = flag(&["--kubeconfig"]);
    let read = file.map_or_else(Kubeconfig::read, |file| Kubeconfig::read_from(PathBuf::from(file)));
    let names = read.map(|config| config.contexts.into_iter().map(|context| context.name).collect());
    beginning(current, names.unwrap_or_default())
}

fn kinds(current: &OsStr) -> Candidates {
    let found = asked(async |client: kube::Client| {
        let served = crowsnest_fleet::discovery::discover(&client).await?;
        let preferred = served.preferred();
        let listable = preferred.into_iter().filter(|one| one.is_listable());
        Ok(listable.map(|one| one.gvr.group_resource()).collect())
    });
    beginning(current, found)
}

/// Names of a kind in the namespace and clusters that are said.
fn named(kind: &str) -> Vec<String> {
    let mut query = format!("kind:{}", kind.split('.').next().unwrap_or(kind));
    for (field, flags) in
        [("namespace:=", &["-n", "--namespace"][..]), ("cluster:", &["-C", "--cluster", "--clusters"])]
    {
        if let Some(said) = flag(flags) {
            query.push_str(&format!(" {field}{said}"));
        }
    }
    asked(async move |client: kube::Client| {
        let path = format!("{SEARCH}/query?limit={MOST}&facets=kind&q={}", escaped(&query));
        let answer = get(&client, &path).await?;
        Ok(names_of(&answer))
    })
}

/// The words that are on the line, without us and the command.
fn words() -> Vec<String> {
    let all: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // A script says them behind a `--`, kubectl behind our name.
    let from = all.iter().position(|word| word == "--").map_or(1, |at| at + 2);
    all.into_iter().skip(from + 1).collect()
}

/// What a flag of the line says.
fn flag(names: &[&str]) -> Option<String> {
    let words = words();
    let said = |name: &&str| {
        words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(*name) {
            Some("") => words.get(at + 1).cloned(),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        })
    };
    names.iter().find_map(said).filter(|said| !said.is_empty())
}

/// A word before the last that is no flag, nor what a flag says.
fn kind_before() -> Option<String> {
    let words = words();
    let (_, before) = words.split_last()?;
    let with_value = |word: &str| word.starts_with('-') && !word.contains('=');
    let plain = before.iter().enumerate().filter(|(at, word)| {
        let behind_a_flag = at.checked_sub(1).and_then(|at| before.get(at)).is_some_and(|word| with_value(word));
        !word.starts_with('-') && !behind_a_flag
    });
    plain.map(|(_, word)| word.clone()).next()
}

/// What the control plane answers, unless it takes too long or can't be asked: then nothing is offered.
fn asked(ask: impl AsyncFnOnce(kube::Client) -> anyhow::Result<Vec<String>>) -> Vec<String> {
    let answer = async {
        let (kubeconfig, context) = (flag(&["--kubeconfig"]), flag(&["--context", "--karmada-context"]));
        let client = ConnectionArgs::of(kubeconfig.map(PathBuf::from), context).client().await?;
        ask(client).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answered = runtime.map(|runtime| runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await }));
    match answered {
        Ok(Ok(Ok(found))) => found,
        Ok(Ok(Err(error))) => {
            tracing::debug!(error = %format_args!("{error:#}"), "completing");
            Vec::new()
        }
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

async fn get(client: &kube::Client, path: &str) -> anyhow::Result<Value> {
    let request = http::Request::get(path).header(http::header::ACCEPT, "application/json").body(Vec::new())?;
    Ok(client.request(request).await?)
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn candidates(found: Vec<String>) -> Candidates {
    found.into_iter().map(CompletionCandidate::new).collect()
}

fn beginning(current: &OsStr, found: Vec<String>) -> Candidates {
    let begin = current.to_string_lossy();
    candidates(found.into_iter().filter(|one| one.starts_with(&*begin)).collect())
}

/// Without those that a word lists already, with commas between.
fn unchosen(word: &str, mut found: Vec<String>) -> Vec<String> {
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

    #[test]
    fn lists_go_on_behind_a_comma() {
        let found = || vec!["m1".to_owned(), "m2".to_owned(), "x".to_owned()];
        assert_eq!(unchosen("m", found()), ["m1", "m2", "x"]);
        assert_eq!(unchosen("m1,", found()), ["m2", "x"]);
        assert_eq!(unchosen("--clusters=m1,x,m", found()), ["m2"]);
        assert_eq!(texts(&beginning(OsStr::new("x"), found())), ["x"]);
    }
}
