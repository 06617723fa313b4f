//! At which replicas of the control plane an agent's tunnels end. Each replica reaches the member through a tunnel of its own, and
//! all are behind one address, so an agent asks there until it meets nobody new, and now and then after that. Where replicas know of
//! each other they tell it how many they are, and it looks for those it has not met at once.
//!
//! An agent says whom it has met, a replica who it is; one that is met already opens nothing. Written by the agent's loop, read by
//! nobody else; the headers are also those of whoever takes in agents.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use crowsnest_members::tunnel::backoff;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio_util::sync::CancellationToken;

/// In an agent's request: the replicas to which it has a tunnel. Those that do not know it open one more.
const MET: HeaderName = HeaderName::from_static("crowsnest-tunnel-replicas");
/// In the answer: which replica it is.
const REPLICA: HeaderName = HeaderName::from_static("crowsnest-tunnel-replica");
/// Between two looks for further replicas, at most.
const LOOK: Duration = Duration::from_secs(10);
/// How often one that it was told of is looked for quickly: it may take a moment to be ready, and the address leads to any of them.
const TRIES: u32 = 4;
/// More than anybody runs, and few enough for a header.
const MAX_MET: usize = 64;
const MAX_NAME: usize = 64;

/// One process of the control plane, from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica(String);

impl Replica {
    /// This process.
    pub fn own() -> &'static Self {
        static OWN: LazyLock<Replica> = LazyLock::new(|| Replica(format!("{:032x}", rand::random::<u128>())));
        &OWN
    }

    /// None of one that does not say, or not in words that could be said to others.
    pub(super) fn of_answer(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get(REPLICA)?.to_str().ok()?;
        let plain = !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|b| b.is_ascii_alphanumeric());
        plain.then(|| Self(name.to_owned()))
    }

    /// Whether an agent that asks says that it has a tunnel to this one.
    pub fn is_met(&self, headers: &HeaderMap) -> bool {
        let values = headers.get_all(MET).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|name| name.trim() == self.0)
    }

    /// Says in an answer who it is.
    pub fn tell(&self, headers: &mut HeaderMap) {
        if let Ok(name) = HeaderValue::from_str(&self.0) {
            headers.insert(REPLICA, name);
        }
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Counts an agent's tunnels.
pub(super) type Number = u64;

/// The tunnels that an agent has, and when it asks for the next.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// By replica; `None` is one that does not say who it is.
    met: BTreeMap<Option<Replica>, (Number, CancellationToken)>,
    next: Number,
    /// Grows until a tunnel was open for long, or a replica is met again.
    failures: u32,
    /// Whether the last that happened was one.
    failed: bool,
    /// Answers in a row of replicas that were met before.
    again: u32,
    /// How many replicas there are, as far as one of them has said.
    there: usize,
    /// How often more may be looked for quickly.
    tries: u32,
}

impl Replicas {
    pub(super) fn is_empty(&self) -> bool {
        self.met.is_empty()
    }

    /// An earlier control plane tells no replicas apart: with a tunnel to one there is nothing to look for.
    pub(super) fn looks(&self) -> bool {
        !self.met.contains_key(&None) && self.met.len() < MAX_MET
    }

    /// Says in a request who is met.
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        let names: Vec<&str> = self.met.keys().flatten().map(|replica| replica.0.as_str()).collect();
        if let Ok(names) = HeaderValue::from_str(&names.join(",")) {
            headers.insert(MET, names);
        }
    }

    /// A tunnel is open. One to the same replica is taken for dead, as that replica no longer has it.
    pub(super) fn opened(&mut self, replica: Option<Replica>, stop: CancellationToken) -> Number {
        self.next += 1;
        (self.again, self.failed) = (0, false);
        if let Some((_, earlier)) = self.met.insert(replica, (self.next, stop)) {
            earlier.cancel();
        }
        self.next
    }

    /// One of the replicas said how many they are, as it does for a while after one has come.
    pub(super) fn told(&mut self, there: usize) {
        (self.there, self.tries) = (there.min(MAX_MET), TRIES);
    }

    /// A replica answered that it was met already.
    pub(super) fn met_again(&mut self) {
        (self.failures, self.failed) = (0, false);
        self.tries = self.tries.saturating_sub(1);
        self.again = self.again.saturating_add(1);
    }

    /// A tunnel has ended; `stable` is one that was open for long. Another replica may be in that one's place soon.
    pub(super) fn ended(&mut self, number: Number, stable: bool) {
        self.met.retain(|_, (known, _)| *known != number);
        self.again = 0;
        self.failures = if stable { 0 } else { self.failures };
        self.failed();
    }

    /// All tunnels end, and nobody is met.
    pub(super) fn start_over(&mut self) {
        for (_, stop) in std::mem::take(&mut self.met).into_values() {
            stop.cancel();
        }
        self.again = 0;
        self.failed();
    }

    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.failed = true;
    }

    /// How long to wait before asking again, at `random` (0 to 1).
    pub(super) fn pause(&self, random: f64) -> Duration {
        if self.failed {
            backoff(self.failures.saturating_sub(1), random)
        } else if self.tries > 0 && self.met.len() < self.there {
            backoff(1, random)
        } else {
            backoff(self.again, random).min(LOOK)
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
    fn a_replica_knows_whether_it_is_met() {
        let mut replicas = Replicas::default();
        let mut headers = HeaderMap::new();
        replicas.tell(&mut headers);
        assert!(!Replica::own().is_met(&headers));
        replicas.opened(replica("other"), CancellationToken::new());
        replicas.tell(&mut headers);
        assert!(!Replica::own().is_met(&headers));
        let mut answer = HeaderMap::new();
        Replica::own().tell(&mut answer);
        let said = Replica::of_answer(&answer);
        assert_eq!(said.as_ref(), Some(Replica::own()));
        replicas.opened(said, CancellationToken::new());
        replicas.tell(&mut headers);
        assert!(Replica::own().is_met(&headers));
    }

    #[test]
    fn a_name_that_would_not_do_in_a_header_is_none() {
        for name in ["", "a,b", &"a".repeat(MAX_NAME + 1)] {
            let headers = HeaderMap::from_iter([(REPLICA, HeaderValue::from_str(name).unwrap())]);
            assert_eq!(Replica::of_answer(&headers), None, "{name}");
        }
    }

    #[test]
    fn it_looks_for_more_until_one_does_not_say_who_it_is() {
        let mut replicas = Replicas::default();
        assert!(replicas.looks() && replicas.is_empty());
        replicas.opened(replica("a"), CancellationToken::new());
        assert!(replicas.looks() && !replicas.is_empty());
        let earlier = replicas.opened(None, CancellationToken::new());
        assert!(!replicas.looks());
        replicas.ended(earlier, true);
        assert!(replicas.looks());
    }

    #[test]
    fn the_later_tunnel_to_a_replica_ends_the_earlier_and_outlives_it() {
        let (first, second) = (CancellationToken::new(), CancellationToken::new());
        let mut replicas = Replicas::default();
        let earlier = replicas.opened(replica("a"), first.clone());
        let later = replicas.opened(replica("a"), second.clone());
        assert!(first.is_cancelled() && !second.is_cancelled());
        replicas.ended(earlier, true);
        assert!(!replicas.is_empty());
        replicas.ended(later, true);
        assert!(replicas.is_empty());
    }

    #[test]
    fn it_starts_over_without_taking_a_tunnel_for_another() {
        let (first, mut replicas) = (CancellationToken::new(), Replicas::default());
        let earlier = replicas.opened(None, first.clone());
        replicas.start_over();
        assert!(first.is_cancelled() && replicas.is_empty() && replicas.looks());
        replicas.opened(replica("a"), CancellationToken::new());
        replicas.ended(earlier, true);
        assert!(!replicas.is_empty());
    }

    #[test]
    fn it_looks_quickly_for_one_it_was_told_of_until_it_is_met_or_does_not_come() {
        let mut replicas = Replicas::default();
        replicas.opened(replica("a"), CancellationToken::new());
        replicas.opened(replica("b"), CancellationToken::new());
        let rests = |replicas: &mut Replicas| {
            (0..20).for_each(|_| replicas.met_again());
            assert_eq!(replicas.pause(0.0), LOOK);
        };
        rests(&mut replicas);
        replicas.told(2);
        assert_eq!(replicas.pause(0.0), LOOK);
        replicas.told(3);
        for _ in 0..TRIES {
            assert_eq!(replicas.pause(0.0), Duration::from_secs(1));
            replicas.met_again();
        }
        assert_eq!(replicas.pause(0.0), LOOK);
        replicas.told(3);
        replicas.opened(replica("c"), CancellationToken::new());
        rests(&mut replicas);
        // Nobody makes it ask for ever.
        replicas.told(usize::MAX);
        rests(&mut replicas);
    }

    #[test]
    fn it_asks_soon_after_a_change_and_seldom_without() {
        let mut replicas = Replicas::default();
        let number = replicas.opened(replica("a"), CancellationToken::new());
        assert_eq!(replicas.pause(0.0), Duration::from_millis(500));
        for _ in 0..20 {
            replicas.met_again();
        }
        assert_eq!(replicas.pause(0.0), LOOK);
        replicas.ended(number, true);
        assert_eq!(replicas.pause(0.0), Duration::from_millis(500));
        for _ in 0..20 {
            replicas.failed();
        }
        assert_eq!(replicas.pause(0.0), Duration::from_secs(30));
        // Somebody answers again, so the others are asked for soon; a tunnel that ends at once is still a failure more.
        let number = replicas.opened(replica("b"), CancellationToken::new());
        assert_eq!(replicas.pause(0.0), Duration::from_millis(500));
        replicas.ended(number, false);
        assert_eq!(replicas.pause(0.0), Duration::from_secs(30));
        replicas.met_again();
        assert_eq!(replicas.pause(0.0), Duration::from_secs(1));
    }
}
