//! Sends the sequences of many seeds to two servers, or to one.

use std::fmt::Write;
use std::ops::Range;

use anyhow::{Context, Result};
use futures::StreamExt;

use super::compare::{KnownDeviations, differences, mask};
use super::definition::Definition;
use super::sequence::{Request, Sequence};
use super::server::{Identity, Response, Server};

const CONCURRENT_SEQUENCES: usize = 8;
/// Maximum number of characters of a request's body that are shown.
const BODY_WIDTH: usize = 600;

pub struct Run<'a> {
    /// A real kube-apiserver; without one, only server errors are reported.
    pub real: Option<Server>,
    pub ours: Server,
    pub definitions: &'a [Definition],
    pub known: &'a KnownDeviations,
}

#[derive(Debug, Default)]
pub struct Report {
    pub requests: usize,
    /// Requests that our server accepted.
    pub accepted: usize,
    pub differing: Vec<String>,
}

impl Run<'_> {
    /// Runs the seeds; each uses one of the definitions.
    pub async fn execute(&self, seeds: Range<u64>) -> Result<Report> {
        for definition in self.definitions {
            for server in self.real.iter().chain([&self.ours]) {
                server.define(definition).await?;
            }
        }
        let outcomes = futures::stream::iter(seeds).map(|seed| self.run_seed(seed));
        let mut outcomes = outcomes.buffer_unordered(CONCURRENT_SEQUENCES);
        let mut report = Report::default();
        while let Some(outcome) = outcomes.next().await {
            let outcome = outcome?;
            report.requests += outcome.requests;
            report.accepted += outcome.accepted;
            report.differing.extend(outcome.differing);
        }
        report.differing.sort();
        Ok(report)
    }

    async fn run_seed(&self, seed: u64) -> Result<Report> {
        let at = usize::try_from(seed)? % self.definitions.len();
        let definition = &self.definitions[at];
        let mut report = Report::default();
        let (mut real_identity, mut our_identity) = (Identity::default(), Identity::default());
        let mut sequence = Sequence::new(seed, definition);
        let mut requests = Vec::new();
        while let Some(request) = sequence.next_request() {
            let (mut found, mut is_equal) = (Vec::new(), true);
            let mut ours = self.ours.send(&request, &mut our_identity).await?;
            if ours.code >= 500 && !self.is_recorded(&ours, &request.body) {
                found.push(format!("server error {}: {}", ours.code, ours.body));
            }
            let mut real = None;
            if let Some(server) = &self.real {
                let real = real.insert(server.send(&request, &mut real_identity).await?);
                mask(real, &real_identity);
                mask(&mut ours, &our_identity);
                found.extend(differences(real, &ours));
                is_equal = found.is_empty();
                found.retain(|text| !self.is_known_difference(text, &request.body));
            }
            report.requests += 1;
            report.accepted += usize::from(ours.code < 300);
            // Later requests derive from the responses of the real server.
            sequence.record_response(&request, real.as_ref().unwrap_or(&ours));
            requests.push(request);
            if !found.is_empty() {
                report.differing.push(describe(seed, definition, &requests, &found)?);
            }
            if !found.is_empty() || !is_equal {
                // After a difference, even an accepted one, later requests may differ because the stored objects differ.
                break;
            }
        }
        for server in self.real.iter().chain([&self.ours]) {
            for request in sequence.cleanup() {
                server.send(&request, &mut Identity::default()).await?;
            }
        }
        Ok(report)
    }

    /// True for a server error that kube-apiserver also returns, according to recorded scenarios.
    fn is_recorded(&self, ours: &Response, body: &str) -> bool {
        let message = ours.body["message"].as_str().unwrap_or_default();
        self.known.server_errors.iter().any(|known| known.explains(message, body))
    }

    fn is_known_difference(&self, text: &str, body: &str) -> bool {
        // Server errors are accepted by `is_recorded` only.
        !text.starts_with("server error") && self.known.accepts(text, body)
    }
}

/// Definition, seed, requests up to the one that differs, and the differences.
fn describe(seed: u64, definition: &Definition, requests: &[Request], found: &[String]) -> Result<String> {
    let mut text = format!("{} seed {seed} (CROWSNEST_SEED={seed} repeats it)\n", definition.plural);
    let (last, earlier) = requests.split_last().context("a sequence has requests")?;
    for request in earlier {
        writeln!(text, "    {} {}", request.method, request.path)?;
    }
    let body: String = last.body.chars().take(BODY_WIDTH).collect();
    writeln!(text, "  {} {} {}\n    {body}", last.method, last.path, last.content_type)?;
    for difference in found {
        writeln!(text, "  real | ours  {difference}")?;
    }
    Ok(text)
}
