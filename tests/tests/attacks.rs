//! The attack table: requests that try to run as another user, or on another resource, than was authorized. They are
//! sent byte for byte to the running binary (the embedded control plane, the aggregated port, the fleet proxy,
//! `clusters/*/proxy`, the UI, an agent's tunnel) and evaluated by the raw bytes that arrive at the member. The rows
//! are data: `attacks/*.yaml`.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use futures::StreamExt;

use http1::Answer;
use recorder::{MARK, RecordedRequest};
use site::Site;
use table::{Case, Places};
use wire::lossy;

mod callers;
mod http1;
mod http2;
mod recorder;
mod site;
mod table;
mod verdict;
mod wire;

/// Maximum number of concurrent cases.
const AT_ONCE: usize = 24;
/// Minimum number of rows and cases.
const ROWS: usize = 80;
const CASES: usize = 150;
/// Environment variable with a row's name or prefix; limits the run to these rows.
const ONLY: &str = "CROWSNEST_ATTACKS";

#[test]
fn the_table_is_consistent() -> Result<()> {
    let rows = table::rows()?;
    let names: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    ensure!(names.len() == rows.len(), "a row's id is used twice");
    let cases = table::cases(&rows, &Arc::new(Places::default()))?;
    let problems =
        cases.iter().filter_map(|case| case.check().err().map(|error| format!("{}: {error:#}", case.name())));
    let problems: Vec<String> = problems.collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    ensure!(rows.len() >= ROWS && cases.len() >= CASES, "{} rows, {} cases", rows.len(), cases.len());
    ensure!(site::canary_is_stored());
    Ok(())
}

#[test]
fn requests_run_with_the_callers_identity() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let site = Site::start(folder.path()).await?;
        let only = std::env::var(ONLY).unwrap_or_default();
        let mut cases = table::cases(&table::rows()?, &site.places)?;
        cases.retain(|case| case.row.id.starts_with(&only));
        let answers = futures::stream::iter(&cases).map(|case| answered(&site, case)).buffered(AT_ONCE);
        let answers: Vec<Answer> = answers.collect().await;
        let left = site.leftover_objects(MARK).await.unwrap_or_else(|error| vec![format!("{error:#}")]);
        site.stop().await?;
        let arrivals: Vec<RecordedRequest> = site.recorders.iter().flat_map(|recorder| recorder.requests()).collect();
        let failures: Vec<String> =
            cases.iter().zip(&answers).filter_map(|(case, response)| failure(case, response, &arrivals, &site)).collect();
        let strays = arrivals.iter().filter(|recorded| !recorded.relayed && !recorded.contains(MARK.as_bytes()));
        let strays: Vec<String> = strays.map(|recorded| shown(&recorded.head, &site)).collect();
        ensure!(
            failures.is_empty() && left.is_empty() && strays.is_empty(),
            "{} of {} cases failed:\n\n{}\nleft in the control plane: {left:?}\narrived without a mark: {strays:#?}\n{}",
            failures.len(),
            cases.len(),
            failures.join("\n"),
            site.fleet.log()
        );
        Ok(())
    })
}

/// A refused connection counts as an answer.
async fn answered(site: &Site, case: &Case) -> Answer {
    let Ok(wire) = site.connect(case).await else { return Answer::default() };
    match case.version {
        2 => http2::exchange(wire, &http2::request(case)).await,
        _ => http1::exchange(wire, &http1::request(case)).await,
    }
}

/// Report of a failed case, with all details.
fn failure(case: &Case, response: &Answer, arrivals: &[RecordedRequest], site: &Site) -> Option<String> {
    let own: Vec<RecordedRequest> =
        arrivals.iter().filter(|recorded| recorded.contains(case.mark.as_bytes())).cloned().collect();
    let wrong = verdict::check_case(case, response, &own, &site.facts);
    if wrong.is_empty() {
        return None;
    }
    let mut text = format!("{}\n", case.name());
    for line in wrong {
        text += &format!("    WRONG    {line}\n");
    }
    let mut shown = |what: &str, bytes: &[u8]| text += &format!("    {what} {}\n", shown(bytes, site));
    let sent = if case.version == 2 { fields(case) } else { http1::request(case) };
    shown("sent    ", &sent);
    shown("answered", &[response.status.to_string().as_bytes(), b" ", &response.body].concat());
    for recorded in &own {
        shown(&format!("at {}   ", recorded.member), &[&*recorded.head, &recorded.body].concat());
    }
    Some(text)
}

fn fields(case: &Case) -> Vec<u8> {
    let all = case.fields().into_iter().chain(case.trailers());
    all.flat_map(|(name, value)| [&*name, b": ", &value, b"\n"].concat()).collect()
}

/// Bytes as one line of text, with credentials removed.
fn shown(bytes: &[u8], site: &Site) -> String {
    let mut text = lossy(bytes);
    for secret in site.facts.credentials.iter().chain(site.facts.impersonators.values()) {
        text = text.replace(secret, "[credential]");
    }
    let text: String = text.chars().take(1_200).collect();
    text.escape_debug().to_string().replace("\\r\\n", " ⏎ ").replace("\\\"", "\"")
}
