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
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tokio::time::{Instant, Interval};
use tokio_util::sync::CancellationToken;

use super::feed::{Feed, Origin, Step};
use super::item::Item;
use super::member::{Collection, Refusal};
use super::object::composite_version;
use crate::composite::CompositeVersion;
use crate::fleetwide::warning;
use crate::merged::events::{Events, INITIAL_EVENTS, append_error, bookmarks, tick, timeout};
use crate::merged::{Heading, MissingCluster, kind_of};
use crate::native::NativePath;
use crate::object::Form;
use crate::options::ListOptions;
use crate::table::{Content, Shape};
use crate::{Body, BoxError, Caller, Error, Pieces, Proxy};

/// Start of a watch.
#[derive(Debug, PartialEq, Eq)]
struct Beginning {
    /// Versions of the members that the client knows.
    since: CompositeVersion,
    /// False: members without a version begin with their next change.
    sends_initial: bool,
}

impl Beginning {
    fn of(query: &Query) -> Result<Self, Error> {
        let requested = query.get("resourceVersion").unwrap_or_default();
        let wants_initial = query.flag(INITIAL_EVENTS);
        if wants_initial || CompositeVersion::knows_nothing(requested) {
            let sends_initial = wants_initial || !query.has(INITIAL_EVENTS);
            return Ok(Self { since: CompositeVersion::default(), sends_initial });
        }
        let mut since = CompositeVersion::decode(requested);
        if !CompositeVersion::is_valid(requested) || since.is_leaving() {
            return Err(Error::Expired);
        }
        // All objects of a member without data are new.
        let is_unknown = |cluster: &&str| since.version(cluster).is_none_or(|version| matches!(version, "" | "0"));
        let unknown: Vec<String> = since.clusters().filter(is_unknown).map(str::to_owned).collect();
        unknown.iter().for_each(|cluster| since.forget(cluster));
        Ok(Self { since, sends_initial: true })
    }

    fn origin(&self, cluster: &ClusterName) -> Origin {
        match self.since.version(cluster.as_str()) {
            Some(version) => Origin::Version(version.to_owned()),
            None if self.sends_initial => Origin::Objects,
            None => Origin::Now,
        }
    }
}

/// Effect of a member's refusal.
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
    /// `is_known`: the client knows objects of the member, so they would be out of date from here on.
    fn of(status: Option<StatusCode>, is_known: bool) -> Self {
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

struct LiveWatch {
    collection: Arc<Collection>,
    events: Events,
    position: CompositeVersion,
    feeds: FuturesUnordered<BoxFuture<'static, (Feed, Step)>>,
    /// Reports that were awaited before the response began.
    first_steps: VecDeque<(Feed, Step)>,
    /// uids of the watched members. Reports of other feeds are dropped.
    members: BTreeMap<ClusterName, String>,
    /// Members with objects that were sent before the position includes the member.
    sent: BTreeSet<ClusterName>,
    /// Members whose current objects are still to be sent before the closing bookmark.
    pending: BTreeSet<ClusterName>,
    /// The bookmark that ends the initial events has not been sent.
    owes_bookmark: bool,
    changes: MemberChanges,
    bookmarks: Option<Interval>,
    deadline: Instant,
    stopping: CancellationToken,
    ended: bool,
}

impl Proxy {
    pub(super) async fn watch_everywhere(
        &self,
        caller: &Caller,
        native: &NativePath,
        headers: &HeaderMap,
        raw: Option<&str>,
    ) -> Result<Response<Body>, Error> {
        let query = Query::parse(raw);
        let shape = Shape::of(headers, &query, Content::Watch)?;
        ListOptions::parse(&query, true, true)?;
        let beginning = Beginning::of(&query)?;
        // Subscribed first, so that no member that joins meanwhile is missed.
        let changes = self.inner.fleet.changes();
        let members = self.members_of(caller);
        let is_member = |cluster: &str| members.iter().any(|member| member.name().as_str() == cluster);
        if !beginning.since.clusters().all(is_member) {
            return Err(Error::Expired);
        }
        let namespace = Some(native.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let collection = Collection::new(self, caller, native.resource.path(namespace), raw, shape);
        let collection = Arc::new(if native.name.is_empty() { collection } else { collection.named(&native.name) });
        let deadline = Instant::now() + timeout(&query);
        let feeds = members.iter().map(|member| {
            let origin = beginning.origin(member.name());
            Feed::new(Arc::clone(&collection), member, origin, deadline).step()
        });
        let first_steps = join_all(feeds.collect::<Vec<_>>()).await;
        let (first_steps, warnings) = match accept(first_steps, &beginning.since)? {
            WatchStart::Watch(first_steps, warnings) => (first_steps, warnings),
            WatchStart::Refused(response) => return Ok(response),
        };
        let bookmarks = bookmarks(&query);
        let names = members.iter().map(|member| member.name().clone());
        let kind = kind_of(&self.inner.index, &native.resource, names).unwrap_or_default();
        let heading = Heading { api_version: native.resource.api_version(), kind, columns: None };
        let watch = LiveWatch {
            events: Events::new(shape, heading),
            pending: members.iter().map(|member| member.name().clone()).collect(),
            members: members.iter().map(|member| (member.name().clone(), member.uid().to_owned())).collect(),
            owes_bookmark: query.flag(INITIAL_EVENTS) && bookmarks.is_some(),
            position: beginning.since,
            feeds: FuturesUnordered::new(),
            sent: BTreeSet::new(),
            stopping: self.inner.stopping.clone(),
            ended: false,
            collection,
            first_steps,
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
    /// The feeds with their first reports, and warnings of members that cannot be watched.
    Watch(VecDeque<(Feed, Step)>, Vec<HeaderValue>),
    /// No member can be watched.
    Refused(Response<Body>),
}

/// Decides about a watch by the first report of each member.
fn accept(first_steps: Vec<(Feed, Step)>, since: &CompositeVersion) -> Result<WatchStart, Error> {
    let (mut is_lost, mut is_open, mut warnings) = (false, first_steps.is_empty(), Vec::new());
    for (feed, step) in &first_steps {
        match step {
            Step::Expired => return Err(Error::Expired),
            Step::Refused(refusal) => {
                let is_known = since.includes(feed.cluster.as_str());
                is_lost |= Effect::of(refusal.status(), is_known) != Effect::Retry;
                let missing = MissingCluster { cluster: feed.cluster.clone(), reason: refusal.to_string() };
                warnings.push(warning(&missing.text()));
            }
            _ => is_open = true,
        }
    }
    if !is_open {
        let refusal = first_steps.into_iter().find_map(|(_, step)| match step {
            Step::Refused(refusal) => Some(refusal),
            _ => None,
        });
        return refusal.map_or(Err(Error::Expired), Refusal::into_response).map(WatchStart::Refused);
    }
    if is_lost {
        return Err(Error::Expired);
    }
    Ok(WatchStart::Watch(first_steps.into(), warnings))
}

impl Pieces for LiveWatch {
    /// The next events; `None` when the watch is over.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        let mut out = Vec::new();
        while out.is_empty() && !self.ended {
            if let Some((feed, step)) = self.first_steps.pop_front() {
                self.take(feed, step, &mut out)?;
                continue;
            }
            if self.owes_bookmark && self.pending.is_empty() {
                self.owes_bookmark = false;
                self.bookmark(true, &mut out)?;
                continue;
            }
            tokio::select! {
                Some((feed, step)) = self.feeds.next() => self.take(feed, step, &mut out)?,
                change = self.changes.next() => match change {
                    Some(change) => self.apply(&change, &mut out),
                    None => self.ended = true,
                },
                () = tick(&mut self.bookmarks) => self.bookmark(false, &mut out)?,
                () = tokio::time::sleep_until(self.deadline) => self.ended = true,
                () = self.stopping.cancelled() => self.ended = true,
            }
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl LiveWatch {
    /// Sends what a member reports, and requests its next report.
    fn take(&mut self, feed: Feed, step: Step, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.members.get(&feed.cluster) != Some(&feed.uid) {
            return Ok(());
        }
        let cluster = feed.cluster.clone();
        match step {
            Step::Initial { items, version, heading } => self.initial(&cluster, &items, version, heading, out)?,
            Step::Opened => drop(self.pending.remove(&cluster)),
            Step::Events(events) => {
                for event in events {
                    self.position.set(cluster.as_str(), &event.version, None);
                    if let Some(item) = event.item {
                        let version = self.position.encode();
                        self.append(event.kind, &item, &version, out)?;
                    }
                }
            }
            Step::Refused(refusal) => {
                self.pending.remove(&cluster);
                match Effect::of(refusal.status(), self.knows(&cluster)) {
                    Effect::Retry => tracing::debug!(%cluster, reason = %refusal, "a member is watched again later"),
                    Effect::End => self.ended = true,
                    Effect::Expire => self.expire(out),
                }
            }
            Step::Expired => self.expire(out),
        }
        if !self.ended {
            self.feeds.push(feed.step());
        }
        Ok(())
    }

    fn initial(
        &mut self,
        cluster: &ClusterName,
        items: &[Item],
        version: Option<String>,
        heading: Heading,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let known = &mut self.events.heading;
        if known.kind.is_empty() {
            known.kind = heading.kind;
        }
        if known.columns.is_none() {
            known.columns = heading.columns;
        }
        if !items.is_empty() {
            self.sent.insert(cluster.clone());
        }
        // A client of a streaming list resumes only after the closing bookmark, so each object has its version in a list.
        // Any other client may resume from any event, so each event has the version of the watch.
        let position = self.position.encode();
        for item in items {
            let own = item.own_version().filter(|_| self.owes_bookmark).map(|own| composite_version(cluster, &own));
            self.append("ADDED", item, own.as_deref().unwrap_or(&position), out)?;
        }
        if let Some(version) = version {
            self.position.set(cluster.as_str(), &version, None);
            self.pending.remove(cluster);
        }
        Ok(())
    }

    /// True if the client knows objects of a member.
    fn knows(&self, cluster: &ClusterName) -> bool {
        self.position.includes(cluster.as_str()) || self.sent.contains(cluster)
    }

    fn apply(&mut self, change: &MemberChange, out: &mut Vec<u8>) {
        let member = change.member();
        let is_same = self.members.get(member.name()).is_some_and(|uid| uid == member.uid());
        let has_left = matches!(change, MemberChange::Left(_));
        if !is_same || has_left {
            self.leave(member.name(), out);
        }
        let Collection { proxy, caller, .. } = &*self.collection;
        if is_same || has_left || self.ended || !proxy.inner.index.searcher().rules_apply_in(caller, member.name()) {
            return;
        }
        self.members.insert(member.name().clone(), member.uid().to_owned());
        let feed = Feed::new(Arc::clone(&self.collection), member, Origin::Objects, self.deadline);
        self.feeds.push(feed.step());
    }

    fn leave(&mut self, cluster: &ClusterName, out: &mut Vec<u8>) {
        self.pending.remove(cluster);
        if self.members.remove(cluster).is_some() && self.knows(cluster) {
            self.expire(out);
        }
    }

    /// Ends the watch with 410 Gone, so that the client lists again.
    fn expire(&mut self, out: &mut Vec<u8>) {
        append_error(&Error::Expired, out);
        self.ended = true;
    }

    fn append(&mut self, kind: &str, item: &Item, version: &str, out: &mut Vec<u8>) -> Result<(), Error> {
        let body = item.encode(self.events.shape, &mut self.events.heading, Some(version))?;
        self.events.append(kind, &body, version, out);
        Ok(())
    }

    /// Sends the watch's position, unless the kind of the resource is not known yet.
    fn bookmark(&mut self, ends_initial: bool, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let needs_kind = self.events.shape == Shape::Objects(Form::Whole) && !ends_initial;
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
    #[case::any("", [Some(Origin::Objects), Some(Origin::Objects)])]
    #[case::zero("resourceVersion=0", [Some(Origin::Objects), Some(Origin::Objects)])]
    #[case::later("sendInitialEvents=false", [Some(Origin::Now), Some(Origin::Now)])]
    #[case::initial("sendInitialEvents=true", [Some(Origin::Objects), Some(Origin::Objects)])]
    #[case::initial_of_a_version(
        &format!("sendInitialEvents=true&resourceVersion={M1}"), [Some(Origin::Objects), Some(Origin::Objects)]
    )]
    #[case::version(&format!("resourceVersion={M1}"), [Some(Origin::Version("5".into())), Some(Origin::Objects)])]
    #[case::version_of_the_cache(
        &format!("resourceVersion={OF_THE_CACHE}"), [Some(Origin::Version("5".into())), Some(Origin::Objects)]
    )]
    #[case::no_version("resourceVersion=7", [None, None])]
    #[case::leaving(&format!("resourceVersion={LEAVING}"), [None, None])]
    fn beginnings(#[case] query: &str, #[case] expected: [Option<Origin>; 2]) {
        let beginning = Beginning::of(&Query::parse(Some(query))).ok();
        let origin = |name| Some(beginning.as_ref()?.origin(&ClusterName::parse(name).unwrap()));
        assert_eq!(["m1", "m2"].map(origin), expected);
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
    fn refusals(#[case] status: Option<u16>, #[case] is_known: bool, #[case] expected: Effect) {
        let status = status.map(|status| StatusCode::from_u16(status).unwrap());
        assert_eq!(Effect::of(status, is_known), expected);
    }
}
