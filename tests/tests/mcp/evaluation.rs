//! Evaluates the tools with questions of operators on a seeded fleet of 20 clusters. This program replaces the
//! assistant: `questions.json` contains the tool calls for each question, which may use cells of earlier responses, and
//! the facts that the responses must contain. `grouped` is the sum of the counts of all groups.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::{Value, json};

use super::Session;

const QUESTIONS: &str = include_str!("questions.json");
/// Objects by member.
const SEED: [(&str, &str); 3] = [
    ("member4", include_str!("seed/member4.yaml")),
    ("member7", include_str!("seed/member7.yaml")),
    ("member12", include_str!("seed/member12.yaml")),
];
const CONTROL_PLANE: &str = include_str!("seed/control-plane.yaml");
/// Queries and their totals once the seed is in the cache. Kinds reach the cache independently of each other, so each
/// object that a question reads is in this list.
const TOTALS_AFTER_SEED: [(&str, usize); 11] = [
    ("kind:pod ns:bookshop cluster:member4 status:Running", 1),
    ("kind:pod ns:bookshop name:importer* status:CrashLoopBackOff", 1),
    ("kind:cm ns:bookshop name:=old-settings", 1),
    ("kind:cm ns:bookshop name:=settings", 2),
    ("kind:secret,service,ingress ns:bookshop name:=catalog,catalog-db", 3),
    ("kind:pvc ns:bookshop status:Pending", 1),
    ("kind:job ns:bookshop status:Failed", 1),
    ("kind:event cluster:member12 ns:bookshop FailedScheduling", 1),
    ("kind:namespace label:cost-center=4711", 1),
    ("kind:role,rolebinding cluster:member4 ns:bookshop name:=secrets", 2),
    ("kind:deploy cluster:member2,member9 ns:fleet name:=front", 2),
];
/// Pods of the synthetic load.
const LOAD: &str = "pods=2500,seed=7";
/// Queries and their totals once a change, a deletion and a cordoned node are in the cache. In addition to the pods of the
/// load, the seed has 12: 4 of single workloads, and 4 of the front end in each of two members.
const TOTALS_AFTER_CHANGES: [(&str, usize); 5] = [
    ("kind:cluster group:cluster.karmada.io status:Ready", 20),
    ("kind:pod", 2512),
    ("kind:deploy ns:bookshop image:*catalog:2.1.0 ready:>0", 1),
    ("is:deleted name:=old-settings", 1),
    ("kind:node .spec.unschedulable:true", 1),
];

/// Maximum of the median number of tool calls per question.
const MAX_CALLS: usize = 3;
/// Maximum of the median size of all responses to a question.
const MAX_BYTES: usize = 12 << 10;
/// Minimum number of objects in the fleet.
const MIN_OBJECTS: u64 = 5_000;

#[test]
fn tools_answer_the_questions_of_operators() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let load = ["--members", "20", "--load", LOAD];
    let fleet = Fleet::start(&dir.path().join("data"), &load)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    seed(&fleet, &kubectl).with_context(|| fleet.log())?;
    evaluate(&fleet).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn seed(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    for (member, objects) in SEED {
        kubectl.with_kubeconfig(&fleet.kubeconfig(member)).run_ok(&["apply", "-f", "-"], objects)?;
    }
    kubectl.run_ok(&["apply", "-f", "-"], CONTROL_PLANE)?;
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member4"));
    let mut session = Session::start(fleet, &["mcp"])?;
    let mut wait_for_total = |(query, total): (&str, usize)| -> Result<()> {
        let total = format!("\ntotal\t{total}\n");
        wait_for(query, || Ok(session.call("search", &json!({"query": query}))?.0.contains(&total)))
    };
    TOTALS_AFTER_SEED.into_iter().try_for_each(&mut wait_for_total)?;
    member.run_ok(
        &["-n", "bookshop", "set", "image", "deploy/catalog", "catalog=registry.example.com/books/catalog:2.1.0"],
        "",
    )?;
    member.run_ok(&["-n", "bookshop", "delete", "configmap", "old-settings"], "")?;
    member.run_ok(&["cordon", "member4-node-2"], "")?;
    TOTALS_AFTER_CHANGES.into_iter().try_for_each(&mut wait_for_total)?;
    session.close()
}

/// Cost of one question.
struct Cost {
    calls: usize,
    bytes: usize,
}

fn evaluate(fleet: &Fleet) -> Result<()> {
    let questions: Vec<Value> = serde_json::from_str(QUESTIONS)?;
    ensure!(questions.len() == 25, "{} questions", questions.len());
    let mut session = Session::start(fleet, &["mcp"])?;
    let (all, _) = session.call("search", &json!({"count_only": true}))?;
    let objects = all.lines().find_map(|line| line.strip_prefix("total\t")).context("no total")?.parse::<u64>()?;
    ensure!(objects >= MIN_OBJECTS, "the fleet has only {objects} objects");
    let (mut costs, mut errors) = (Vec::new(), Vec::new());
    for question in &questions {
        let (cost, error) = ask_question(&mut session, question)?;
        costs.push(cost);
        errors.extend(error);
    }
    let calls = Distribution::new(costs.iter().map(|cost| cost.calls));
    let bytes = Distribution::new(costs.iter().map(|cost| cost.bytes));
    let mut output = std::io::stderr();
    writeln!(output, "mcp/evaluation-calls-p50 {} -max {}", calls.median, calls.max)?;
    writeln!(output, "mcp/evaluation-bytes-p50 {} -max {}", bytes.median, bytes.max)?;
    ensure!(errors.is_empty(), "{}", errors.join("\n\n"));
    ensure!(calls.median <= MAX_CALLS, "the median is {} calls per question", calls.median);
    ensure!(bytes.median <= MAX_BYTES, "the median is {} bytes per question", bytes.median);
    session.close()
}

/// Calls the tools of a question; returns the cost, and an error if facts are missing in the responses.
fn ask_question(session: &mut Session, question: &Value) -> Result<(Cost, Option<String>)> {
    let (mut responses, mut cells) = (Vec::new(), BTreeMap::<String, String>::new());
    let calls = question["calls"].as_array().context("no calls")?;
    for call in calls {
        let mut arguments = call["arguments"].to_string();
        for (name, value) in &cells {
            arguments = arguments.replace(&format!("{{{name}}}"), value);
        }
        let tool = call["tool"].as_str().context("no tool")?;
        let (text, is_error) = session.call(tool, &serde_json::from_str(&arguments)?)?;
        ensure!(!is_error, "{tool} {arguments}: {text}");
        if let Some(column) = call["take"].as_str() {
            cells.insert(column.to_owned(), find_cell(&text, column)?);
        }
        responses.push(text);
    }
    let facts = question["facts"].as_array().context("no facts")?.iter().filter_map(Value::as_str);
    let mut missing: Vec<&str> = facts.filter(|fact| !responses.iter().any(|text| text.contains(fact))).collect();
    let groups = question["grouped"].as_u64();
    if groups.is_some_and(|expected| responses.iter().all(|text| sum_groups(text) != expected)) {
        missing.push("the sum of the groups");
    }
    let cost = Cost { calls: calls.len(), bytes: responses.iter().map(String::len).sum() };
    let error = || format!("{}: {missing:?} is not in {}", question["question"], responses.join("\n---\n"));
    Ok((cost, (!missing.is_empty()).then(error)))
}

/// The cell of this column in the first row of the table.
fn find_cell(text: &str, column: &str) -> Result<String> {
    let mut lines = text.lines().skip_while(|line| !line.split('\t').any(|head| head == column));
    let at = lines.next().and_then(|heads| heads.split('\t').position(|head| head == column));
    let row = lines.next().zip(at).and_then(|(row, at)| row.split('\t').nth(at));
    Ok(row.with_context(|| format!("no column {column} in {text}"))?.to_owned())
}

/// The sum of the counts of all groups.
fn sum_groups(text: &str) -> u64 {
    let groups = text.lines().skip_while(|line| !line.ends_with("\tcount")).skip(1);
    groups.map_while(|line| line.rsplit_once('\t')?.1.parse::<u64>().ok()).sum()
}

/// Distribution of the costs of the questions.
struct Distribution {
    median: usize,
    max: usize,
}

impl Distribution {
    fn new(costs: impl Iterator<Item = usize>) -> Self {
        let mut costs: Vec<usize> = costs.collect();
        costs.sort_unstable();
        let median = costs.get(costs.len() / 2).copied().unwrap_or_default();
        Self { median, max: costs.last().copied().unwrap_or_default() }
    }
}
