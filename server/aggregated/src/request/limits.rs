//! Limits of concurrent requests. As in kube-apiserver, mutating and other requests are counted separately,
//! long-running requests do not count, and members of `system:masters` are not limited.

use crowsnest_apimachinery::status::ApiError;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::dropped_requests::DroppedRequests;
use crowsnest_component_base::token_bucket::TokenBucket;
use crowsnest_search::paths::MAX_PATH_SEARCHES;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::request::context::RequestAttributes;

/// Limits of concurrent reads, writes and path searches, and of the rate of MCP messages.
#[derive(Clone)]
pub struct Limits {
    reads: Option<Arc<RequestLimit>>,
    writes: Option<Arc<RequestLimit>>,
    messages: Arc<Mutex<HashMap<String, TokenBucket>>>,
    path_searches: Arc<Mutex<PathSearches>>,
}

/// Messages per second of a user of the Model Context Protocol, and the number that may be sent at once.
const MESSAGES_PER_SECOND: f64 = 10.0;
const MESSAGE_BURST: f64 = 20.0;
/// Number of users above which the token buckets of idle users are removed.
const MAX_TRACKED_USERS: usize = 1_000;

/// Maximum number of concurrent requests of a user for paths or blast radius.
const MAX_PATH_SEARCHES_PER_USER: usize = MAX_PATH_SEARCHES / 2;

/// Numbers of running path searches by user.
type PathSearches = HashMap<String, usize>;

/// Permit of a path search, released when dropped.
#[derive(Debug)]
pub struct PathSearchPermit {
    searches: Arc<Mutex<PathSearches>>,
    user: String,
}

impl Drop for PathSearchPermit {
    fn drop(&mut self) {
        let mut searches = self.searches.lock();
        let Some(count) = searches.get_mut(&self.user) else { return };
        *count -= 1;
        if *count == 0 {
            searches.remove(&self.user);
        }
    }
}

/// Limit of concurrent requests, for reads or for writes.
struct RequestLimit {
    permits: Arc<Semaphore>,
    /// Permits of responses that are being sent, with the time at which they expire; oldest first.
    sending: Mutex<VecDeque<(Instant, Weak<ResponsePermit>)>>,
    dropped: DroppedRequests,
}

/// A permit, until it is released.
type ResponsePermit = Mutex<Option<OwnedSemaphorePermit>>;

/// Permit of a request, held until the end of its response. Other requests may take it [`SEND_TIMEOUT`] after the
/// response began, so that clients that do not read their responses cannot block others.
pub struct InFlight(Option<(Arc<RequestLimit>, Arc<ResponsePermit>)>);

/// Time after which a response that is being sent loses its permit.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Responses of at most this size are sent without a permit, because no work is left except sending them.
const MAX_SMALL_RESPONSE_BYTES: u64 = 64 * 1024;

impl InFlight {
    /// Starts the expiry of the permit, when the response begins. `size` is the length of the body in bytes, if known.
    /// `None` if the permit is released immediately.
    pub fn start_response(self, size: Option<u64>, now: Instant) -> Option<Self> {
        let (limit, permit) = self.0.filter(|_| size.is_none_or(|size| size > MAX_SMALL_RESPONSE_BYTES))?;
        let mut sending = limit.sending.lock();
        while sending.front().is_some_and(|(_, permit)| permit.strong_count() == 0) {
            sending.pop_front();
        }
        sending.push_back((now + SEND_TIMEOUT, Arc::downgrade(&permit)));
        drop(sending);
        Some(Self(Some((limit, permit))))
    }
}

impl RequestLimit {
    fn permit(self: &Arc<Self>, now: Instant) -> Option<InFlight> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().or_else(|_| {
            self.reclaim(now);
            Arc::clone(&self.permits).try_acquire_owned()
        });
        permit.ok().map(|permit| InFlight(Some((Arc::clone(self), Arc::new(Mutex::new(Some(permit)))))))
    }

    /// Releases expired permits.
    fn reclaim(&self, now: Instant) {
        let mut sending = self.sending.lock();
        while sending.front().is_some_and(|(until, _)| *until <= now) {
            let permit = sending.pop_front().and_then(|(_, permit)| permit.upgrade());
            drop(permit.and_then(|permit| permit.lock().take()));
        }
    }
}

impl Limits {
    /// Limits the numbers of concurrent reads and writes. Zero disables a limit.
    pub fn new(reads: usize, writes: usize) -> Self {
        let limit = |max: usize| {
            let permits = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
            (max > 0).then(|| {
                Arc::new(RequestLimit { permits, sending: Mutex::default(), dropped: DroppedRequests::default() })
            })
        };
        Self { reads: limit(reads), writes: limit(writes), messages: Arc::default(), path_searches: Arc::default() }
    }

    /// Fails with 429 if the user exceeds the rate of messages of the Model Context Protocol.
    pub fn admit_message(&self, caller: &UserInfo, now: Instant) -> Result<(), ApiError> {
        let mut messages = self.messages.lock();
        if messages.len() >= MAX_TRACKED_USERS && !messages.contains_key(&caller.name) {
            messages.retain(|_, bucket| !bucket.is_full(now));
        }
        let new = || TokenBucket::new(MESSAGES_PER_SECOND, MESSAGE_BURST, now);
        let is_permitted = messages.entry(caller.name.clone()).or_insert_with(new).try_take(now);
        if is_permitted { Ok(()) } else { Err(ApiError::too_many_requests()) }
    }

    /// Fails with 429 if too many path searches are running, in total or for the user.
    pub fn admit_path_search(&self, caller: &UserInfo) -> Result<PathSearchPermit, ApiError> {
        let mut searches = self.path_searches.lock();
        let total: usize = searches.values().sum();
        let user_searches = searches.get(&caller.name).copied().unwrap_or_default();
        let is_permitted = total < MAX_PATH_SEARCHES && user_searches < MAX_PATH_SEARCHES_PER_USER;
        if !is_permitted && !caller.is_master() {
            return Err(ApiError::too_many_requests());
        }
        searches.insert(caller.name.clone(), user_searches + 1);
        Ok(PathSearchPermit { searches: Arc::clone(&self.path_searches), user: caller.name.clone() })
    }

    /// Fails with 429 if the limit of concurrent requests is reached.
    pub fn admit(&self, caller: &UserInfo, attributes: &RequestAttributes, now: Instant) -> Result<InFlight, ApiError> {
        let limit = if attributes.is_mutating() { &self.writes } else { &self.reads };
        let (Some(limit), false) = (limit, attributes.is_long_running) else { return Ok(InFlight(None)) };
        match limit.permit(now) {
            Some(in_flight) => Ok(in_flight),
            None if caller.is_master() => Ok(InFlight(None)),
            None => Err(limit.dropped.reject(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::registry::REGISTRY;
    use crowsnest_apimachinery::user::MASTERS;
    use crowsnest_process::reply::StatusResponse;
    use http::{HeaderMap, Method, Uri};

    fn attributes(verb: &str, is_long_running: bool) -> RequestAttributes {
        let uri = Uri::from_static("/apis");
        let mut attributes = RequestAttributes::parse(&REGISTRY, &Method::GET, &uri, &HeaderMap::new());
        (attributes.authz.verb, attributes.is_long_running) = (verb.to_owned(), is_long_running);
        attributes
    }

    #[test]
    fn only_requests_in_flight_count() {
        let limits = Limits::new(1, 1);
        let alice = UserInfo::new("alice", ["dev"]);
        let now = Instant::now();
        let admit = |verb, is_long_running| limits.admit(&alice, &attributes(verb, is_long_running), now);
        let first = admit("list", false).unwrap();
        let refused = admit("get", false).err().unwrap().into_response();
        assert_eq!(refused.status(), http::StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        // Writes have their own limit, and long-running requests have none.
        let write = admit("create", false).unwrap();
        assert!(admit("patch", false).is_err());
        assert!(admit("watch", true).is_ok());
        assert!(limits.admit(&UserInfo::new("root", [MASTERS]), &attributes("get", false), now).is_ok());
        drop((first, write));
        assert!(admit("get", false).is_ok() && admit("delete", false).is_ok());
        let unbounded = Limits::new(0, 0);
        let many: Vec<_> = (0..1000).map(|_| unbounded.admit(&alice, &attributes("get", false), now)).collect();
        assert!(many.iter().all(Result::is_ok));
    }

    /// 20 messages at once, and 10 a second from then on.
    #[test]
    fn messages_are_limited_by_user() {
        let (limits, start) = (Limits::new(0, 0), Instant::now());
        let admit = |name: &str, at| limits.admit_message(&UserInfo::new(name, ["dev"]), at);
        for (milliseconds, expected) in
            [(0, 20), (0, 0), (50, 0), (100, 1), (100, 0), (600, 5), (1_600, 10), (60_000, 20)]
        {
            let now = start + Duration::from_millis(milliseconds);
            let admitted = (0..100).filter(|_| admit("alice", now).is_ok()).count();
            assert_eq!(admitted, expected, "after {milliseconds} ms");
        }
        let refused = admit("alice", start + Duration::from_secs(60)).unwrap_err().into_response();
        assert_eq!(refused.status(), http::StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        assert!(admit("bob", start).is_ok(), "each user has a limit");
    }

    #[test]
    fn clients_retry_later_while_requests_are_dropped() {
        let (limits, alice, start) = (Limits::new(1, 1), UserInfo::new("alice", ["dev"]), Instant::now());
        let admit = |verb, now| limits.admit(&alice, &attributes(verb, false), now);
        let (_read, _write) = (admit("get", start).unwrap(), admit("delete", start).unwrap());
        for (verb, seconds, expected) in [("get", 0, "1"), ("get", 1, "2"), ("get", 3, "4"), ("delete", 3, "1")] {
            let now = start + Duration::from_secs(seconds);
            let errors: Vec<_> = (0..10).filter_map(|_| admit(verb, now).err()).collect();
            let responses: Vec<_> = errors.into_iter().map(StatusResponse::into_response).collect();
            assert_eq!(responses.len(), 10);
            assert!(responses.iter().all(|response| response.headers()["retry-after"] == expected), "{verb} {seconds}");
        }
    }

    #[test]
    fn concurrent_path_searches_are_limited() {
        let limits = Limits::new(0, 0);
        let search = |name: &str| limits.admit_path_search(&UserInfo::new(name, ["dev"]));
        let searches = |name: &str| (0..100).map_while(|_| search(name).ok()).collect::<Vec<_>>();
        let mut alice = searches("alice");
        assert_eq!(alice.len(), MAX_PATH_SEARCHES_PER_USER);
        let refused = search("alice").unwrap_err().into_response();
        assert_eq!(refused.status(), http::StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        let bob = searches("bob");
        assert_eq!(bob.len(), MAX_PATH_SEARCHES - MAX_PATH_SEARCHES_PER_USER);
        assert!(search("carol").is_err(), "the limit of all users is reached");
        let root = limits.admit_path_search(&UserInfo::new("root", [MASTERS]));
        assert!(root.is_ok() && search("carol").is_err());
        drop(root);
        alice.pop();
        let carol = search("carol");
        assert!(carol.is_ok() && search("alice").is_err(), "the permit belongs to the next search");
        drop((alice, bob, carol));
        assert!(limits.path_searches.lock().is_empty(), "users without searches are removed");
        assert_eq!(searches("alice").len(), MAX_PATH_SEARCHES_PER_USER);
    }

    #[test]
    fn buckets_of_idle_users_are_removed() {
        let (limits, start) = (Limits::new(0, 0), Instant::now());
        for nth in 0..3_000 {
            let caller = UserInfo::new(format!("user-{nth}"), ["dev"]);
            assert!(limits.admit_message(&caller, start + Duration::from_secs(nth)).is_ok());
        }
        assert!(limits.messages.lock().len() <= MAX_TRACKED_USERS + 1);
    }

    #[test]
    fn responses_that_clients_do_not_read_lose_their_permits() {
        let (limits, alice, now) = (Limits::new(1, 1), UserInfo::new("alice", ["dev"]), Instant::now());
        let admit = |now| limits.admit(&alice, &attributes("get", false), now);
        // A small response needs no permit.
        assert!(admit(now).unwrap().start_response(Some(MAX_SMALL_RESPONSE_BYTES), now).is_none());
        let large = admit(now).unwrap().start_response(None, now);
        assert!(large.is_some() && admit(now + SEND_TIMEOUT - Duration::from_millis(1)).is_err());
        let next = admit(now + SEND_TIMEOUT);
        assert!(next.is_ok());
        drop(large);
        assert!(admit(now + SEND_TIMEOUT).is_err(), "the permit belongs to the next request");
        drop(next);
        assert!(admit(now + SEND_TIMEOUT).is_ok());
    }
}
