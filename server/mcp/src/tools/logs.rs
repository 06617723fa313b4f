//! `logs`: lines of containers' logs, merged by time over all clusters.

mod private_keys;

use std::collections::HashMap;

use serde_json::json;

use super::object::quote;
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::{ApiRequest, SEARCH_API, uri};
use crate::output::redact::REDACTED;
use crate::output::{Row, ToolOutput, row};

/// Default and maximum number of lines from the end of each container's log.
const DEFAULT_TAIL_LINES: usize = 50;
const MAX_TAIL_LINES: usize = 5_000;
/// Start of lines that are messages of the API.
const API_MESSAGE_PREFIX: &str = "crowsnest: ";

pub(super) const TOOL: Tool = Tool {
    name: "logs",
    title: "Read container logs",
    description: "Log lines of the pods that match a query, of all clusters, merged by time. Name pods by `query` (as in \
`search`, such as `status:CrashLoopBackOff`; `select:pod` selects pods of other objects, `name:=web kind:deploy \
select:pod`) or by cluster, namespace and pod. `previous` reads the runs before the last restarts. The newest lines are \
shown first; `next` continues with older ones.",
    properties: || {
        json!({
            "query": {"type": "string"},
            "cluster": {"type": "string"},
            "namespace": {"type": "string"},
            "pod": {"type": "string", "description": "Name of a pod."},
            "container": {"type": "string", "description": "Regular expression of container names."},
            "tail": {"type": "integer", "minimum": 1, "maximum": MAX_TAIL_LINES, "default": DEFAULT_TAIL_LINES,
                "description": "Last lines of each container, before `grep`."},
            "since": {"type": "string", "description": "Maximum age, such as 15m or 2h."},
            "grep": {"type": "string", "description": "Regular expression that lines match."},
            "previous": {"type": "boolean"},
        })
    },
    required: &[],
    layout: None,
    run: |call| Box::pin(logs(call)),
};

async fn logs(call: &Call<'_>) -> Result<Page, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let tail = call.arguments.number("tail")?.to_string();
    let previous = if call.arguments.flag("previous")? { "true" } else { "" };
    let (query, pod) = (argument("query")?, argument("pod")?);
    if query.is_empty() && pod.is_empty() && argument("namespace")?.is_empty() {
        return Err(ToolError::Input("set query, pod or namespace: logs of a whole fleet are not read".to_owned()));
    }
    let query = match pod {
        "" => query.to_owned(),
        pod => format!("{query} kind:pod name:={}", quote(pod)).trim().to_owned(),
    };
    let parameters = [
        ("q", query.as_str()),
        ("cluster", argument("cluster")?),
        ("namespace", argument("namespace")?),
        ("container", argument("container")?),
        ("tail", &tail),
        ("since", argument("since")?),
        ("include", argument("grep")?),
        ("previous", previous),
        ("timestamps", "true"),
    ];
    let response =
        call.api.send(ApiRequest { uri: uri(&format!("{SEARCH_API}/logs"), &parameters), body: None }).await?;
    let text = String::from_utf8_lossy(&response.body);
    let mut output = log_output(&text);
    if response.is_truncated {
        output.notes.push(row(["notice", "the newest lines are missing: reduce tail, or narrow the query"]));
    }
    Ok(Page { output, next: Continuation::Offset })
}

/// Output with the lines as rows, newest first, and messages of the API as notes.
fn log_output(text: &str) -> ToolOutput {
    let (messages, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with(API_MESSAGE_PREFIX));
    let mut rows: Vec<Row> = lines.iter().map(|line| parse_line(line)).collect();
    redact_private_keys(&mut rows);
    rows.reverse();
    let notes = messages.iter().map(|line| row(["notice", line.trim_start_matches(API_MESSAGE_PREFIX)])).collect();
    let facts = vec![row(["lines", &rows.len().to_string()])];
    let table = ToolOutput::table(["cluster", "pod", "container", "time", "text"], rows);
    ToolOutput { facts, notes, ..table }
}

/// Cells of a line `CLUSTER NAMESPACE/POD CONTAINER | TIME TEXT`.
fn parse_line(line: &str) -> Row {
    let parts = || {
        let (source, rest) = line.split_once(" | ")?;
        let mut words = source.splitn(3, ' ');
        let (cluster, pod, container) = (words.next()?, words.next()?, words.next()?);
        let (time, text) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(row([cluster, pod, container, time, text]))
    };
    parts().unwrap_or_else(|| row(["", "", "", "", line]))
}

/// Cluster, pod and container that wrote the line.
fn container_cells(row: &[String]) -> Row {
    row.iter().take(3).cloned().collect()
}

/// Replaces the lines of private keys. The rows are in chronological order; lines of other containers may be between those of a
/// key.
fn redact_private_keys(rows: &mut [Row]) {
    let mut containers: HashMap<Row, Vec<usize>> = HashMap::new();
    for (nth, row) in rows.iter().enumerate() {
        containers.entry(container_cells(row)).or_default().push(nth);
    }
    for indexes in containers.into_values() {
        let lines: Vec<&str> = indexes.iter().map(|nth| rows[*nth].last().map_or("", String::as_str)).collect();
        let is_key_line = private_keys::find_key_lines(&lines);
        for (nth, is_key) in indexes.into_iter().zip(is_key_line) {
            if let Some(text) = rows[nth].last_mut().filter(|_| is_key) {
                REDACTED.clone_into(text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_to_cells() {
        let text = "m1 shop/web-0 web | 2026-01-01T00:00:00.000000000Z one | two\ncrowsnest: cannot read m2 a/b c: no\n\
            m2 shop/web-1 web | 2026-01-01T00:00:01.000000000Z three\n";
        let output = log_output(text);
        assert_eq!(
            output.rows,
            [
                row(["m2", "shop/web-1", "web", "2026-01-01T00:00:01.000000000Z", "three"]),
                row(["m1", "shop/web-0", "web", "2026-01-01T00:00:00.000000000Z", "one | two"]),
            ]
        );
        assert_eq!(output.notes, [row(["notice", "cannot read m2 a/b c: no"])]);
    }

    /// Lines of other containers are between those of a key.
    #[test]
    fn lines_of_private_keys_are_redacted_by_container() {
        let lines = [
            ("a", "-----BEGIN RSA PRIVATE KEY-----"),
            ("b", "other"),
            ("a", "MIIE"),
            ("b", "MIIE"),
            ("a", "x9=="),
            ("a", "-----END RSA PRIVATE KEY-----"),
            ("a", "end"),
        ];
        let mut rows: Vec<Row> = lines.map(|(container, text)| row(["m1", "shop/web-0", container, "", text])).to_vec();
        redact_private_keys(&mut rows);
        let texts: Vec<&str> = rows.iter().map(|row| row[4].as_str()).collect();
        let begin = "-----BEGIN RSA PRIVATE KEY-----";
        assert_eq!(texts, [begin, "other", REDACTED, "MIIE", REDACTED, REDACTED, "end"]);
    }
}
