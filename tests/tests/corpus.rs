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
fn judged(wrong: &[String], asked: usize) -> Result<()> {
    ensure!(wrong.is_empty(), "{} of {asked} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

fn fault(question: &Question, asked: &str, fault: &str) -> String {
    if asked == question.query {
        format!("{asked}\n    {fault}")
    } else {
        format!("{} as {asked}\n    {fault}", question.query)
    }
}

/// All queries, with their counts and the counts of kinds over the same hits.
fn through_the_api(stage: &Stage, corpus: &Corpus) -> Result<()> {
    ensure!(corpus.questions.len() >= 400, "{} queries", corpus.questions.len());
    let mut wrong = Vec::new();
    for question in &corpus.questions {
        let asked = stage.asked(&question.query)?;
        let whole = stage.query(&asked)?;
        let answer = Answer::of(&whole)?;
        let kinds = whole["facets"]["kind"].as_array().into_iter().flatten();
        let kinds: u64 = kinds.filter_map(|kind| kind["count"].as_u64()).sum();
        let count = stage.get(&format!("count?q={}", utf8_percent_encode(&asked, NON_ALPHANUMERIC)))?;
        let mut faults = answer.faults(question);
        if kinds != answer.total || count["total"] != answer.total {
            faults.push(format!("{} hits, {kinds} by kind, counted {}", answer.total, count["total"]));
        }
        wrong.extend(faults.iter().map(|said| fault(question, &asked, said)));
    }
    judged(&wrong, corpus.questions.len())
}

/// All queries. One cluster is stale, which each result reports.
fn through_the_cli(stage: &Stage, corpus: &Corpus) -> Result<()> {
    let binary = binary()?;
    let mut wrong = Vec::new();
    for question in &corpus.questions {
        let asked = stage.asked(&question.query)?;
        let mut command = Command::new(&binary);
        command.env("KUBECONFIG", &stage.kubeconfig).args(["search", "-o", "json", "--limit", "1000", "--", &asked]);
        let said = CommandOutput::of(&command.output()?)?;
        let answer = Answer::of(&serde_json::from_str(&said.out).with_context(|| format!("{asked}: {said:?}"))?)?;
        let mut faults = answer.faults(question);
        let notes: Vec<&str> = said.err.lines().filter_map(|line| line.strip_prefix("note: ")).collect();
        if said.code != Some(5) || !said.err.contains("warning: member2: ") || notes != answer.remarks {
            faults.push(format!("it says {:?} and ends with {:?}", said.err, said.code));
        }
        wrong.extend(faults.iter().map(|said| fault(question, &asked, said)));
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
    let asked = questions.iter().map(|question| stage.asked(&question.query)).collect::<Result<Vec<_>>>()?;
    let file = folder.join("queries.json");
    std::fs::write(&file, serde_json::to_vec(&asked)?)?;
    let (address, _) = stage.fleet.ui_url.split_once('#').context("an address with a token")?;
    let address = format!("{address}#token={}", stage.token);
    let Some(said) = walk("corpus", &[address.as_ref(), file.as_ref()], &[])? else { return Ok(()) };
    let shown: Vec<Shown> = serde_json::from_str(&said)?;
    ensure!(shown.len() == questions.len(), "{} of {} queries were sent", shown.len(), questions.len());
    let mut wrong = Vec::new();
    for ((question, asked), shown) in questions.iter().zip(&asked).zip(&shown) {
        for (how, answer) in [("typed", &shown.typed), ("linked", &shown.linked)] {
            wrong.extend(answer.faults(question).iter().map(|said| fault(question, asked, &format!("{how}: {said}"))));
        }
    }
    judged(&wrong, questions.len())
}
