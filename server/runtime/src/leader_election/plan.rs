//! Decides the next step for a Lease, as client-go's leader election: the holder renews it, and others take it once it
//! has not changed for the holder's lease duration by their own clock, so that clock skew does not matter. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// Durations of leader election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Time without a renewal after which others may take the Lease.
    pub lease: Duration,
    /// Time without a renewal after which the holder stops acting. Shorter than `lease`, so that writes in flight have
    /// ended.
    pub renew: Duration,
    /// Interval between attempts.
    pub retry: Duration,
}

impl Times {
    /// Validates the durations.
    pub fn check(self) -> Result<Self, String> {
        if self.lease <= self.renew || self.lease < Duration::from_secs(1) {
            return Err("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline".to_owned());
        }
        // The renew deadline must allow two attempts.
        if self.retry.is_zero() || self.renew < self.retry * 2 {
            return Err(
                "--leader-elect-renew-deadline must be at least twice --leader-elect-retry-period, which must be greater than 0"
                    .to_owned(),
            );
        }
        Ok(self)
    }

    fn seconds(&self) -> i32 {
        i32::try_from(self.lease.as_secs()).unwrap_or(i32::MAX)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// The Lease is free: write this spec.
    Take(LeaseSpec),
    /// This process holds the Lease: write this spec.
    Renew(LeaseSpec),
    /// Another process holds the Lease.
    Wait(String),
}

/// The next step. `found` is the Lease's spec, and for how long it has been unchanged; `identity` is this process.
pub(super) fn step(found: Option<(&LeaseSpec, Duration)>, identity: &str, times: &Times, now: Timestamp) -> Step {
    let ours = |transitions: i32| LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(times.seconds()),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some((spec, unchanged)) = found else { return Step::Take(ours(0)) };
    let transitions = spec.lease_transitions.unwrap_or_default();
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder == identity {
        return Step::Renew(LeaseSpec { acquire_time: spec.acquire_time.clone(), ..ours(transitions) });
    }
    let promised = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let promised = promised.map_or(times.lease, Duration::from_secs);
    if holder.is_empty() || unchanged >= promised {
        return Step::Take(ours(transitions.saturating_add(1)));
    }
    Step::Wait(holder.to_owned())
}

/// Spec with which a holder releases the Lease, so that others can acquire it at once. The transition count is kept, so that the next term
/// has another number.
pub(super) fn released(spec: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: spec.lease_transitions,
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const TIMES: Times =
        Times { lease: Duration::from_secs(10), renew: Duration::from_secs(7), retry: Duration::from_secs(2) };

    fn held(holder: Option<&str>, seconds: Option<i32>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: seconds,
            acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    #[rstest]
    #[case::no_lease(None, 0, "take 0")]
    #[case::held_by_this_process(Some(held(Some("me"), Some(10))), 60, "renew 3")]
    #[case::held_by_other(Some(held(Some("other"), Some(10))), 9, "wait for other")]
    #[case::expired(Some(held(Some("other"), Some(10))), 10, "take 4")]
    #[case::shorter_duration_of_the_holder(Some(held(Some("other"), Some(4))), 4, "take 4")]
    #[case::longer_duration_of_the_holder(Some(held(Some("karmada"), Some(15))), 14, "wait for karmada")]
    #[case::without_a_duration(Some(held(Some("other"), None)), 9, "wait for other")]
    #[case::released(Some(held(None, Some(1))), 0, "take 4")]
    #[case::released_with_empty_holder(Some(held(Some(""), Some(1))), 0, "take 4")]
    fn leases_are_taken_renewed_or_awaited(
        #[case] found: Option<LeaseSpec>,
        #[case] unchanged: u64,
        #[case] expected: &str,
    ) {
        let now = Timestamp::from_second(1_000).unwrap();
        let found = found.as_ref().map(|spec| (spec, Duration::from_secs(unchanged)));
        let step = step(found, "me", &TIMES, now);
        let actual = match &step {
            Step::Take(spec) => format!("take {}", spec.lease_transitions.unwrap()),
            Step::Renew(spec) => format!("renew {}", spec.lease_transitions.unwrap()),
            Step::Wait(holder) => format!("wait for {holder}"),
        };
        assert_eq!(actual, expected);
        if let Step::Take(spec) | Step::Renew(spec) = &step {
            assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("me"), Some(10)));
            assert_eq!(spec.renew_time, Some(MicroTime(now)));
        }
        if let Step::Renew(spec) = step {
            assert_eq!(spec.acquire_time, Some(MicroTime(Timestamp::UNIX_EPOCH)));
        }
    }

    #[test]
    fn released_leases_keep_the_count() {
        let released = released(&held(Some("me"), Some(10)), Timestamp::UNIX_EPOCH);
        assert_eq!((released.holder_identity, released.lease_transitions), (None, Some(3)));
    }

    #[rstest]
    #[case(10, 7, 2, true)]
    #[case(10, 10, 2, false)]
    #[case(10, 3, 2, false)]
    #[case(10, 7, 0, false)]
    fn invalid_durations_are_rejected(#[case] lease: u64, #[case] renew: u64, #[case] retry: u64, #[case] good: bool) {
        let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_secs);
        assert_eq!(Times { lease, renew, retry }.check().is_ok(), good);
    }
}
