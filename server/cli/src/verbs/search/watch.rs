//! `search -w`: prints the hits, then streams changes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use futures::TryStreamExt;
use serde_json::{Value, json};

use super::{SearchArgs, api_path, headers, hit_name, print_warnings, row};
use crate::columns::Widths;
use crate::event_stream::{self, EventParser, Lines};
use crate::output::Format;
use crate::output::terminal;

/// State of the watch.
struct SearchWatch<'a> {
    args: &'a SearchArgs,
    query: &'a str,
    widths: Widths,
    /// The hit printed last, by name.
    printed_hits: BTreeMap<String, Value>,
    /// Hits of the current connection, until the initial search is complete.
    current_hits: Option<BTreeMap<String, Value>>,
    needs_header: bool,
    /// True until the first hit is printed in an output format other than a table.
    is_first: bool,
}

pub(super) async fn follow(args: &SearchArgs, query: &str) -> anyhow::Result<ExitCode> {
    if matches!(args.output, Format::Csv) {
        bail!(
            "-w supports the output formats table, wide, json, jsonl, yaml, name, jsonpath, go-template and custom-columns"
        );
    }
    let client = args.read.connection.client().await?;
    let widths =
        if args.color.is_enabled() { Widths::with_colors(&headers(args.is_wide())) } else { Widths::default() };
    let (printed_hits, needs_header, is_first) = (BTreeMap::new(), !args.no_headers, true);
    let mut watch = SearchWatch { args, query, widths, printed_hits, current_hits: None, needs_header, is_first };
    let path = api_path("query", query, &format!("&limit={}&watch=true", args.limit));
    event_stream::follow(&client, &path, async |lines| watch.read(lines).await).await
}

impl SearchArgs {
    fn is_wide(&self) -> bool {
        matches!(self.output, Format::Wide)
    }
}

impl SearchWatch<'_> {
    /// Reads one connection to its end; true if the initial search was complete.
    async fn read(&mut self, mut lines: Lines) -> anyhow::Result<bool> {
        let mut parser = EventParser::default();
        self.current_hits = Some(BTreeMap::new());
        loop {
            let line = match lines.try_next().await {
                Ok(Some(line)) => line,
                Ok(None) | Err(_) => return Ok(self.current_hits.is_none()),
            };
            if let Some((name, data)) = parser.push_line(&line) {
                let data: Value =
                    serde_json::from_str(&data).with_context(|| format!("cannot decode an event {name}"))?;
                if self.handle_message(&mut terminal::stdout(), &mut terminal::stderr(), &name, data)? {
                    return Ok(true);
                }
            }
        }
    }

    /// Processes a message; true if the search must be started again.
    fn handle_message(
        &mut self,
        out: &mut impl Write,
        err: &mut impl Write,
        name: &str,
        data: Value,
    ) -> anyhow::Result<bool> {
        match name {
            "matches" => {
                let Value::Array(hits) = data else { return Ok(false) };
                for hit in hits {
                    if let Some(current_hits) = &mut self.current_hits {
                        current_hits.insert(hit_name(&hit), hit.clone());
                    }
                    self.print_hit(out, hit)?;
                }
            }
            "changed" => self.print_hit(out, data)?,
            "left" => self.remove_hit(err, &hit_name(&data))?,
            "done" => {
                // Hits that disappeared while the connection was interrupted.
                if let Some(current_hits) = self.current_hits.take() {
                    let removed: Vec<String> =
                        self.printed_hits.keys().filter(|name| !current_hits.contains_key(*name)).cloned().collect();
                    removed.iter().try_for_each(|name| self.remove_hit(err, name))?;
                }
            }
            "skipped" | "notices" => {
                print_warnings(err, &json!({name: data, "total": 1, "hits": [1]}), self.query)?;
            }
            "behind" => return Ok(true),
            "error" => {
                let message = data.get("message").and_then(Value::as_str).unwrap_or("the search ended");
                return Err(anyhow!("{message}"));
            }
            _ => {}
        }
        Ok(false)
    }

    fn remove_hit(&mut self, err: &mut impl Write, name: &str) -> io::Result<()> {
        match self.printed_hits.remove(name) {
            Some(_) => writeln!(err, "- {name}"),
            None => Ok(()),
        }
    }

    fn print_hit(&mut self, out: &mut impl Write, hit: Value) -> anyhow::Result<()> {
        let name = hit_name(&hit);
        if self.printed_hits.get(&name).is_some_and(|printed| is_same_hit(printed, &hit)) {
            return Ok(());
        }
        match &self.args.output {
            Format::Table | Format::Wide => {
                let wide = self.args.is_wide();
                let head = std::mem::take(&mut self.needs_header).then(|| headers(wide));
                let rows: Vec<Vec<String>> =
                    head.into_iter().chain([row(&hit, wide, jiff::Timestamp::now())]).collect();
                self.widths.write(out, &rows)?;
            }
            format => {
                let head = std::mem::take(&mut self.is_first) && !self.args.no_headers;
                format.print_next(out, &hit, head, hit_name)?;
            }
        }
        out.flush()?;
        self.printed_hits.insert(name, hit);
        Ok(())
    }
}

/// Compares hits without score and matched fields.
fn is_same_hit(left: &Value, right: &Value) -> bool {
    let without_relevance = |hit: &Value| {
        let mut hit = hit.clone();
        if let Some(fields) = hit.as_object_mut() {
            fields.remove("score");
            fields.remove("matched");
        }
        hit
    };
    without_relevance(left) == without_relevance(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;

    fn hit(name: &str, status: &str, score: f64) -> Value {
        json!({"cluster": "m1", "kind": "Pod", "resource": "pods", "namespace": "a", "name": name, "status": status, "score": score})
    }

    #[test]
    fn changes_are_printed_once() {
        let args: SearchArgs = parse_args("kind:pod -w -o table").unwrap();
        let mut watch = SearchWatch {
            args: &args,
            query: "kind:pod",
            widths: Widths::default(),
            printed_hits: BTreeMap::new(),
            current_hits: Some(BTreeMap::new()),
            needs_header: true,
            is_first: true,
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let events = [
            ("skipped", json!([{"cluster": "m2", "reason": "connection refused"}])),
            ("matches", json!([hit("web", "Pending", 1.0), hit("db", "Running", 1.0)])),
            ("done", json!({"total": 2})),
            ("changed", hit("web", "Running", 1.0)),
            ("changed", hit("db", "Running", 2.0)),
            ("left", hit("db", "Running", 2.0)),
        ];
        for (name, data) in events {
            assert!(!watch.handle_message(&mut out, &mut err, name, data).unwrap());
        }
        assert!(watch.handle_message(&mut out, &mut err, "behind", json!({})).unwrap());
        // After a reconnect, the remaining hit no longer matches.
        watch.current_hits = Some(BTreeMap::new());
        watch.handle_message(&mut out, &mut err, "matches", json!([])).unwrap();
        watch.handle_message(&mut out, &mut err, "done", json!({"total": 0})).unwrap();
        let out = String::from_utf8(out).unwrap();
        let words: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words.len(), 4, "{out}");
        assert_eq!((words[1][3], words[1][4]), ("web", "Pending"));
        assert_eq!((words[3][3], words[3][4]), ("web", "Running"));
        let expected = "warning: m2: connection refused\n- m1/a/pods/db\n- m1/a/pods/web\n";
        assert_eq!(String::from_utf8(err).unwrap(), expected);
    }
}
