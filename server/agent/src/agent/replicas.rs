//! Discovery of the replicas of the control plane that an agent opens tunnels to. Each replica needs its own tunnel,
//! and all are behind one address, so an agent requests tunnels until it reaches no new replica, and at intervals after
//! that. Replicas that share a database report how many they are, so that the agent requests missing tunnels immediately.
//!
//! A request header lists the replicas to which the agent already has tunnels. The replica that receives the request
//! responds with its own name, and opens no tunnel if it is in the list. The control plane reads and writes these
//! headers with [`Replica`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use crowsnest_members::tunnel::reconnect_delay;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio_util::sync::CancellationToken;

/// Request header: replicas to which the agent has a tunnel. Replicas of earlier versions ignore it and open another
/// tunnel.
const TUNNEL_REPLICAS_HEADER: HeaderName = HeaderName::from_static("crowsnest-tunnel-replicas");
/// Response header: name of the replica.
const REPLICA_HEADER: HeaderName = HeaderName::from_static("crowsnest-tunnel-replica");
/// Maximum interval between attempts to find further replicas.
const MAX_DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// Number of quick attempts to find a reported replica. Several are needed, because the replica may not be ready yet
/// and the address leads to any replica.
const MAX_QUICK_ATTEMPTS: u32 = 4;
/// Maximum number of replicas in the header.
const MAX_REPLICAS: usize = 64;
const MAX_NAME_BYTES: usize = 64;

/// One process of the control plane, from start to exit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica(String);

impl Replica {
    /// The replica that is this process.
    pub fn this_process() -> &'static Self {
        static THIS_PROCESS: LazyLock<Replica> = LazyLock::new(|| Replica(format!("{:032x}", rand::random::<u128>())));
        &THIS_PROCESS
    }

    /// The replica in a response; `None` without a valid name.
    pub(super) fn from_response(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get(REPLICA_HEADER)?.to_str().ok()?;
        let is_valid =
            !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(|b| b.is_ascii_alphanumeric());
        is_valid.then(|| Self(name.to_owned()))
    }

    /// True if the agent has a tunnel to this replica.
    pub fn has_tunnel(&self, headers: &HeaderMap) -> bool {
        let values = headers.get_all(TUNNEL_REPLICAS_HEADER).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|name| name.trim() == self.0)
    }

    /// Adds the name of this replica to a response.
    pub fn write_header(&self, headers: &mut HeaderMap) {
        if let Ok(name) = HeaderValue::from_str(&self.0) {
            headers.insert(REPLICA_HEADER, name);
        }
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Sequence number of a tunnel.
pub(super) type TunnelNumber = u64;

/// State of an agent's tunnels, and the time of the next attempt.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// Open tunnels by replica; `None` is a replica that sends no name.
    tunnels: BTreeMap<Option<Replica>, (TunnelNumber, CancellationToken)>,
    /// Number of the last opened tunnel.
    last_number: TunnelNumber,
    /// Consecutive failures; reset by a long-lived tunnel, or by a replica to which a tunnel is open already.
    failures: u32,
    /// True if the last attempt failed.
    has_failed: bool,
    /// Consecutive responses of replicas to which a tunnel is open already.
    already_open_responses: u32,
    /// Number of replicas, if one has reported it.
    replica_count: usize,
    /// Remaining quick attempts.
    quick_attempts: u32,
}

impl Replicas {
    pub(super) fn is_empty(&self) -> bool {
        self.tunnels.is_empty()
    }

    /// True if there may be further replicas. A replica without a name ends the search: earlier versions send none, and
    /// an agent opens one tunnel to them.
    pub(super) fn may_find_more(&self) -> bool {
        !self.tunnels.contains_key(&None) && self.tunnels.len() < MAX_REPLICAS
    }

    /// Adds a header with the replicas to which tunnels are open.
    pub(super) fn write_header(&self, headers: &mut HeaderMap) {
        let names: Vec<&str> = self.tunnels.keys().flatten().map(|replica| replica.0.as_str()).collect();
        if let Ok(names) = HeaderValue::from_str(&names.join(",")) {
            headers.insert(TUNNEL_REPLICAS_HEADER, names);
        }
    }

    /// Records an open tunnel. An earlier tunnel to the same replica is dead, because the replica dropped it.
    pub(super) fn record_opened(&mut self, replica: Option<Replica>, stop: CancellationToken) -> TunnelNumber {
        self.last_number += 1;
        (self.already_open_responses, self.has_failed) = (0, false);
        if let Some((_, earlier)) = self.tunnels.insert(replica, (self.last_number, stop)) {
            earlier.cancel();
        }
        self.last_number
    }

    /// Records the number of replicas, which a replica reports for a while after another has started.
    pub(super) fn record_replica_count(&mut self, replica_count: usize) {
        (self.replica_count, self.quick_attempts) = (replica_count.min(MAX_REPLICAS), MAX_QUICK_ATTEMPTS);
    }

    /// Records the response of a replica to which a tunnel is open already.
    pub(super) fn record_already_open(&mut self) {
        (self.failures, self.has_failed) = (0, false);
        self.quick_attempts = self.quick_attempts.saturating_sub(1);
        self.already_open_responses = self.already_open_responses.saturating_add(1);
    }

    /// Records the end of a tunnel. The end of a stable tunnel, one that was open for at least the minimum time, resets
    /// the failure count, so that the next attempt follows soon: its replica may already have been replaced.
    pub(super) fn record_ended(&mut self, number: TunnelNumber, is_stable: bool) {
        self.tunnels.retain(|_, (open_number, _)| *open_number != number);
        self.already_open_responses = 0;
        self.failures = if is_stable { 0 } else { self.failures };
        self.record_failure();
    }

    /// Closes all tunnels and forgets all replicas.
    pub(super) fn close_all(&mut self) {
        for (_, stop) in std::mem::take(&mut self.tunnels).into_values() {
            stop.cancel();
        }
        self.already_open_responses = 0;
        self.record_failure();
    }

    pub(super) fn record_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.has_failed = true;
    }

    /// Delay before the next attempt; `random` is between 0 and 1.
    pub(super) fn retry_delay(&self, random: f64) -> Duration {
        if self.has_failed {
            reconnect_delay(self.failures.saturating_sub(1), random)
        } else if self.quick_attempts > 0 && self.tunnels.len() < self.replica_count {
            reconnect_delay(1, random)
        } else {
            reconnect_delay(self.already_open_responses, random).min(MAX_DISCOVERY_INTERVAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(name: &str) -> Option<Replica> {
        Some(Replica(name.to_owned()))
    }

    #[test]
    fn replicas_recognize_their_name() {
        let mut replicas = Replicas::default();
        let mut headers = HeaderMap::new();
        replicas.write_header(&mut headers);
        assert!(!Replica::this_process().has_tunnel(&headers));
        replicas.record_opened(replica("other"), CancellationToken::new());
        replicas.write_header(&mut headers);
        assert!(!Replica::this_process().has_tunnel(&headers));
        let mut response = HeaderMap::new();
        Replica::this_process().write_header(&mut response);
        let replica_name = Replica::from_response(&response);
        assert_eq!(replica_name.as_ref(), Some(Replica::this_process()));
        replicas.record_opened(replica_name, CancellationToken::new());
        replicas.write_header(&mut headers);
        assert!(Replica::this_process().has_tunnel(&headers));
    }

    #[test]
    fn invalid_names_are_ignored() {
        for name in ["", "a,b", &"a".repeat(MAX_NAME_BYTES + 1)] {
            let headers = HeaderMap::from_iter([(REPLICA_HEADER, HeaderValue::from_str(name).unwrap())]);
            assert_eq!(Replica::from_response(&headers), None, "{name}");
        }
    }

    #[test]
    fn replicas_without_names_end_the_search() {
        let mut replicas = Replicas::default();
        assert!(replicas.may_find_more() && replicas.is_empty());
        replicas.record_opened(replica("a"), CancellationToken::new());
        assert!(replicas.may_find_more() && !replicas.is_empty());
        let earlier = replicas.record_opened(None, CancellationToken::new());
        assert!(!replicas.may_find_more());
        replicas.record_ended(earlier, true);
        assert!(replicas.may_find_more());
    }

    #[test]
    fn later_tunnels_replace_earlier_ones() {
        let (first, second) = (CancellationToken::new(), CancellationToken::new());
        let mut replicas = Replicas::default();
        let earlier = replicas.record_opened(replica("a"), first.clone());
        let later = replicas.record_opened(replica("a"), second.clone());
        assert!(first.is_cancelled() && !second.is_cancelled());
        replicas.record_ended(earlier, true);
        assert!(!replicas.is_empty());
        replicas.record_ended(later, true);
        assert!(replicas.is_empty());
    }

    #[test]
    fn the_end_of_a_tunnel_closed_by_close_all_is_ignored() {
        let (first, mut replicas) = (CancellationToken::new(), Replicas::default());
        let earlier = replicas.record_opened(None, first.clone());
        replicas.close_all();
        assert!(first.is_cancelled() && replicas.is_empty() && replicas.may_find_more());
        replicas.record_opened(replica("a"), CancellationToken::new());
        replicas.record_ended(earlier, true);
        assert!(!replicas.is_empty());
    }

    #[test]
    fn reported_replicas_are_searched_quickly() {
        let mut replicas = Replicas::default();
        replicas.record_opened(replica("a"), CancellationToken::new());
        replicas.record_opened(replica("b"), CancellationToken::new());
        let assert_longest_interval = |replicas: &mut Replicas| {
            (0..20).for_each(|_| replicas.record_already_open());
            assert_eq!(replicas.retry_delay(0.0), MAX_DISCOVERY_INTERVAL);
        };
        assert_longest_interval(&mut replicas);
        replicas.record_replica_count(2);
        assert_eq!(replicas.retry_delay(0.0), MAX_DISCOVERY_INTERVAL);
        replicas.record_replica_count(3);
        for _ in 0..MAX_QUICK_ATTEMPTS {
            assert_eq!(replicas.retry_delay(0.0), Duration::from_secs(1));
            replicas.record_already_open();
        }
        assert_eq!(replicas.retry_delay(0.0), MAX_DISCOVERY_INTERVAL);
        replicas.record_replica_count(3);
        replicas.record_opened(replica("c"), CancellationToken::new());
        assert_longest_interval(&mut replicas);
        // A report of too many replicas causes no more quick attempts than any other.
        replicas.record_replica_count(usize::MAX);
        assert_longest_interval(&mut replicas);
    }

    #[test]
    fn delays_are_short_after_a_change() {
        let mut replicas = Replicas::default();
        let number = replicas.record_opened(replica("a"), CancellationToken::new());
        assert_eq!(replicas.retry_delay(0.0), Duration::from_millis(500));
        for _ in 0..20 {
            replicas.record_already_open();
        }
        assert_eq!(replicas.retry_delay(0.0), MAX_DISCOVERY_INTERVAL);
        replicas.record_ended(number, true);
        assert_eq!(replicas.retry_delay(0.0), Duration::from_millis(500));
        for _ in 0..20 {
            replicas.record_failure();
        }
        assert_eq!(replicas.retry_delay(0.0), Duration::from_secs(30));
        // After a replica responded again, the others are requested soon; a tunnel that ends at once still counts as a
        // failure.
        let number = replicas.record_opened(replica("b"), CancellationToken::new());
        assert_eq!(replicas.retry_delay(0.0), Duration::from_millis(500));
        replicas.record_ended(number, false);
        assert_eq!(replicas.retry_delay(0.0), Duration::from_secs(30));
        replicas.record_already_open();
        assert_eq!(replicas.retry_delay(0.0), Duration::from_secs(1));
    }
}
