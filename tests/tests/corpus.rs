//! The golden corpus of queries on the real binary. The engine's own tests run the same queries in one process; here
//! objects are read from members over the network, and API, CLI and web UI must return the same results.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, binary, run_browser_script};

use fixtures::{Corpus, QueryCase};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use response::QueryResponse;
use stage::Stage;

mod fixtures;
mod member;
mod response;
mod stage;
mod times;

#[test]
fn the_corpus_is_found_by_all_interfaces() -> Result<()> {
    let corpus = Corpus::read()?;
    let dir = tempfile::tempdir()?;
    let mut stage = Stage::start(&corpus, dir.path())?;
    stage.play(&corpus).with_context(|| stage.fleet.log())?;
    through_the_api(&stage, &corpus).with_context(|| stage.fleet.log())?;
    through_the_cli(&stage, &corpus).with_context(|| stage.fleet.log())?;
    through_the_ui(&stage, &corpus, dir.path()).with_context(|| stage.fleet.log())?;
    ensure!(stage.fleet.stop()?.success());
    Ok(())
}

/// Fails if there are failures of queries; the error lists all of them.
fn ensure_no_failures(failures: &[String], count: usize) -> Result<()> {
    ensure!(failures.is_empty(), "{} failures in {count} queries:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

fn failure(case: &QueryCase, query: &str, difference: &str) -> String {
    if query == case.query {
        format!("{query}\n    {difference}")
    } else {
        format!("{} as {query}\n    {difference}", case.query)
    }
}

/// All queries, with their counts and the counts of kinds over the same hits.
fn through_the_api(stage: &Stage, corpus: &Corpus) -> Result<()> {
    ensure!(corpus.cases.len() >= 400, "{} queries", corpus.cases.len());
    let mut failures = Vec::new();
    for case in &corpus.cases {
        let query = stage.shift_query(&case.query)?;
        let whole = stage.query(&query)?;
        let result = QueryResponse::parse(&whole)?;
        let kinds = whole["facets"]["kind"].as_array().into_iter().flatten();
        let kinds: u64 = kinds.filter_map(|kind| kind["count"].as_u64()).sum();
        let count = stage.get(&format!("count?q={}", utf8_percent_encode(&query, NON_ALPHANUMERIC)))?;
        let mut differences = result.differences(case);
        if kinds != result.total || count["total"] != result.total {
            differences.push(format!("{} hits, {kinds} by kind, counted {}", result.total, count["total"]));
        }
        failures.extend(differences.iter().map(|difference| failure(case, &query, difference)));
    }
    ensure_no_failures(&failures, corpus.cases.len())
}

/// All queries. One cluster is stale, which each result reports.
fn through_the_cli(stage: &Stage, corpus: &Corpus) -> Result<()> {
    let binary = binary()?;
    let mut failures = Vec::new();
    for case in &corpus.cases {
        let query = stage.shift_query(&case.query)?;
        let mut command = Command::new(&binary);
        command.env("KUBECONFIG", &stage.kubeconfig).args(["search", "-o", "json", "--limit", "1000", "--", &query]);
        let output = CommandOutput::of(&command.output()?)?;
        let result =
            QueryResponse::parse(&serde_json::from_str(&output.out).with_context(|| format!("{query}: {output:?}"))?)?;
        let mut differences = result.differences(case);
        let notes: Vec<&str> = output.err.lines().filter_map(|line| line.strip_prefix("note: ")).collect();
        if output.code != Some(5) || !output.err.contains("warning: member2: ") || notes != result.notices {
            differences.push(format!("standard error {:?}, exit code {:?}", output.err, output.code));
        }
        failures.extend(differences.iter().map(|difference| failure(case, &query, difference)));
    }
    ensure_no_failures(&failures, corpus.cases.len())
}

/// Results that a browser shows for a query that is typed and for its address.
#[derive(serde::Deserialize)]
struct Shown {
    typed: QueryResponse,
    linked: QueryResponse,
}

/// One query per language feature, in a real browser.
fn through_the_ui(stage: &Stage, corpus: &Corpus, folder: &Path) -> Result<()> {
    let cases = corpus.of_each_feature();
    ensure!(cases.len() >= 25, "{} queries", cases.len());
    let queries = cases.iter().map(|case| stage.shift_query(&case.query)).collect::<Result<Vec<_>>>()?;
    let file = folder.join("queries.json");
    std::fs::write(&file, serde_json::to_vec(&queries)?)?;
    let (address, _) = stage.fleet.ui_url.split_once('#').context("an address with a token")?;
    let address = format!("{address}#token={}", stage.token);
    let Some(output) = run_browser_script("corpus", &[address.as_ref(), file.as_ref()], &[])? else { return Ok(()) };
    let shown: Vec<Shown> = serde_json::from_str(&output)?;
    ensure!(shown.len() == cases.len(), "{} of {} queries were sent", shown.len(), cases.len());
    let mut failures = Vec::new();
    for ((case, query), shown) in cases.iter().zip(&queries).zip(&shown) {
        for (how, result) in [("typed", &shown.typed), ("linked", &shown.linked)] {
            failures.extend(
                result.differences(case).iter().map(|difference| failure(case, query, &format!("{how}: {difference}"))),
            );
        }
    }
    ensure_no_failures(&failures, cases.len())
}
