//! Health of the nodes: which one a request is sent to next.

use crowsnest_component_base::retry::Backoff;
use std::time::{Duration, Instant};

/// Backoff after which a failed node takes part in the rotation again.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Nodes with their recent failures. Requests are distributed round-robin over the healthy ones.
#[derive(Debug)]
pub(super) struct HostRotation {
    hosts: Vec<Health>,
    next: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Health {
    failures: u32,
    retry_at: Option<Instant>,
}

impl HostRotation {
    pub fn new(count: usize) -> Self {
        Self { hosts: vec![Health::default(); count], next: 0 }
    }

    /// All nodes in the order to try: healthy ones, starting with the next in turn, then failed ones by their retry time.
    pub fn order(&mut self, now: Instant) -> Vec<usize> {
        let count = self.hosts.len();
        let start = self.next;
        self.next = (self.next + 1) % count.max(1);
        let mut order: Vec<usize> = (0..count).map(|offset| (start + offset) % count).collect();
        order.sort_by_key(|&host| self.hosts[host].retry_at.filter(|at| *at > now));
        order
    }

    pub fn record_failure(&mut self, host: usize, now: Instant) {
        let health = &mut self.hosts[host];
        health.failures = health.failures.saturating_add(1);
        health.retry_at = Some(now + BACKOFF.delay(health.failures));
    }

    pub fn record_success(&mut self, host: usize) {
        self.hosts[host] = Health::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_nodes_take_turns_and_failed_ones_are_retried() {
        let now = Instant::now();
        let mut hosts = HostRotation::new(3);
        assert_eq!([hosts.order(now), hosts.order(now)], [vec![0, 1, 2], vec![1, 2, 0]]);
        hosts.record_failure(1, now);
        assert_eq!(hosts.order(now), [2, 0, 1], "a failed node is last");
        assert_eq!(hosts.order(now), [0, 2, 1]);
        hosts.record_failure(0, now);
        hosts.record_failure(0, now);
        assert_eq!(hosts.order(now), [2, 1, 0], "the one to retry first");
        assert_eq!(hosts.order(now + Duration::from_secs(60)), [2, 0, 1], "all may be tried again");
        hosts.record_success(0);
        assert_eq!(hosts.order(now), [0, 2, 1]);
    }
}
