//! Sends a batch of changes until each one is written, superseded or refused.

use super::WriterError;
use crate::opensearch::bulk::{self, BulkLimits, DocumentChange, Marker, Outcome, WholeFailure, build, whole_failure};
use crate::opensearch::client::{Client, ClientError, Fault, Request};
use futures::{StreamExt, stream};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Rounds in a row in which the engine takes nothing, before the index is checked again.
const ROUNDS: u32 = 4;

/// One round over changes, each request of which was sent once.
#[derive(Debug, Default)]
pub struct Round {
    /// Time until all answers were there.
    pub took: Duration,
    /// Ids the engine took.
    pub written: Vec<String>,
    pub superseded: u64,
    pub poisoned: Vec<(DocumentChange, Fault)>,
    /// To be sent again.
    pub pending: Vec<DocumentChange>,
    /// Why there are pending ones.
    pub reason: Option<String>,
    /// The index has to be checked before anything else is sent.
    pub unavailable: Option<WriterError>,
}

pub struct Sender<'a> {
    pub client: &'a Client,
    pub alias: &'a str,
    pub marker: &'a Marker,
    pub limits: BulkLimits,
    /// Requests at the same time.
    pub at_once: usize,
}

/// The last change of each document, in the order of their sequence numbers.
fn last_of_each(changes: Vec<DocumentChange>) -> Vec<DocumentChange> {
    let last: HashMap<String, u64> = changes.iter().map(|change| (change.id.clone(), change.seq)).collect();
    changes.into_iter().filter(|change| last.get(&change.id) == Some(&change.seq)).collect()
}

/// Owner of a delivery: counts the writes and determines the delay between attempts.
pub trait Account: Sync {
    fn count(&self, round: &Round);
    /// The engine takes nothing at the moment.
    fn waits(&self, reason: &str);
    /// Pause after a number of failures in a row.
    fn pause(&self, failures: u32) -> Duration;
}

impl Sender<'_> {
    /// Sends changes until the engine has taken or refused each; of several changes of a document only the last. `failures`
    /// counts rounds without success. Fails if the index has to be checked first.
    pub async fn deliver(
        &self,
        changes: Vec<DocumentChange>,
        failures: &mut u32,
        account: &impl Account,
    ) -> Result<(), WriterError> {
        let mut pending = last_of_each(changes);
        let mut idle = 0;
        while !pending.is_empty() {
            let before = pending.len();
            let began = Instant::now();
            let mut round = self.round(pending).await;
            round.took = began.elapsed();
            account.count(&round);
            if let Some(error) = round.unavailable {
                return Err(error);
            }
            pending = round.pending;
            let Some(reason) = round.reason else { continue };
            (idle, *failures) = if pending.len() < before { (0, 0) } else { (idle + 1, *failures) };
            if idle == ROUNDS {
                return Err(WriterError::NothingTaken(reason));
            }
            account.waits(&reason);
            let pause = account.pause(*failures);
            *failures += 1;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Sends changes of different documents.
    async fn round(&self, changes: Vec<DocumentChange>) -> Round {
        let mut round = Round::default();
        let mut parts = Vec::new();
        let mut good = Vec::with_capacity(changes.len());
        for change in changes {
            match bulk::check(&change) {
                Ok(()) => good.push(change),
                Err(refused) => {
                    let fault = Fault { status: 400, kind: String::new(), reason: refused.to_string() };
                    round.poisoned.push((change, fault));
                }
            }
        }
        while !good.is_empty() {
            let built = build(self.marker, &good, self.limits);
            let rest = good.split_off(built.items);
            parts.push((built.body, std::mem::replace(&mut good, rest)));
        }
        let sent = stream::iter(parts).map(|(body, part)| self.part(body, part)).buffer_unordered(self.at_once.max(1));
        sent.fold(round, |mut all, part| {
            all.add(part);
            futures::future::ready(all)
        })
        .await
    }

    /// Sends one request. If it fails as a whole, its halves are sent.
    async fn part(&self, body: Vec<u8>, changes: Vec<DocumentChange>) -> Round {
        let mut round = Round::default();
        let mut requests = vec![(body, changes.as_slice())];
        while let Some((body, changes)) = requests.pop() {
            let sent = self.client.send(&Request::new(http::Method::POST, bulk::path(self.alias)).lines(body)).await;
            match sent.and_then(|answer| bulk::read(&answer.body, self.marker, changes)) {
                Ok(answer) if answer.replaced => {
                    round.keep(changes, "another index stands behind the alias".to_owned());
                    round.unavailable.get_or_insert(WriterError::Replaced);
                }
                Ok(answer) => round.take(changes, answer.outcomes),
                Err(error) => match whole_failure(&error, changes.len()) {
                    WholeFailure::Retry => round.keep(changes, error.chain()),
                    WholeFailure::Halve => {
                        let whole = BulkLimits { bytes: usize::MAX, items: usize::MAX };
                        let (first, second) = changes.split_at(changes.len() / 2);
                        // The earlier half is sent first.
                        for half in [second, first] {
                            requests.push((build(self.marker, half, whole).body, half));
                        }
                    }
                    WholeFailure::Poisoned => round.poison(changes, &error),
                    WholeFailure::Unavailable => {
                        round.keep(changes, error.chain());
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
    fn add(&mut self, other: Self) {
        self.written.extend(other.written);
        self.superseded += other.superseded;
        self.poisoned.extend(other.poisoned);
        self.pending.extend(other.pending);
        self.reason = self.reason.take().or(other.reason);
        self.unavailable = self.unavailable.take().or(other.unavailable);
    }

    fn keep(&mut self, changes: &[DocumentChange], reason: String) {
        self.pending.extend_from_slice(changes);
        self.reason.get_or_insert(reason);
    }

    fn poison(&mut self, changes: &[DocumentChange], error: &ClientError) {
        let fault = error.fault().cloned().unwrap_or_else(|| Fault {
            status: 0,
            kind: String::new(),
            reason: error.to_string(),
        });
        self.poisoned.extend(changes.iter().map(|change| (change.clone(), fault.clone())));
    }

    fn take(&mut self, changes: &[DocumentChange], outcomes: Vec<Outcome>) {
        for (change, outcome) in changes.iter().zip(outcomes) {
            match outcome {
                Outcome::Written => self.written.push(change.id.clone()),
                Outcome::Superseded => self.superseded += 1,
                Outcome::Poisoned(fault) => self.poisoned.push((change.clone(), fault)),
                Outcome::Retry(fault) => self.keep(std::slice::from_ref(change), fault.to_string()),
                Outcome::Missing => {
                    self.keep(std::slice::from_ref(change), "the answer leaves out a document".to_owned());
                }
                Outcome::Unavailable(fault) => {
                    self.keep(std::slice::from_ref(change), fault.to_string());
                    self.unavailable.get_or_insert(WriterError::Index(fault));
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
        assert_eq!(last_of_each(changes), [change("a", 3), change("c", 4), change("b", 5)]);
    }
}
