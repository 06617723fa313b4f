//! Sends a batch of changes until each one is written, superseded or refused.

use super::WriterError;
use crate::opensearch::bulk::{
    self, BulkLimits, DocumentChange, Marker, Outcome, RequestFailure, build, classify_failure,
};
use crate::opensearch::client::{Client, ClientError, ErrorResponse, Request};
use futures::{StreamExt, stream};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum number of consecutive rounds in which the engine accepts nothing; then the index is checked again.
const MAX_IDLE_ROUNDS: u32 = 4;

/// Result of one round, in which each request was sent once.
#[derive(Debug, Default)]
pub struct Round {
    /// Time until all responses had arrived.
    pub duration: Duration,
    /// Ids of documents that the engine accepted.
    pub written: Vec<String>,
    pub superseded: u64,
    pub poisoned: Vec<(DocumentChange, ErrorResponse)>,
    /// To be sent again.
    pub pending: Vec<DocumentChange>,
    /// Reason why changes are pending; the first one if there are several.
    pub reason: Option<String>,
    /// Set if the index has to be checked before anything else is sent.
    pub unavailable: Option<WriterError>,
}

/// Sends changes to one alias.
pub struct Sender<'a> {
    pub client: &'a Client,
    pub alias: &'a str,
    pub marker: &'a Marker,
    pub limits: BulkLimits,
    /// Maximum number of concurrent requests.
    pub max_concurrent_requests: usize,
}

/// The last change of each document, in the order of their sequence numbers.
fn keep_last_changes(changes: Vec<DocumentChange>) -> Vec<DocumentChange> {
    let last: HashMap<String, u64> = changes.iter().map(|change| (change.id.clone(), change.seq)).collect();
    changes.into_iter().filter(|change| last.get(&change.id) == Some(&change.seq)).collect()
}

/// Observes a delivery: records its results and determines the delay between attempts.
pub trait DeliveryObserver: Sync {
    fn record_round(&self, round: &Round);
    /// Reports that the engine accepts nothing at the moment.
    fn report_waiting(&self, reason: &str);
    /// Delay before the next attempt after a number of consecutive failures.
    fn retry_delay(&self, failures: u32) -> Duration;
}

impl Sender<'_> {
    /// Sends changes until the engine has accepted or refused each; of several changes of a document only the last. `failures`
    /// counts rounds without success. Fails if the index has to be checked first.
    pub async fn deliver(
        &self,
        changes: Vec<DocumentChange>,
        failures: &mut u32,
        observer: &impl DeliveryObserver,
    ) -> Result<(), WriterError> {
        let mut pending = keep_last_changes(changes);
        let mut idle_rounds = 0;
        while !pending.is_empty() {
            let before = pending.len();
            let started_at = Instant::now();
            let mut round = self.send_round(pending).await;
            round.duration = started_at.elapsed();
            observer.record_round(&round);
            if let Some(error) = round.unavailable {
                return Err(error);
            }
            pending = round.pending;
            let Some(reason) = round.reason else { continue };
            (idle_rounds, *failures) = if pending.len() < before { (0, 0) } else { (idle_rounds + 1, *failures) };
            if idle_rounds == MAX_IDLE_ROUNDS {
                return Err(WriterError::NothingAccepted(reason));
            }
            observer.report_waiting(&reason);
            let pause = observer.retry_delay(*failures);
            *failures += 1;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Sends changes of different documents.
    async fn send_round(&self, changes: Vec<DocumentChange>) -> Round {
        let mut round = Round::default();
        let mut parts = Vec::new();
        let mut valid = Vec::with_capacity(changes.len());
        for change in changes {
            match bulk::check(&change) {
                Ok(()) => valid.push(change),
                Err(refused) => {
                    let error_response =
                        ErrorResponse { status: 400, kind: String::new(), reason: refused.to_string() };
                    round.poisoned.push((change, error_response));
                }
            }
        }
        while !valid.is_empty() {
            let built = build(self.marker, &valid, self.limits);
            let rest = valid.split_off(built.items);
            parts.push((built.body, std::mem::replace(&mut valid, rest)));
        }
        let sent = stream::iter(parts)
            .map(|(body, part)| self.send_request(body, part))
            .buffer_unordered(self.max_concurrent_requests.max(1));
        sent.fold(round, |mut all, part| {
            all.merge(part);
            futures::future::ready(all)
        })
        .await
    }

    /// Sends one request. If it fails completely, its halves are sent.
    async fn send_request(&self, body: Vec<u8>, changes: Vec<DocumentChange>) -> Round {
        let mut round = Round::default();
        let mut requests = vec![(body, changes.as_slice())];
        while let Some((body, changes)) = requests.pop() {
            let sent = self.client.send(&Request::new(http::Method::POST, bulk::path(self.alias)).lines(body)).await;
            match sent.and_then(|response| bulk::parse_response(&response.body, self.marker, changes)) {
                Ok(response) if response.replaced => {
                    round.retry_later(changes, "the alias points at another index".to_owned());
                    round.unavailable.get_or_insert(WriterError::Replaced);
                }
                Ok(response) => round.add_outcomes(changes, response.outcomes),
                Err(error) => match classify_failure(&error, changes.len()) {
                    RequestFailure::Retry => round.retry_later(changes, error.chain()),
                    RequestFailure::Halve => {
                        let unlimited = BulkLimits { bytes: usize::MAX, items: usize::MAX };
                        let (first, second) = changes.split_at(changes.len() / 2);
                        // The earlier half is sent first.
                        for half in [second, first] {
                            requests.push((build(self.marker, half, unlimited).body, half));
                        }
                    }
                    RequestFailure::Poisoned => round.reject(changes, &error),
                    RequestFailure::Unavailable => {
                        round.retry_later(changes, error.chain());
                        round.unavailable.get_or_insert(error.into());
                    }
                },
            }
            if round.unavailable.is_some() {
                for (_, unsent) in requests.drain(..) {
                    round.pending.extend_from_slice(unsent);
                }
            }
        }
        round
    }
}

impl Round {
    fn merge(&mut self, other: Self) {
        self.written.extend(other.written);
        self.superseded += other.superseded;
        self.poisoned.extend(other.poisoned);
        self.pending.extend(other.pending);
        self.reason = self.reason.take().or(other.reason);
        self.unavailable = self.unavailable.take().or(other.unavailable);
    }

    fn retry_later(&mut self, changes: &[DocumentChange], reason: String) {
        self.pending.extend_from_slice(changes);
        self.reason.get_or_insert(reason);
    }

    fn reject(&mut self, changes: &[DocumentChange], error: &ClientError) {
        let error_response = error.error_response().cloned().unwrap_or_else(|| ErrorResponse {
            status: 0,
            kind: String::new(),
            reason: error.to_string(),
        });
        self.poisoned.extend(changes.iter().map(|change| (change.clone(), error_response.clone())));
    }

    fn add_outcomes(&mut self, changes: &[DocumentChange], outcomes: Vec<Outcome>) {
        for (change, outcome) in changes.iter().zip(outcomes) {
            match outcome {
                Outcome::Written => self.written.push(change.id.clone()),
                Outcome::Superseded => self.superseded += 1,
                Outcome::Poisoned(error_response) => self.poisoned.push((change.clone(), error_response)),
                Outcome::Retry(error_response) => {
                    self.retry_later(std::slice::from_ref(change), error_response.to_string())
                }
                Outcome::Missing => {
                    self.retry_later(std::slice::from_ref(change), "the response omits a document".to_owned());
                }
                Outcome::Unavailable(error_response) => {
                    self.retry_later(std::slice::from_ref(change), error_response.to_string());
                    self.unavailable.get_or_insert(WriterError::Index(error_response));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_change_of_a_document_is_sent() {
        let change = |id: &str, seq| DocumentChange { seq, id: id.to_owned(), document: None };
        let changes = vec![change("a", 1), change("b", 2), change("a", 3), change("c", 4), change("b", 5)];
        assert_eq!(keep_last_changes(changes), [change("a", 3), change("c", 4), change("b", 5)]);
    }
}
