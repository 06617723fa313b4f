//! Limits of concurrent requests. As in kube-apiserver, mutating and other requests are counted separately,
//! long-running requests do not count, and members of `system:masters` are not limited.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::user::UserInfo;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::reply::Failure;
use super::request_context::RequestContext;

/// The two limits.
#[derive(Clone)]
pub(crate) struct Limits {
    reads: Option<Arc<Semaphore>>,
    writes: Option<Arc<Semaphore>>,
}

/// Permit of a request, held until the end of its response, for [`SENDING`] at most after the response began: a client that does
/// not read must not keep others out.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

/// Time in which a client may read a response in flight.
const SENDING: Duration = Duration::from_secs(60);
/// Responses of so many bytes wait for their client without a permit: nothing is computed for them any more.
const SMALL: u64 = 64 * 1024;

impl InFlight {
    fn holding(permit: Option<OwnedSemaphorePermit>) -> Self {
        Self(Arc::new(Mutex::new(permit)))
    }

    /// The response begins. `size` is that of its body, if it is known.
    pub(crate) fn sending(self, size: Option<u64>) -> Option<Self> {
        if size.is_some_and(|size| size <= SMALL) || self.0.lock().is_none() {
            return None;
        }
        let permit = Arc::downgrade(&self.0);
        // Ends by itself, and holds nothing of the request.
        tokio::spawn(async move {
            tokio::time::sleep(SENDING).await;
            if let Some(permit) = permit.upgrade() {
                permit.lock().take();
            }
        });
        Some(self)
    }
}

impl Limits {
    /// Zero disables the limit.
    pub(crate) fn new(reads: usize, writes: usize) -> Self {
        let semaphore = |most: usize| (most > 0).then(|| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))));
        Self { reads: semaphore(reads), writes: semaphore(writes) }
    }

    /// 429 when there are too many.
    pub(crate) fn admit(&self, caller: &UserInfo, context: &RequestContext) -> Result<InFlight, Failure> {
        let bound = if context.writes() { &self.writes } else { &self.reads };
        let (Some(bound), false) = (bound, context.long_running) else { return Ok(InFlight::holding(None)) };
        match Arc::clone(bound).try_acquire_owned() {
            Ok(permit) => Ok(InFlight::holding(Some(permit))),
            Err(_) if caller.is_master() => Ok(InFlight::holding(None)),
            Err(_) => Err(Failure::too_many_requests()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregated::identity::Wanted;
    use crowsnest_api::user::MASTERS;

    fn asked(verb: &str, long_running: bool) -> RequestContext {
        let here = Wanted { verb: verb.into(), ..Wanted::default() };
        RequestContext { here, member: None, cluster: None, long_running, discovery: false, refused: None }
    }

    #[test]
    fn only_what_is_in_flight_counts() {
        let limits = Limits::new(1, 1);
        let alice = UserInfo::new("alice", ["dev"]);
        let admitted = |verb, lasts| limits.admit(&alice, &asked(verb, lasts));
        let first = admitted("list", false).unwrap();
        let refused = admitted("get", false).unwrap_err().into_response();
        assert_eq!(refused.status(), http::StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        // Writes have their own bound, and what lasts has none.
        let write = admitted("create", false).unwrap();
        assert!(admitted("patch", false).is_err());
        assert!(admitted("watch", true).is_ok());
        assert!(limits.admit(&UserInfo::new("root", [MASTERS]), &asked("get", false)).is_ok());
        drop((first, write));
        assert!(admitted("get", false).is_ok() && admitted("delete", false).is_ok());
        let unbounded = Limits::new(0, 0);
        let many: Vec<_> = (0..1000).map(|_| unbounded.admit(&alice, &asked("get", false))).collect();
        assert!(many.iter().all(Result::is_ok));
    }
}
