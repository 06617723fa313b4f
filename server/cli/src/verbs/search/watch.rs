//! `search -w`: prints the hits, then streams changes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use futures::TryStreamExt;
use serde_json::{Value, json};

use super::{SearchArgs, called, heads, path, print_warnings, row};
use crate::columns::Widths;
use crate::event_stream::{self as events, Events, Lines};
use crate::output::Format;
use crate::output::terminal;

/// State of the watch.
struct Watched<'a> {
    args: &'a SearchArgs,
    query: &'a str,
    widths: Widths,
    /// The hit printed last, by name.
    known: BTreeMap<String, Value>,
    /// Hits of the current connection, until the initial search is complete.
    found: Option<BTreeMap<String, Value>>,
    head: bool,
    first: bool,
}

pub(super) async fn follow(args: &SearchArgs, query: &str) -> anyhow::Result<ExitCode> {
    if matches!(args.output, Format::Csv) {
        bail!(
            "-w supports the output formats table, wide, json, jsonl, yaml, name, jsonpath, go-template and custom-columns"
        );
    }
    let client = args.connection.client().await?;
    let widths = if args.color.painted() { Widths::painted(&heads(args.is_wide())) } else { Widths::default() };
    let (known, head, first) = (BTreeMap::new(), !args.no_headers, true);
    let mut watched = Watched { args, query, widths, known, found: None, head, first };
    let path = path("query", query, &format!("&limit={}&watch=true", args.limit));
    events::follow(&client, &path, async |lines| watched.read(lines).await).await
}

impl SearchArgs {
    fn is_wide(&self) -> bool {
        matches!(self.output, Format::Wide)
    }
}

impl Watched<'_> {
    /// Reads one connection to its end; true if the initial search was complete.
    async fn read(&mut self, mut lines: Lines) -> anyhow::Result<bool> {
        let mut events = Events::default();
        self.found = Some(BTreeMap::new());
        loop {
            let line = match lines.try_next().await {
                Ok(Some(line)) => line,
                Ok(None) | Err(_) => return Ok(self.found.is_none()),
            };
            if let Some((name, data)) = events.line(&line) {
                let data: Value =
                    serde_json::from_str(&data).with_context(|| format!("cannot decode an event {name}"))?;
                if self.event(&mut terminal::stdout(), &mut terminal::stderr(), &name, data)? {
                    return Ok(true);
                }
            }
        }
    }

    /// Processes a message; true if the search must be started again.
    fn event(&mut self, out: &mut impl Write, err: &mut impl Write, name: &str, data: Value) -> anyhow::Result<bool> {
        match name {
            "matches" => {
                let Value::Array(hits) = data else { return Ok(false) };
                for hit in hits {
                    if let Some(found) = &mut self.found {
                        found.insert(called(&hit), hit.clone());
                    }
                    self.hit(out, hit)?;
                }
            }
            "changed" => self.hit(out, data)?,
            "left" => self.remove_hit(err, &called(&data))?,
            "done" => {
                // Hits that disappeared while the connection was interrupted.
                if let Some(found) = self.found.take() {
                    let removed: Vec<String> =
                        self.known.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
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
        match self.known.remove(name) {
            Some(_) => writeln!(err, "- {name}"),
            None => Ok(()),
        }
    }

    fn hit(&mut self, out: &mut impl Write, hit: Value) -> anyhow::Result<()> {
        let name = called(&hit);
        if self.known.get(&name).is_some_and(|known| same(known, &hit)) {
            return Ok(());
        }
        match &self.args.output {
            Format::Table | Format::Wide => {
                let wide = self.args.is_wide();
                let head = std::mem::take(&mut self.head).then(|| heads(wide));
                let rows: Vec<Vec<String>> =
                    head.into_iter().chain([row(&hit, wide, jiff::Timestamp::now())]).collect();
                self.widths.write(out, &rows)?;
            }
            format => {
                let head = std::mem::take(&mut self.first) && !self.args.no_headers;
                format.next(out, &hit, head, called)?;
            }
        }
        out.flush()?;
        self.known.insert(name, hit);
        Ok(())
    }
}

/// Compares hits without score and matched fields.
fn same(one: &Value, other: &Value) -> bool {
    let shown = |hit: &Value| {
        let mut hit = hit.clone();
        if let Some(fields) = hit.as_object_mut() {
            fields.remove("score");
            fields.remove("matched");
        }
        hit
    };
    shown(one) == shown(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        search: SearchArgs,
    }

    fn hit(name: &str, status: &str, score: f64) -> Value {
        json!({"cluster": "m1", "kind": "Pod", "resource": "pods", "namespace": "a", "name": name, "status": status, "score": score})
    }

    #[test]
    fn changes_are_printed_once() {
        let args = Cli::parse_from(["search", "kind:pod", "-w", "-o", "table"]).search;
        let mut watched = Watched {
            args: &args,
            query: "kind:pod",
            widths: Widths::default(),
            known: BTreeMap::new(),
            found: Some(BTreeMap::new()),
            head: true,
            first: true,
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
            assert!(!watched.event(&mut out, &mut err, name, data).unwrap());
        }
        assert!(watched.event(&mut out, &mut err, "behind", json!({})).unwrap());
        // After a reconnect, one hit is no longer found.
        watched.found = Some(BTreeMap::new());
        watched.event(&mut out, &mut err, "matches", json!([])).unwrap();
        watched.event(&mut out, &mut err, "done", json!({"total": 0})).unwrap();
        let out = String::from_utf8(out).unwrap();
        let words: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words.len(), 4, "{out}");
        assert_eq!((words[1][3], words[1][4]), ("web", "Pending"));
        assert_eq!((words[3][3], words[3][4]), ("web", "Running"));
        let expected = "warning: m2: connection refused\n- m1/a/pods/db\n- m1/a/pods/web\n";
        assert_eq!(String::from_utf8(err).unwrap(), expected);
    }
}
