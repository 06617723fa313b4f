//! One member's part of a merged watch: its current objects, then the events of its own watch, which is opened again when
//! it ends.

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
use super::member::{Collection, MemberError, MemberPage, PageStart};
use super::member_watch::{Interruption, MemberEvent, MemberWatch, ReceivedEvents};
use crate::Error;
use crate::merged::Heading;
use crate::table::Shape;

/// Delay before the next request to a member after a failure.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));

/// One member's part of a merged watch.
pub struct Feed {
    collection: Arc<Collection>,
    pub cluster: ClusterName,
    /// UID of the Cluster object. A cluster that joins again has another one.
    pub uid: String,
    progress: Progress,
    /// Time at which the merged watch ends.
    deadline: Instant,
    /// Columns of the member's tables.
    columns: Arc<Vec<Value>>,
}

/// Progress of a feed, and the delays between its requests.
struct Progress {
    state: State,
    /// Backoff since the last page or event.
    backoff: Delays,
    /// Delay before the next request.
    delay: Duration,
}

enum State {
    /// The current objects are read page by page. `version` is that of the first page; None before it is read.
    Listing {
        start: PageStart,
        version: Option<String>,
    },
    /// The current version is read without the objects.
    ReadingVersion,
    /// A watch is opened from this version.
    OpeningWatch(String),
    Watching(MemberWatch),
}

/// The next request to the member.
enum MemberRequest {
    /// A page of the current objects, and the version of the first page if it is known.
    Page(PageStart, Option<String>),
    Version,
    Watch(String),
}

/// First data of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedStart {
    /// The current objects.
    CurrentObjects,
    /// The changes from now on.
    NextChange,
    /// The changes after this version.
    AfterVersion(String),
}

/// New data or state of a feed.
pub enum FeedUpdate {
    /// Current objects. `version` is set with the last of them.
    Initial {
        items: Vec<Item>,
        version: Option<String>,
        heading: Heading,
    },
    /// The member's watch is open.
    Opened,
    Events(Vec<MemberEvent>),
    /// The member cannot be read. The next update is the result of another attempt.
    Failed(MemberError),
    /// The member no longer keeps the changes after the version.
    Expired,
}

impl Feed {
    pub fn new(collection: Arc<Collection>, member: &Member, start: FeedStart, deadline: Instant) -> Self {
        let (cluster, uid) = (member.name().clone(), member.uid().to_owned());
        Self { collection, cluster, uid, progress: Progress::new(start), deadline, columns: Arc::default() }
    }

    /// Returns the next update, and the feed for further ones.
    pub fn into_next(mut self) -> BoxFuture<'static, (Self, FeedUpdate)> {
        Box::pin(async move {
            let update = self.next().await;
            (self, update)
        })
    }

    async fn next(&mut self) -> FeedUpdate {
        let delay = std::mem::take(&mut self.progress.delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if let State::Watching(watch) = &mut self.progress.state {
            let received = watch.read(&self.cluster, self.collection.shape, &mut self.columns).await;
            return self.progress.handle_events(&self.cluster, received);
        }
        // Looked up for each request, because the member's connection may have changed.
        let Some(member) = self.collection.proxy.inner.fleet.member(&self.cluster) else {
            let error = Error::ClusterNotFound(self.cluster.to_string());
            return self.progress.fail(MemberError::NoResponse(Box::new(error)));
        };
        match self.progress.next_request() {
            MemberRequest::Page(start, version) => self.read_page(&member, start, version).await,
            MemberRequest::Version => self.read_version(&member).await,
            MemberRequest::Watch(version) => self.open_watch(&member, version).await,
        }
    }

    async fn read_page(&mut self, member: &Arc<Member>, start: PageStart, version: Option<String>) -> FeedUpdate {
        let page = self.collection.read_initial_page(member, start).await;
        let MemberPage { mut items, next, version: current, mut heading, .. } = match page {
            Ok(page) => page,
            Err(error) => return self.progress.fail(error),
        };
        self.progress.backoff.reset();
        if let Some(kind) = heading.kind.strip_suffix("List") {
            heading.kind = kind.to_owned();
        }
        if matches!(self.collection.shape, Shape::Objects(_)) {
            items.iter_mut().for_each(|item| item.set_kind(&heading.api_version, &heading.kind));
        }
        let version = version.unwrap_or(current);
        let version = match next {
            Some(token) => {
                self.progress.state = State::Listing { start: PageStart::After(token), version: Some(version) };
                None
            }
            None => {
                self.progress.state = State::OpeningWatch(version.clone());
                Some(version)
            }
        };
        FeedUpdate::Initial { items, version, heading }
    }

    async fn read_version(&mut self, member: &Arc<Member>) -> FeedUpdate {
        match self.collection.read_page(member, PageStart::Latest, 1).await {
            Ok(page) => {
                self.progress.backoff.reset();
                self.progress.state = State::OpeningWatch(page.version.clone());
                FeedUpdate::Initial { items: Vec::new(), version: Some(page.version), heading: Heading::default() }
            }
            Err(error) => self.progress.fail(error),
        }
    }

    async fn open_watch(&mut self, member: &Arc<Member>, version: String) -> FeedUpdate {
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        match self.collection.open_watch(member, version.clone(), timeout).await {
            Ok(body) => {
                self.progress.state = State::Watching(MemberWatch::new(version, body));
                FeedUpdate::Opened
            }
            Err(error) if error.status() == Some(StatusCode::GONE) => FeedUpdate::Expired,
            Err(error) => self.progress.fail(error),
        }
    }
}

impl Progress {
    fn new(start: FeedStart) -> Self {
        let state = match start {
            FeedStart::CurrentObjects => State::Listing { start: PageStart::Latest, version: None },
            FeedStart::NextChange => State::ReadingVersion,
            FeedStart::AfterVersion(version) => State::OpeningWatch(version),
        };
        Self { state, backoff: RETRY_BACKOFF.delays(), delay: Duration::ZERO }
    }

    /// The request that continues the feed.
    fn next_request(&self) -> MemberRequest {
        match &self.state {
            State::Listing { start, version } => MemberRequest::Page(start.clone(), version.clone()),
            State::ReadingVersion => MemberRequest::Version,
            State::OpeningWatch(version) | State::Watching(MemberWatch { version, .. }) => {
                MemberRequest::Watch(version.clone())
            }
        }
    }

    /// Reports an error and delays the next request.
    fn fail(&mut self, error: MemberError) -> FeedUpdate {
        self.delay = self.backoff.next_delay();
        FeedUpdate::Failed(error)
    }

    /// Reports events. An interrupted watch is opened again from its last event. An error that follows an event is not
    /// reported: the new watch returns it again.
    fn handle_events(&mut self, cluster: &ClusterName, received: ReceivedEvents) -> FeedUpdate {
        let ReceivedEvents { events, interruption } = received;
        if !events.is_empty() {
            self.backoff.reset();
        }
        let Some(interruption) = interruption else { return FeedUpdate::Events(events) };
        tracing::debug!(%cluster, reason = %interruption, "a member's watch is opened again");
        if let State::Watching(watch) = &mut self.state {
            self.state = State::OpeningWatch(std::mem::take(&mut watch.version));
        }
        match interruption {
            Interruption::Expired if events.is_empty() => FeedUpdate::Expired,
            Interruption::TooLarge if events.is_empty() => {
                let (cluster, reason) = (cluster.clone(), interruption.to_string());
                self.fail(MemberError::InvalidResponse { cluster, reason })
            }
            _ => {
                self.delay = self.backoff.next_delay();
                FeedUpdate::Events(events)
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

    fn describe(update: FeedUpdate) -> String {
        match update {
            FeedUpdate::Initial { .. } => "initial".to_owned(),
            FeedUpdate::Opened => "opened".to_owned(),
            FeedUpdate::Events(events) => format!("{} events", events.len()),
            FeedUpdate::Failed(error) => error.to_string(),
            FeedUpdate::Expired => "expired".to_owned(),
        }
    }

    /// Watches that are interrupted again and again.
    #[rstest]
    #[case::too_large(0, Interruption::TooLarge, "sent an event larger than 16 MiB", [250, 500])]
    #[case::invalid(0, Interruption::Invalid, "0 events", [250, 500])]
    #[case::ended(0, Interruption::Ended, "0 events", [250, 500])]
    #[case::disconnected(0, Interruption::Disconnected { error: "reset".into() }, "0 events", [250, 500])]
    #[case::expired(0, Interruption::Expired, "expired", [0, 0])]
    #[case::too_large_after_an_event(1, Interruption::TooLarge, "1 events", [250, 250])]
    #[case::expired_after_an_event(1, Interruption::Expired, "1 events", [250, 250])]
    fn an_interrupted_watch_is_opened_again(
        #[case] count: usize,
        #[case] interruption: Interruption,
        #[case] expected: &str,
        #[case] delays_ms: [u64; 2],
    ) {
        let cluster = ClusterName::parse("m1").unwrap();
        let mut progress = Progress::new(FeedStart::NextChange);
        for delay in delays_ms {
            progress.state = State::Watching(MemberWatch::new("7".to_owned(), crate::full("")));
            let events = (0..count).map(|_| event("7")).collect();
            let received = ReceivedEvents { events, interruption: Some(interruption.clone()) };
            let update = progress.handle_events(&cluster, received);
            assert_eq!((describe(update).as_str(), progress.delay), (expected, Duration::from_millis(delay)));
            assert!(matches!(&progress.state, State::OpeningWatch(version) if version == "7"));
            assert!(matches!(progress.next_request(), MemberRequest::Watch(version) if version == "7"));
        }
    }
}
