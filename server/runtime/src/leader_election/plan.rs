//! What to do about one Lease, as client-go's leader election does it: whoever holds it renews it, and others take it once it
//! has not changed for as long as its holder promised to renew it within - by their own clock, so that clocks may differ.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// How long things last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Others wait so long for a renewal.
    pub lease: Duration,
    /// Without a renewal for so long the holder stops acting. Shorter, so that writes under way have ended.
    pub renew: Duration,
    /// Between two tries.
    pub retry: Duration,
}

impl Times {
    /// What is wrong with them.
    pub fn check(self) -> Result<Self, String> {
        if self.lease <= self.renew || self.lease < Duration::from_secs(1) {
            return Err("--leader-elect-lease-duration has to be longer than --leader-elect-renew-deadline".to_owned());
        }
        // Two tries have to fit.
        if self.retry.is_zero() || self.renew < self.retry * 2 {
            return Err(
                "--leader-elect-renew-deadline has to be at least twice --leader-elect-retry-period, which is more than 0"
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
    /// It is free: write this.
    Take(LeaseSpec),
    /// It is ours: write this.
    Renew(LeaseSpec),
    /// It is somebody's.
    Wait(String),
}

/// `found`: what the Lease says, and for how long it has said so. `me` is this process.
pub(super) fn step(found: Option<(&LeaseSpec, Duration)>, me: &str, times: &Times, now: Timestamp) -> Step {
    let ours = |transitions: i32| LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: Some(times.seconds()),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some((spec, unchanged)) = found else { return Step::Take(ours(0)) };
    let transitions = spec.lease_transitions.unwrap_or_default();
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder == me {
        return Step::Renew(LeaseSpec { acquire_time: spec.acquire_time.clone(), ..ours(transitions) });
    }
    let promised = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let promised = promised.map_or(times.lease, Duration::from_secs);
    if holder.is_empty() || unchanged >= promised {
        return Step::Take(ours(transitions.saturating_add(1)));
    }
    Step::Wait(holder.to_owned())
}

/// What is written by a holder that leaves, so that nobody has to wait. The count stays: the next term has another number.
pub(super) fn left(spec: &LeaseSpec, now: Timestamp) -> LeaseSpec {
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
    #[case::there_is_none(None, 0, "take 0")]
    #[case::ours(Some(held(Some("me"), Some(10))), 60, "renew 3")]
    #[case::somebodys(Some(held(Some("she"), Some(10))), 9, "wait for she")]
    #[case::it_ran_out(Some(held(Some("she"), Some(10))), 10, "take 4")]
    #[case::she_promised_less(Some(held(Some("she"), Some(4))), 4, "take 4")]
    #[case::karmadas_promise_counts(Some(held(Some("karmada"), Some(15))), 14, "wait for karmada")]
    #[case::nothing_is_promised(Some(held(Some("she"), None)), 9, "wait for she")]
    #[case::she_left(Some(held(None, Some(1))), 0, "take 4")]
    #[case::she_left_in_old_words(Some(held(Some(""), Some(1))), 0, "take 4")]
    fn a_lease_is_taken_renewed_or_waited_for(
        #[case] found: Option<LeaseSpec>,
        #[case] unchanged: u64,
        #[case] expected: &str,
    ) {
        let now = Timestamp::from_second(1_000).unwrap();
        let found = found.as_ref().map(|spec| (spec, Duration::from_secs(unchanged)));
        let step = step(found, "me", &TIMES, now);
        let told = match &step {
            Step::Take(spec) => format!("take {}", spec.lease_transitions.unwrap()),
            Step::Renew(spec) => format!("renew {}", spec.lease_transitions.unwrap()),
            Step::Wait(holder) => format!("wait for {holder}"),
        };
        assert_eq!(told, expected);
        if let Step::Take(spec) | Step::Renew(spec) = &step {
            assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("me"), Some(10)));
            assert_eq!(spec.renew_time, Some(MicroTime(now)));
        }
        if let Step::Renew(spec) = step {
            assert_eq!(spec.acquire_time, Some(MicroTime(Timestamp::UNIX_EPOCH)));
        }
    }

    #[test]
    fn whoever_leaves_keeps_the_count() {
        let left = left(&held(Some("me"), Some(10)), Timestamp::UNIX_EPOCH);
        assert_eq!((left.holder_identity, left.lease_transitions), (None, Some(3)));
    }

    #[rstest]
    #[case(10, 7, 2, true)]
    #[case(10, 10, 2, false)]
    #[case(10, 3, 2, false)]
    #[case(10, 7, 0, false)]
    fn times_have_to_fit(#[case] lease: u64, #[case] renew: u64, #[case] retry: u64, #[case] good: bool) {
        let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_secs);
        assert_eq!(Times { lease, renew, retry }.check().is_ok(), good);
    }
}
