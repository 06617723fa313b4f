//! The attack table: requests that try to run as a user, or on a resource, other than the authorized one. They are
//! sent byte for byte to the running binary (the embedded control plane, the aggregated port, the fleet proxy,
//! `clusters/*/proxy`, the UI, an agent's tunnel), and checked by the raw bytes that arrive at the member. The rows
//! are in `attacks/table/*.yaml`.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use futures::StreamExt;

use http1::Response;
use recorder::{MARK, RecordedRequest};
use table::{Case, RuntimeValues};
use test_env::TestEnv;
use wire::lossy;

mod callers;
mod evaluation;
mod http1;
mod http2;
mod recorder;
mod table;
mod test_env;
mod wire;

/// Maximum number of concurrent cases.
const MAX_CONCURRENT_CASES: usize = 24;
/// Minimum number of rows; a smaller table is incomplete.
const MIN_ROWS: usize = 80;
/// Minimum number of cases.
const MIN_CASES: usize = 150;
/// Environment variable with a row's name or prefix; limits the run to these rows.
const ROW_FILTER_VARIABLE: &str = "CROWSNEST_ATTACKS";

#[test]
fn the_table_is_consistent() -> Result<()> {
    let rows = table::rows()?;
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    ensure!(ids.len() == rows.len(), "the ID of a row is used twice");
    let cases = table::cases(&rows, &Arc::new(RuntimeValues::default()))?;
    let problems =
        cases.iter().filter_map(|case| case.check().err().map(|error| format!("{}: {error:#}", case.name())));
    let problems: Vec<String> = problems.collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    ensure!(rows.len() >= MIN_ROWS && cases.len() >= MIN_CASES, "{} rows, {} cases", rows.len(), cases.len());
    ensure!(test_env::is_canary_stored(), "the Secret of the control plane does not contain the canary");
    Ok(())
}

#[test]
fn requests_run_with_the_callers_identity() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let env = TestEnv::start(folder.path()).await?;
        let filter = std::env::var(ROW_FILTER_VARIABLE).unwrap_or_default();
        let mut cases = table::cases(&table::rows()?, &env.runtime_values)?;
        cases.retain(|case| case.row.id.starts_with(&filter));
        let responses = futures::stream::iter(&cases).map(|case| send_case(&env, case)).buffered(MAX_CONCURRENT_CASES);
        let responses: Vec<Response> = responses.collect().await;
        let leftovers = env.leftover_objects(MARK).await.unwrap_or_else(|error| vec![format!("{error:#}")]);
        env.stop().await?;
        let arrivals: Vec<RecordedRequest> = env.recorders.iter().flat_map(|recorder| recorder.requests()).collect();
        let results = cases.iter().zip(&responses);
        let failures =
            results.filter_map(|(case, response)| describe_failure(case, response, &arrivals, &env));
        let failures: Vec<String> = failures.collect();
        let unmarked = arrivals.iter().filter(|recorded| !recorded.relayed && !recorded.contains(MARK.as_bytes()));
        let unmarked: Vec<String> = unmarked.map(|recorded| format_bytes(&recorded.head, &env)).collect();
        ensure!(
            failures.is_empty() && leftovers.is_empty() && unmarked.is_empty(),
            "{} of {} cases failed:\n\n{}\nleft in the control plane: {leftovers:?}\nunmarked requests: {unmarked:#?}\n{}",
            failures.len(),
            cases.len(),
            failures.join("\n"),
            env.fleet.log()
        );
        Ok(())
    })
}

/// Sends the request of a case. A refused connection counts as a response.
async fn send_case(env: &TestEnv, case: &Case) -> Response {
    let Ok(wire) = env.connect(case).await else { return Response::default() };
    match case.version {
        2 => http2::exchange(wire, &http2::request(case)).await,
        _ => http1::exchange(wire, &http1::request(case)).await,
    }
}

/// Report of a failed case, with all details; `None` if the case passed.
fn describe_failure(case: &Case, response: &Response, arrivals: &[RecordedRequest], env: &TestEnv) -> Option<String> {
    let case_requests: Vec<RecordedRequest> =
        arrivals.iter().filter(|recorded| recorded.contains(case.mark.as_bytes())).cloned().collect();
    let errors = evaluation::check_case(case, response, &case_requests, &env.identities);
    if errors.is_empty() {
        return None;
    }
    let mut text = format!("{}\n", case.name());
    for error in errors {
        text += &format!("    ERROR    {error}\n");
    }
    let mut add_line = |label: &str, bytes: &[u8]| text += &format!("    {label} {}\n", format_bytes(bytes, env));
    let sent = if case.version == 2 { describe_fields(case) } else { http1::request(case) };
    add_line("sent    ", &sent);
    add_line("received", &[response.status.to_string().as_bytes(), b" ", &response.body].concat());
    for recorded in &case_requests {
        add_line(&format!("at {}   ", recorded.member), &[&*recorded.head, &recorded.body].concat());
    }
    Some(text)
}

/// HTTP/2 fields and trailers of a case as lines of text.
fn describe_fields(case: &Case) -> Vec<u8> {
    let all = case.fields().into_iter().chain(case.trailers());
    all.flat_map(|(name, value)| [&*name, b": ", &value, b"\n"].concat()).collect()
}

/// Bytes as one line of text with at most 1,200 characters. Credentials are replaced by a placeholder.
fn format_bytes(bytes: &[u8], env: &TestEnv) -> String {
    let mut text = lossy(bytes);
    for secret in env.identities.credentials.iter().chain(env.identities.impersonators.values()) {
        text = text.replace(secret, "[credential]");
    }
    let text: String = text.chars().take(1_200).collect();
    text.escape_debug().to_string().replace("\\r\\n", " ⏎ ").replace("\\\"", "\"")
}
