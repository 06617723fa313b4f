//! The golden corpus of queries on the real binary. The engine's own tests run the same queries in one process; here
//! objects are read from members over the network, and API, CLI and web UI must return the same results.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, binary, walk};

use answer::Answer;
use fixtures::{Corpus, Question};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use stage::Stage;

mod answer;
mod fixtures;
mod member;
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

/// Fails with all errors.
fn judged(wrong: &[String], count: usize) -> Result<()> {
    ensure!(wrong.is_empty(), "{} of {count} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

fn fault(question: &Question, query: &str, fault: &str) -> String {
    if query == question.query {
        format!("{query}\n    {fault}")
    } else {
        format!("{} as {query}\n    {fault}", question.query)
    }
}

/// All queries, with their counts and the counts of kinds over the same hits.
fn through_the_api(stage: &Stage, corpus: &Corpus) -> Result<()> {
    ensure!(corpus.questions.len() >= 400, "{} queries", corpus.questions.len());
    let mut wrong = Vec::new();
    for question in &corpus.questions {
        let query = stage.shift_query(&question.query)?;
        let whole = stage.query(&query)?;
        let result = Answer::of(&whole)?;
        let kinds = whole["facets"]["kind"].as_array().into_iter().flatten();
        let kinds: u64 = kinds.filter_map(|kind| kind["count"].as_u64()).sum();
        let count = stage.get(&format!("count?q={}", utf8_percent_encode(&query, NON_ALPHANUMERIC)))?;
        let mut faults = result.faults(question);
        if kinds != result.total || count["total"] != result.total {
            faults.push(format!("{} hits, {kinds} by kind, counted {}", result.total, count["total"]));
        }
        wrong.extend(faults.iter().map(|error| fault(question, &query, error)));
    }
    judged(&wrong, corpus.questions.len())
}

/// All queries. One cluster is stale, which each result reports.
fn through_the_cli(stage: &Stage, corpus: &Corpus) -> Result<()> {
    let binary = binary()?;
    let mut wrong = Vec::new();
    for question in &corpus.questions {
        let query = stage.shift_query(&question.query)?;
        let mut command = Command::new(&binary);
        command.env("KUBECONFIG", &stage.kubeconfig).args(["search", "-o", "json", "--limit", "1000", "--", &query]);
        let output = CommandOutput::of(&command.output()?)?;
        let result = Answer::of(&serde_json::from_str(&output.out).with_context(|| format!("{query}: {output:?}"))?)?;
        let mut faults = result.faults(question);
        let notes: Vec<&str> = output.err.lines().filter_map(|line| line.strip_prefix("note: ")).collect();
        if output.code != Some(5) || !output.err.contains("warning: member2: ") || notes != result.remarks {
            faults.push(format!("it says {:?} and ends with {:?}", output.err, output.code));
        }
        wrong.extend(faults.iter().map(|error| fault(question, &query, error)));
    }
    judged(&wrong, corpus.questions.len())
}

/// Results that a browser shows for a query that is typed and for its address.
#[derive(serde::Deserialize)]
struct Shown {
    typed: Answer,
    linked: Answer,
}

/// One query per language feature, in a real browser.
fn through_the_ui(stage: &Stage, corpus: &Corpus, folder: &Path) -> Result<()> {
    let questions = corpus.of_each_feature();
    ensure!(questions.len() >= 25, "{} queries", questions.len());
    let queries = questions.iter().map(|question| stage.shift_query(&question.query)).collect::<Result<Vec<_>>>()?;
    let file = folder.join("queries.json");
    std::fs::write(&file, serde_json::to_vec(&queries)?)?;
    let (address, _) = stage.fleet.ui_url.split_once('#').context("an address with a token")?;
    let address = format!("{address}#token={}", stage.token);
    let Some(output) = walk("corpus", &[address.as_ref(), file.as_ref()], &[])? else { return Ok(()) };
    let shown: Vec<Shown> = serde_json::from_str(&output)?;
    ensure!(shown.len() == questions.len(), "{} of {} queries were sent", shown.len(), questions.len());
    let mut wrong = Vec::new();
    for ((question, query), shown) in questions.iter().zip(&queries).zip(&shown) {
        for (how, result) in [("typed", &shown.typed), ("linked", &shown.linked)] {
            wrong
                .extend(result.faults(question).iter().map(|error| fault(question, query, &format!("{how}: {error}"))));
        }
    }
    judged(&wrong, questions.len())
}
