//! The golden corpus of queries on the real binary. The engine's own tests run the same queries in one process; here
//! objects are read from members over the network, and API, CLI and web UI must return the same results.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, binary, run_browser_script};

use fixtures::{Corpus, QueryCase};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use response::QueryResponse;
use test_env::TestEnv;

mod clock;
mod fixtures;
mod member;
mod response;
mod test_env;

#[test]
fn all_interfaces_return_the_expected_results() -> Result<()> {
    let corpus = Corpus::read()?;
    let dir = tempfile::tempdir()?;
    let mut env = TestEnv::start(&corpus, dir.path())?;
    env.replay(&corpus).with_context(|| env.fleet.log())?;
    check_api(&env, &corpus).with_context(|| env.fleet.log())?;
    check_cli(&env, &corpus).with_context(|| env.fleet.log())?;
    check_ui(&env, &corpus, dir.path()).with_context(|| env.fleet.log())?;
    ensure!(env.fleet.stop()?.success());
    Ok(())
}

/// Fails if there are failures of queries; the error lists all of them.
fn ensure_no_failures(failures: &[String], count: usize) -> Result<()> {
    ensure!(failures.is_empty(), "{} failures in {count} queries:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

fn format_failure(case: &QueryCase, query: &str, difference: &str) -> String {
    if query == case.query {
        format!("{query}\n    {difference}")
    } else {
        format!("{} as {query}\n    {difference}", case.query)
    }
}

/// Checks all queries with the API, and that the counts of `count` and of the facet `kind` equal the number of hits.
fn check_api(env: &TestEnv, corpus: &Corpus) -> Result<()> {
    ensure!(corpus.cases.len() >= 400, "{} queries", corpus.cases.len());
    let mut failures = Vec::new();
    for case in &corpus.cases {
        let query = env.shift_query(&case.query)?;
        let response = env.query(&query, case.summed_columns().as_deref())?;
        let result = QueryResponse::parse(&response)?;
        let kinds = response["facets"]["kind"].as_array().into_iter().flatten();
        let kinds: u64 = kinds.filter_map(|kind| kind["count"].as_u64()).sum();
        let count = env.get(&format!("count?q={}", utf8_percent_encode(&query, NON_ALPHANUMERIC)))?;
        let mut differences = result.differences(case);
        if kinds != result.total || count["total"] != result.total {
            differences.push(format!("{} hits, {kinds} by kind, counted {}", result.total, count["total"]));
        }
        failures.extend(differences.iter().map(|difference| format_failure(case, &query, difference)));
    }
    ensure_no_failures(&failures, corpus.cases.len())
}

/// Checks all queries with the CLI. Each result reports that one cluster is stale.
fn check_cli(env: &TestEnv, corpus: &Corpus) -> Result<()> {
    let binary = binary()?;
    let mut failures = Vec::new();
    for case in &corpus.cases {
        let query = env.shift_query(&case.query)?;
        let mut command = Command::new(&binary);
        command.env("KUBECONFIG", &env.kubeconfig).args(["search", "-o", "json", "--limit", "1000"]);
        command.args(case.summed_columns().map(|columns| format!("--sum={columns}"))).args(["--", &query]);
        let output = CommandOutput::parse(&command.output()?)?;
        let result =
            QueryResponse::parse(&serde_json::from_str(&output.out).with_context(|| format!("{query}: {output:?}"))?)?;
        let mut differences = result.differences(case);
        let notes: Vec<&str> = output.err.lines().filter_map(|line| line.strip_prefix("note: ")).collect();
        if output.code != Some(5) || !output.err.contains("warning: member2: ") || notes != result.notices {
            differences.push(format!("standard error {:?}, exit code {:?}", output.err, output.code));
        }
        failures.extend(differences.iter().map(|difference| format_failure(case, &query, difference)));
    }
    ensure_no_failures(&failures, corpus.cases.len())
}

/// Results in the web UI for one query.
#[derive(serde::Deserialize)]
struct UiResults {
    /// Results after typing the query.
    typed: QueryResponse,
    /// Results after opening the URL of the search.
    linked: QueryResponse,
}

/// Checks one query per language feature in a real browser.
fn check_ui(env: &TestEnv, corpus: &Corpus, folder: &Path) -> Result<()> {
    let cases = corpus.cases_for_all_features();
    ensure!(cases.len() >= 25, "{} queries", cases.len());
    let queries = cases.iter().map(|case| env.shift_query(&case.query)).collect::<Result<Vec<_>>>()?;
    let file = folder.join("queries.json");
    std::fs::write(&file, serde_json::to_vec(&queries)?)?;
    let (address, _) = env.fleet.ui_url.split_once('#').context("the UI's address has no token")?;
    let address = format!("{address}#token={}", env.token);
    let Some(output) = run_browser_script("corpus", &[address.as_ref(), file.as_ref()], &[])? else { return Ok(()) };
    let results: Vec<UiResults> = serde_json::from_str(&output)?;
    ensure!(results.len() == cases.len(), "{} of {} queries were sent", results.len(), cases.len());
    let mut failures = Vec::new();
    for ((case, query), results) in cases.iter().zip(&queries).zip(&results) {
        for (how, result) in [("typed", &results.typed), ("linked", &results.linked)] {
            failures.extend(
                result
                    .differences(case)
                    .iter()
                    .map(|difference| format_failure(case, query, &format!("{how}: {difference}"))),
            );
        }
    }
    ensure_no_failures(&failures, cases.len())
}
