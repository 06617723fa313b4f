//! Decides the next step for a Lease, as client-go's leader election: the holder renews it, and others take it once it
//! has not changed for the holder's lease duration by their own clock, so that clock skew does not matter. Has no side
//! effects.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// Durations of leader election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// Time without a renewal after which others may take the Lease.
    pub lease_duration: Duration,
    /// Time without a renewal after which the holder stops acting. Shorter than `lease_duration`, so that its
    /// writes have ended before others take the Lease.
    pub renew_deadline: Duration,
    /// Interval between attempts.
    pub retry_period: Duration,
}

impl Timings {
    /// Validates the durations. An error names the flag to change.
    pub fn validate(self) -> Result<Self, String> {
        if self.lease_duration <= self.renew_deadline || self.lease_duration < Duration::from_secs(1) {
            return Err("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline".to_owned());
        }
        // The renew deadline must allow two attempts.
        if self.retry_period.is_zero() || self.renew_deadline < self.retry_period * 2 {
            return Err(
                "--leader-elect-renew-deadline must be at least twice --leader-elect-retry-period, which must be greater than 0"
                    .to_owned(),
            );
        }
        Ok(self)
    }

    fn lease_duration_seconds(&self) -> i32 {
        i32::try_from(self.lease_duration.as_secs()).unwrap_or(i32::MAX)
    }
}

/// Next action on a Lease.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// The Lease is free: write this spec.
    Take(LeaseSpec),
    /// This process holds the Lease: write this spec.
    Renew(LeaseSpec),
    /// Another process, with this identity, holds the Lease.
    Wait(String),
}

/// Decides the next step. `observed` is the Lease's spec with the time for which it has been unchanged; `identity` is that
/// of this process.
pub(super) fn next_step(
    observed: Option<(&LeaseSpec, Duration)>,
    identity: &str,
    timings: &Timings,
    now: Timestamp,
) -> Step {
    let own_spec = |transitions: i32| LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(timings.lease_duration_seconds()),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some((spec, unchanged_for)) = observed else { return Step::Take(own_spec(0)) };
    let transitions = spec.lease_transitions.unwrap_or_default();
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder == identity {
        return Step::Renew(LeaseSpec { acquire_time: spec.acquire_time.clone(), ..own_spec(transitions) });
    }
    let holder_duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let holder_duration = holder_duration.map_or(timings.lease_duration, Duration::from_secs);
    if holder.is_empty() || unchanged_for >= holder_duration {
        return Step::Take(own_spec(transitions.saturating_add(1)));
    }
    Step::Wait(holder.to_owned())
}

/// The spec that a holder writes to release the Lease, so that others can acquire it at once. Keeps the transition count,
/// so that the next term has another number.
pub(super) fn released_spec(spec: &LeaseSpec, now: Timestamp) -> LeaseSpec {
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

    const TIMINGS: Timings = Timings {
        lease_duration: Duration::from_secs(10),
        renew_deadline: Duration::from_secs(7),
        retry_period: Duration::from_secs(2),
    };

    fn lease_spec(holder: Option<&str>, lease_duration_seconds: Option<i32>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds,
            acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    #[rstest]
    #[case::no_lease(None, 0, "take 0")]
    #[case::held_by_this_process(Some(lease_spec(Some("me"), Some(10))), 60, "renew 3")]
    #[case::held_by_other(Some(lease_spec(Some("other"), Some(10))), 9, "wait for other")]
    #[case::expired(Some(lease_spec(Some("other"), Some(10))), 10, "take 4")]
    #[case::shorter_duration_of_the_holder(Some(lease_spec(Some("other"), Some(4))), 4, "take 4")]
    #[case::longer_duration_of_the_holder(Some(lease_spec(Some("karmada"), Some(15))), 14, "wait for karmada")]
    #[case::without_a_duration(Some(lease_spec(Some("other"), None)), 9, "wait for other")]
    #[case::released(Some(lease_spec(None, Some(1))), 0, "take 4")]
    #[case::released_with_empty_holder(Some(lease_spec(Some(""), Some(1))), 0, "take 4")]
    fn leases_are_taken_renewed_or_awaited(
        #[case] observed: Option<LeaseSpec>,
        #[case] unchanged_seconds: u64,
        #[case] expected: &str,
    ) {
        let now = Timestamp::from_second(1_000).unwrap();
        let observed = observed.as_ref().map(|spec| (spec, Duration::from_secs(unchanged_seconds)));
        let step = next_step(observed, "me", &TIMINGS, now);
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
    fn released_leases_keep_the_transition_count() {
        let released = released_spec(&lease_spec(Some("me"), Some(10)), Timestamp::UNIX_EPOCH);
        assert_eq!((released.holder_identity, released.lease_transitions), (None, Some(3)));
    }

    #[rstest]
    #[case(10, 7, 2, true)]
    #[case(10, 10, 2, false)]
    #[case(10, 3, 2, false)]
    #[case(10, 7, 0, false)]
    fn invalid_durations_are_rejected(
        #[case] lease: u64,
        #[case] renew: u64,
        #[case] retry: u64,
        #[case] is_valid: bool,
    ) {
        let [lease_duration, renew_deadline, retry_period] = [lease, renew, retry].map(Duration::from_secs);
        assert_eq!(Timings { lease_duration, renew_deadline, retry_period }.validate().is_ok(), is_valid);
    }
}
