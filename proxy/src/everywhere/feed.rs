//! The part of one member in a merged watch: its current objects, then the events of its own watch, which is opened
//! again when it ends.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_members::Member;
use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::Value;
use tokio::time::Instant;

use super::item::Item;
use super::member::{Collection, MemberPage, Refusal, Start};
use super::member_watch::{Interruption, MemberEvent, MemberWatch, Received};
use crate::Error;
use crate::merged::Heading;
use crate::table::Shape;

/// Delays before a member is requested again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));

/// The part of a member.
pub struct Feed {
    collection: Arc<Collection>,
    pub cluster: ClusterName,
    /// uid of the Cluster: a cluster that joins again has another one.
    pub uid: String,
    progress: Progress,
    /// When the merged watch ends.
    deadline: Instant,
    /// Columns of the member's tables.
    columns: Arc<Vec<Value>>,
}

/// Position of a feed, and the delays of its requests.
struct Progress {
    state: State,
    /// Delays since the last page or event.
    failures: Delays,
    /// Delay before the next request.
    wait: Duration,
}

enum State {
    /// Its current objects are read. The version is that of the first page.
    Listing {
        start: Start,
        version: Option<String>,
    },
    /// Its current version is read without its objects.
    Skipping,
    /// A watch is to be opened from this version.
    Opening(String),
    Watching(MemberWatch),
}

enum MemberRequest {
    /// A page of the current objects, and their version if it is known.
    Page(Start, Option<String>),
    Version,
    Watch(String),
}

/// How a feed begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// With the current objects.
    Objects,
    /// With later changes only.
    Now,
    /// With the changes after a version.
    Version(String),
}

/// Report of a feed.
pub enum Step {
    /// Current objects, and after the last of them the version of all.
    Initial {
        items: Vec<Item>,
        version: Option<String>,
        heading: Heading,
    },
    /// The member's watch is open.
    Opened,
    Events(Vec<MemberEvent>),
    /// The member cannot be read. The next step tries again.
    Refused(Refusal),
    /// The member no longer keeps the changes after the version.
    Expired,
}

impl Feed {
    pub fn new(collection: Arc<Collection>, member: &Member, origin: Origin, deadline: Instant) -> Self {
        let (cluster, uid) = (member.name().clone(), member.uid().to_owned());
        Self { collection, cluster, uid, progress: Progress::new(origin), deadline, columns: Arc::default() }
    }

    /// The next report, with the feed for further ones.
    pub fn step(mut self) -> BoxFuture<'static, (Self, Step)> {
        Box::pin(async move {
            let step = self.next().await;
            (self, step)
        })
    }

    async fn next(&mut self) -> Step {
        let wait = std::mem::take(&mut self.progress.wait);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if let State::Watching(watch) = &mut self.progress.state {
            let received = watch.read(&self.cluster, self.collection.shape, &mut self.columns).await;
            return self.progress.received(&self.cluster, received);
        }
        // The member's connection may have changed.
        let Some(member) = self.collection.proxy.inner.fleet.member(&self.cluster) else {
            let error = Error::ClusterNotFound(self.cluster.to_string());
            return self.progress.refused(Refusal::Failed(Box::new(error)));
        };
        match self.progress.request() {
            MemberRequest::Page(start, version) => self.list(&member, start, version).await,
            MemberRequest::Version => self.skip(&member).await,
            MemberRequest::Watch(version) => self.open(&member, version).await,
        }
    }

    async fn list(&mut self, member: &Arc<Member>, start: Start, version: Option<String>) -> Step {
        let page = self.collection.initial_page(member, start).await;
        let MemberPage { mut items, next, version: current, mut heading, .. } = match page {
            Ok(page) => page,
            Err(refusal) => return self.progress.refused(refusal),
        };
        self.progress.failures.reset();
        if let Some(kind) = heading.kind.strip_suffix("List") {
            heading.kind = kind.to_owned();
        }
        if matches!(self.collection.shape, Shape::Objects(_)) {
            items.iter_mut().for_each(|item| item.set_kind(&heading.api_version, &heading.kind));
        }
        let version = version.unwrap_or(current);
        let version = match next {
            Some(token) => {
                self.progress.state = State::Listing { start: Start::After(token), version: Some(version) };
                None
            }
            None => {
                self.progress.state = State::Opening(version.clone());
                Some(version)
            }
        };
        Step::Initial { items, version, heading }
    }

    async fn skip(&mut self, member: &Arc<Member>) -> Step {
        match self.collection.page(member, Start::Latest, 1).await {
            Ok(page) => {
                self.progress.failures.reset();
                self.progress.state = State::Opening(page.version.clone());
                Step::Initial { items: Vec::new(), version: Some(page.version), heading: Heading::default() }
            }
            Err(refusal) => self.progress.refused(refusal),
        }
    }

    async fn open(&mut self, member: &Arc<Member>, version: String) -> Step {
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        match self.collection.watch(member, version.clone(), timeout).await {
            Ok(body) => {
                self.progress.state = State::Watching(MemberWatch::new(version, body));
                Step::Opened
            }
            Err(refusal) if refusal.status() == Some(StatusCode::GONE) => Step::Expired,
            Err(refusal) => self.progress.refused(refusal),
        }
    }
}

impl Progress {
    fn new(origin: Origin) -> Self {
        let state = match origin {
            Origin::Objects => State::Listing { start: Start::Latest, version: None },
            Origin::Now => State::Skipping,
            Origin::Version(version) => State::Opening(version),
        };
        Self { state, failures: RETRY.delays(), wait: Duration::ZERO }
    }

    /// The request that continues the feed.
    fn request(&self) -> MemberRequest {
        match &self.state {
            State::Listing { start, version } => MemberRequest::Page(start.clone(), version.clone()),
            State::Skipping => MemberRequest::Version,
            State::Opening(version) | State::Watching(MemberWatch { version, .. }) => {
                MemberRequest::Watch(version.clone())
            }
        }
    }

    fn refused(&mut self, refusal: Refusal) -> Step {
        self.wait = self.failures.next_delay();
        Step::Refused(refusal)
    }

    /// Reports events. An interrupted watch is opened again after its last event, where an error is repeated, so errors
    /// after an event are not reported.
    fn received(&mut self, cluster: &ClusterName, Received { events, interruption }: Received) -> Step {
        if !events.is_empty() {
            self.failures.reset();
        }
        let Some(interruption) = interruption else { return Step::Events(events) };
        tracing::debug!(%cluster, reason = %interruption, "a member's watch is opened again");
        if let State::Watching(watch) = &mut self.state {
            self.state = State::Opening(std::mem::take(&mut watch.version));
        }
        match interruption {
            Interruption::Expired if events.is_empty() => Step::Expired,
            Interruption::TooLarge if events.is_empty() => {
                let (cluster, reason) = (cluster.clone(), interruption.to_string());
                self.refused(Refusal::Broken { cluster, reason })
            }
            _ => {
                self.wait = self.failures.next_delay();
                Step::Events(events)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn event(version: &str) -> MemberEvent {
        MemberEvent { kind: "BOOKMARK", item: None, version: version.to_owned() }
    }

    /// The report as text.
    fn shown(step: Step) -> String {
        match step {
            Step::Initial { .. } => "initial".to_owned(),
            Step::Opened => "opened".to_owned(),
            Step::Events(events) => format!("{} events", events.len()),
            Step::Refused(refusal) => refusal.to_string(),
            Step::Expired => "expired".to_owned(),
        }
    }

    /// Watches that are interrupted again and again.
    #[rstest]
    #[case::too_large(0, Interruption::TooLarge, "sent an event larger than 16 MiB", [250, 500])]
    #[case::invalid(0, Interruption::Invalid, "0 events", [250, 500])]
    #[case::ended(0, Interruption::Ended, "0 events", [250, 500])]
    #[case::expired(0, Interruption::Expired, "expired", [0, 0])]
    #[case::too_large_after_an_event(1, Interruption::TooLarge, "1 events", [250, 250])]
    #[case::expired_after_an_event(1, Interruption::Expired, "1 events", [250, 250])]
    fn an_interrupted_watch_is_opened_again(
        #[case] count: usize,
        #[case] interruption: Interruption,
        #[case] report: &str,
        #[case] delays: [u64; 2],
    ) {
        let cluster = ClusterName::parse("m1").unwrap();
        let mut progress = Progress::new(Origin::Now);
        for delay in delays {
            progress.state = State::Watching(MemberWatch::new("7".to_owned(), crate::full("")));
            let events = (0..count).map(|_| event("7")).collect();
            let step = progress.received(&cluster, Received { events, interruption: Some(interruption) });
            assert_eq!((shown(step).as_str(), progress.wait), (report, Duration::from_millis(delay)));
            assert!(matches!(&progress.state, State::Opening(version) if version == "7"));
            assert!(matches!(progress.request(), MemberRequest::Watch(version) if version == "7"));
        }
    }
}
