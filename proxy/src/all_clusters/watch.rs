//! Watches of all members: the events of each member's own watch, with a merged resourceVersion.
//!
//! Members apply the selectors, so an object that leaves the selection is sent as they send it: DELETED in its last
//! matching state with the version of the change. A member that joins adds its objects. The watch ends with 410 Gone if a
//! member leaves, refuses the caller or no longer keeps the changes after the last event, since the client then has
//! objects that no event removes; it ends without an error if a member no longer serves the resource. A member that
//! cannot be reached is watched again from its last event.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_members::{MemberChange, MemberChanges};
use futures::future::{BoxFuture, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use tokio::time::{Instant, Interval};
use tokio_util::sync::CancellationToken;

use super::feed::{Feed, FeedStart, FeedUpdate};
use super::item::Item;
use super::member::{Collection, MemberError};
use super::object::composite_version;
use crate::composite::CompositeVersion;
use crate::fleetwide::warning;
use crate::merged::events::{EventEncoder, INITIAL_EVENTS, append_error, bookmark_interval, next_tick, watch_timeout};
use crate::merged::{Heading, MissingCluster, kind_of};
use crate::native::NativePath;
use crate::object::Form;
use crate::options::ListOptions;
use crate::table::Shape;
use crate::{Body, BodySource, BoxError, Error, Proxy};

/// Versions from which the members are watched.
#[derive(Debug, PartialEq, Eq)]
struct StartPosition {
    /// Versions of the members whose objects the client already has.
    since: CompositeVersion,
    /// True if the current objects of the other members are sent first; false: only their later changes are sent.
    sends_initial: bool,
}

impl StartPosition {
    fn parse(query: &Query) -> Result<Self, Error> {
        let requested = query.get("resourceVersion").unwrap_or_default();
        let wants_initial = query.flag(INITIAL_EVENTS);
        if wants_initial || CompositeVersion::has_no_data(requested) {
            let sends_initial = wants_initial || !query.has(INITIAL_EVENTS);
            return Ok(Self { since: CompositeVersion::default(), sends_initial });
        }
        let mut since = CompositeVersion::decode(requested);
        if !CompositeVersion::is_valid(requested) || since.has_leaving_cluster() {
            return Err(Error::Expired);
        }
        // The client has no objects of members without a version.
        let is_unknown = |cluster: &&str| since.version(cluster).is_none_or(|version| matches!(version, "" | "0"));
        let unknown: Vec<String> = since.clusters().filter(is_unknown).map(str::to_owned).collect();
        unknown.iter().for_each(|cluster| since.remove(cluster));
        Ok(Self { since, sends_initial: true })
    }

    fn feed_start(&self, cluster: &ClusterName) -> FeedStart {
        match self.since.version(cluster.as_str()) {
            Some(version) => FeedStart::AfterVersion(version.to_owned()),
            None if self.sends_initial => FeedStart::CurrentObjects,
            None => FeedStart::NextChange,
        }
    }
}

/// Effect of a member's error on the merged watch.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    /// The member is requested again later.
    Retry,
    /// The watch ends, since the resource is no longer served.
    End,
    /// The watch expires: the client has to list again.
    Expire,
}

impl Effect {
    /// `status` is that of the member's response, if there is one. `is_known` is true if the client has objects of the
    /// member, which would be outdated without further events.
    fn from_status(status: Option<StatusCode>, is_known: bool) -> Self {
        match status {
            Some(status) if is_known && status.is_client_error() => match status {
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Self::End,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Self::Retry,
                _ => Self::Expire,
            },
            _ => Self::Retry,
        }
    }
}

struct MergedWatch {
    collection: Arc<Collection>,
    events: EventEncoder,
    position: CompositeVersion,
    feeds: FuturesUnordered<BoxFuture<'static, (Feed, FeedUpdate)>>,
    /// First update of each member, received before the response began.
    first_updates: VecDeque<(Feed, FeedUpdate)>,
    /// UIDs of the watched members. Updates of other feeds are dropped.
    members: BTreeMap<ClusterName, String>,
    /// Members from which at least one object was sent, although `position` may not include them yet.
    sent_members: BTreeSet<ClusterName>,
    /// Members whose current objects have to be sent before the bookmark that ends the initial events.
    pending: BTreeSet<ClusterName>,
    /// True if the bookmark that ends the initial events has not been sent yet.
    is_initial_bookmark_pending: bool,
    changes: MemberChanges,
    bookmarks: Option<Interval>,
    deadline: Instant,
    stopping: CancellationToken,
    has_ended: bool,
}

impl Proxy {
    pub(super) async fn watch_all_clusters(
        &self,
        native: &NativePath,
        query: &Query,
        collection: Collection,
    ) -> Result<Response<Body>, Error> {
        ListOptions::parse(query, true, true)?;
        let start_position = StartPosition::parse(query)?;
        // Subscribed first, so that no member that joins meanwhile is missed.
        let changes = self.inner.fleet.changes();
        let members = self.members_of(&collection.caller);
        let is_member = |cluster: &str| members.iter().any(|member| member.name().as_str() == cluster);
        if !start_position.since.clusters().all(is_member) {
            return Err(Error::Expired);
        }
        let (shape, collection) = (collection.shape, Arc::new(collection));
        let deadline = Instant::now() + watch_timeout(query);
        let feeds = members.iter().map(|member| {
            let start = start_position.feed_start(member.name());
            Feed::new(Arc::clone(&collection), member, start, deadline).into_next()
        });
        let first_updates = join_all(feeds.collect::<Vec<_>>()).await;
        let (first_updates, warnings) = match decide_start(first_updates, &start_position.since)? {
            WatchStart::Watch(first_updates, warnings) => (first_updates, warnings),
            WatchStart::Refused(response) => return Ok(response),
        };
        let bookmarks = bookmark_interval(query);
        let names = members.iter().map(|member| member.name().clone());
        let kind = kind_of(&self.inner.cache, &native.resource, names).unwrap_or_default();
        let heading = Heading { api_version: native.resource.api_version(), kind, columns: None };
        let watch = MergedWatch {
            events: EventEncoder::new(shape, heading),
            pending: members.iter().map(|member| member.name().clone()).collect(),
            members: members.iter().map(|member| (member.name().clone(), member.uid().to_owned())).collect(),
            is_initial_bookmark_pending: query.flag(INITIAL_EVENTS) && bookmarks.is_some(),
            position: start_position.since,
            feeds: FuturesUnordered::new(),
            sent_members: BTreeSet::new(),
            stopping: self.inner.stopping.clone(),
            has_ended: false,
            collection,
            first_updates,
            changes,
            bookmarks,
            deadline,
        };
        let mut response = Response::new(watch.into_body());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for text in warnings {
            headers.append(header::WARNING, text);
        }
        Ok(response)
    }
}

/// The response to the request for a watch.
enum WatchStart {
    /// The feeds with their first updates, and warnings for members that cannot be watched.
    Watch(VecDeque<(Feed, FeedUpdate)>, Vec<HeaderValue>),
    /// No member can be watched.
    Refused(Response<Body>),
}

/// Decides by the first update of each member whether the watch begins.
fn decide_start(first_updates: Vec<(Feed, FeedUpdate)>, since: &CompositeVersion) -> Result<WatchStart, Error> {
    let (mut is_expired, mut is_open, mut warnings) = (false, first_updates.is_empty(), Vec::new());
    for (feed, update) in &first_updates {
        match update {
            FeedUpdate::Expired => return Err(Error::Expired),
            FeedUpdate::Failed(error) => {
                let is_known = since.includes(feed.cluster.as_str());
                is_expired |= Effect::from_status(error.status(), is_known) != Effect::Retry;
                let missing = MissingCluster { cluster: feed.cluster.clone(), reason: error.to_string() };
                warnings.push(warning(&missing.warning_text()));
            }
            _ => is_open = true,
        }
    }
    if !is_open {
        let error = first_updates.into_iter().find_map(|(_, update)| match update {
            FeedUpdate::Failed(error) => Some(error),
            _ => None,
        });
        return error.map_or(Err(Error::Expired), MemberError::into_response).map(WatchStart::Refused);
    }
    if is_expired {
        return Err(Error::Expired);
    }
    Ok(WatchStart::Watch(first_updates.into(), warnings))
}

impl BodySource for MergedWatch {
    /// The next events; `None` when the watch has ended.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        let mut out = Vec::new();
        while out.is_empty() && !self.has_ended {
            if let Some((feed, update)) = self.first_updates.pop_front() {
                self.handle_update(feed, update, &mut out)?;
                continue;
            }
            if self.is_initial_bookmark_pending && self.pending.is_empty() {
                self.is_initial_bookmark_pending = false;
                self.append_bookmark(true, &mut out)?;
                continue;
            }
            tokio::select! {
                Some((feed, update)) = self.feeds.next() => self.handle_update(feed, update, &mut out)?,
                change = self.changes.next() => match change {
                    Some(change) => self.handle_member_change(&change, &mut out),
                    None => self.has_ended = true,
                },
                () = next_tick(&mut self.bookmarks) => self.append_bookmark(false, &mut out)?,
                () = tokio::time::sleep_until(self.deadline) => self.has_ended = true,
                () = self.stopping.cancelled() => self.has_ended = true,
            }
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl MergedWatch {
    /// Sends the events of an update, and requests the next update of the member.
    fn handle_update(&mut self, feed: Feed, update: FeedUpdate, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.members.get(&feed.cluster) != Some(&feed.uid) {
            return Ok(());
        }
        let cluster = feed.cluster.clone();
        match update {
            FeedUpdate::Initial { items, version, heading } => {
                self.append_initial(&cluster, &items, version, heading, out)?
            }
            FeedUpdate::Opened => drop(self.pending.remove(&cluster)),
            FeedUpdate::Events(events) => {
                for event in events {
                    self.position.set(cluster.as_str(), &event.version, None);
                    if let Some(item) = event.item {
                        let version = self.position.encode();
                        self.append_item(event.kind, &item, &version, out)?;
                    }
                }
            }
            FeedUpdate::Failed(error) => {
                self.pending.remove(&cluster);
                match Effect::from_status(error.status(), self.is_known(&cluster)) {
                    Effect::Retry => tracing::debug!(%cluster, %error, "cannot watch a member; retrying"),
                    Effect::End => self.has_ended = true,
                    Effect::Expire => self.expire(out),
                }
            }
            FeedUpdate::Expired => self.expire(out),
        }
        if !self.has_ended {
            self.feeds.push(feed.into_next());
        }
        Ok(())
    }

    fn append_initial(
        &mut self,
        cluster: &ClusterName,
        items: &[Item],
        version: Option<String>,
        heading: Heading,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let merged_heading = &mut self.events.heading;
        if merged_heading.kind.is_empty() {
            merged_heading.kind = heading.kind;
        }
        if merged_heading.columns.is_none() {
            merged_heading.columns = heading.columns;
        }
        if !items.is_empty() {
            self.sent_members.insert(cluster.clone());
        }
        // A client of a streaming list resumes only after the bookmark, so each object has its version in a list.
        // Any other client may resume from any event, so each event has the version of the watch.
        let position = self.position.encode();
        for item in items {
            let item_version = item
                .own_version()
                .filter(|_| self.is_initial_bookmark_pending)
                .map(|item_version| composite_version(cluster, &item_version));
            self.append_item("ADDED", item, item_version.as_deref().unwrap_or(&position), out)?;
        }
        if let Some(version) = version {
            self.position.set(cluster.as_str(), &version, None);
            self.pending.remove(cluster);
        }
        Ok(())
    }

    /// True if the client may have objects of a member.
    fn is_known(&self, cluster: &ClusterName) -> bool {
        self.position.includes(cluster.as_str()) || self.sent_members.contains(cluster)
    }

    fn handle_member_change(&mut self, change: &MemberChange, out: &mut Vec<u8>) {
        let member = change.member();
        let is_same = self.members.get(member.name()).is_some_and(|uid| uid == member.uid());
        let has_left = matches!(change, MemberChange::Left(_));
        if !is_same || has_left {
            self.remove_member(member.name(), out);
        }
        let Collection { proxy, caller, .. } = &*self.collection;
        if is_same || has_left || self.has_ended || !proxy.inner.cache.searcher().rules_apply_in(caller, member.name())
        {
            return;
        }
        self.members.insert(member.name().clone(), member.uid().to_owned());
        let feed = Feed::new(Arc::clone(&self.collection), member, FeedStart::CurrentObjects, self.deadline);
        self.feeds.push(feed.into_next());
    }

    fn remove_member(&mut self, cluster: &ClusterName, out: &mut Vec<u8>) {
        self.pending.remove(cluster);
        if self.members.remove(cluster).is_some() && self.is_known(cluster) {
            self.expire(out);
        }
    }

    /// Ends the watch with 410 Gone, so that the client lists again.
    fn expire(&mut self, out: &mut Vec<u8>) {
        append_error(&Error::Expired, out);
        self.has_ended = true;
    }

    fn append_item(&mut self, event_type: &str, item: &Item, version: &str, out: &mut Vec<u8>) -> Result<(), Error> {
        let body = item.encode(self.events.shape, &mut self.events.heading, Some(version))?;
        self.events.append(event_type, &body, version, out);
        Ok(())
    }

    /// Appends a bookmark with the watch's position, unless the kind of the resource is not known yet.
    fn append_bookmark(&mut self, ends_initial: bool, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let needs_kind = self.events.shape == Shape::Objects(Form::Full) && !ends_initial;
        if needs_kind && self.events.heading.kind.is_empty() {
            return Ok(());
        }
        self.events.append_bookmark(&self.position.encode(), ends_initial, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// `{"m1":"5"}`, `{"m1":"5.7.cache","m2":"0"}` and `{"m1":"leaving"}`.
    const M1: &str = "eyJtMSI6IjUifQ";
    const OF_THE_CACHE: &str = "eyJtMSI6IjUuNy5jYWNoZSIsIm0yIjoiMCJ9";
    const LEAVING: &str = "eyJtMSI6ImxlYXZpbmcifQ";

    #[rstest]
    #[case::any("", [Some(FeedStart::CurrentObjects), Some(FeedStart::CurrentObjects)])]
    #[case::zero("resourceVersion=0", [Some(FeedStart::CurrentObjects), Some(FeedStart::CurrentObjects)])]
    #[case::later("sendInitialEvents=false", [Some(FeedStart::NextChange), Some(FeedStart::NextChange)])]
    #[case::initial("sendInitialEvents=true", [Some(FeedStart::CurrentObjects), Some(FeedStart::CurrentObjects)])]
    #[case::initial_of_a_version(
        &format!("sendInitialEvents=true&resourceVersion={M1}"), [Some(FeedStart::CurrentObjects), Some(FeedStart::CurrentObjects)]
    )]
    #[case::version(&format!("resourceVersion={M1}"), [Some(FeedStart::AfterVersion("5".into())), Some(FeedStart::CurrentObjects)])]
    #[case::version_of_the_cache(
        &format!("resourceVersion={OF_THE_CACHE}"), [Some(FeedStart::AfterVersion("5".into())), Some(FeedStart::CurrentObjects)]
    )]
    #[case::no_version("resourceVersion=7", [None, None])]
    #[case::leaving(&format!("resourceVersion={LEAVING}"), [None, None])]
    fn feeds_start_at_the_requested_version(#[case] query: &str, #[case] expected: [Option<FeedStart>; 2]) {
        let start_position = StartPosition::parse(&Query::parse(Some(query))).ok();
        let start = |name| Some(start_position.as_ref()?.feed_start(&ClusterName::parse(name).unwrap()));
        assert_eq!(["m1", "m2"].map(start), expected);
    }

    #[rstest]
    #[case::unreachable(None, true, Effect::Retry)]
    #[case::failing(Some(503), true, Effect::Retry)]
    #[case::busy(Some(429), true, Effect::Retry)]
    #[case::not_served(Some(404), true, Effect::End)]
    #[case::not_watchable(Some(405), true, Effect::End)]
    #[case::forbidden(Some(403), true, Effect::Expire)]
    #[case::forbidden_from_the_start(Some(403), false, Effect::Retry)]
    #[case::not_served_from_the_start(Some(404), false, Effect::Retry)]
    fn errors_of_a_member_retry_end_or_expire_the_watch(
        #[case] status: Option<u16>,
        #[case] is_known: bool,
        #[case] expected: Effect,
    ) {
        let status = status.map(|status| StatusCode::from_u16(status).unwrap());
        assert_eq!(Effect::from_status(status, is_known), expected);
    }
}
