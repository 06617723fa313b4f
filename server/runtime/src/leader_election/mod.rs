//! Leader election of the controllers: the process that holds all of their Leases in the control plane runs them. The Leases have the
//! names of those of Karmada's components, so that Karmada's controllers and these never act at the same time.
//!
//! [`controller_runner`](crate::controller_runner) is the only caller. The number of a term is `spec.leaseTransitions`
//! of the first Lease, which grows whenever another process takes the Lease.

#[cfg(test)]
pub(crate) mod fixtures;
mod heartbeat;
mod plan;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::annotation::READS_STORED_KINDS;
use crowsnest_component_base::retry::jitter;
use crowsnest_controllers::runtime::clock::Clock;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;

pub use heartbeat::Heartbeat;
pub use plan::Timings;
use plan::{Step, next_step, released_spec};
pub use thread::ElectionThread;

/// Configuration of an election.
#[derive(Clone)]
pub struct Election {
    /// A client with its own connections, so that no other request delays a renewal. Created on `thread`.
    pub control_plane: kube::Client,
    /// Runs the attempts and the connections of `control_plane`. Its tasks must not hold a reference to the thread, which
    /// ends when the last reference is dropped.
    pub thread: Arc<ElectionThread>,
    pub namespace: String,
    /// Names of the Leases, in the order in which they are acquired. They are released in the reverse order.
    pub leases: Vec<String>,
    /// Holder identity of this process, unique among all processes.
    pub identity: String,
    pub timings: Timings,
}

/// Result of one attempt to acquire or renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionOutcome {
    /// This process holds all Leases, until [`Timings::renew_deadline`] has passed since the attempt began.
    Holder { term: u64 },
    /// Another process holds this Lease.
    OtherHolder { lease: String, holder: String },
}

/// Participation of this process in an election.
pub struct Campaign {
    leases: Api<Lease>,
    identity: String,
    timings: Timings,
    records: Vec<LeaseRecord>,
}

/// A Lease as this process last observed it.
struct LeaseRecord {
    name: String,
    clock: Clock,
    /// The Lease, and the time of the clock at which the last change of its `spec` was observed. `None` if it does not exist or was not
    /// read yet.
    observed: Option<(Lease, Duration)>,
}

impl Campaign {
    pub fn new(election: &Election, clock: &Clock) -> Self {
        let record = |name: &String| LeaseRecord { name: name.clone(), clock: clock.clone(), observed: None };
        Self {
            leases: Api::namespaced(election.control_plane.clone(), &election.namespace),
            identity: election.identity.clone(),
            timings: election.timings,
            records: election.leases.iter().map(record).collect(),
        }
    }

    /// Renews the Leases that this process holds and acquires those that are free or expired. If it holds all of them, they are renewed
    /// concurrently, each by one update of the object that the last response contained.
    pub async fn try_acquire_or_renew(&mut self) -> Result<ElectionOutcome, kube::Error> {
        let Self { leases, identity, timings, records } = self;
        if records.iter().all(|record| record.has_holder(identity)) {
            let renewals = records.iter_mut().map(|record| record.try_acquire_or_renew(leases, identity, timings));
            // `join_all`, since `try_join_all` would cancel the other updates after the first error.
            let outcomes = futures::future::join_all(renewals).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            let lost = outcomes.iter().find(|outcome| matches!(outcome, ElectionOutcome::OtherHolder { .. }));
            let outcome = lost.or_else(|| outcomes.first()).cloned();
            return Ok(outcome.unwrap_or(ElectionOutcome::Holder { term: 0 }));
        }
        // Read all Leases, even after one that another process holds: a Lease expires when it is unchanged for its duration since it was
        // first read, so reading them one by one would delay the takeover by one duration per Lease.
        futures::future::try_join_all(records.iter_mut().map(|record| record.refresh(leases))).await?;
        let mut term = None;
        for record in records {
            match record.try_acquire_or_renew(leases, identity, timings).await? {
                ElectionOutcome::Holder { term: number } => {
                    term.get_or_insert(number);
                }
                lost @ ElectionOutcome::OtherHolder { .. } => return Ok(lost),
            }
        }
        Ok(ElectionOutcome::Holder { term: term.unwrap_or_default() })
    }

    /// Releases the Leases that this process holds. A Lease that cannot be released expires.
    pub async fn release(&mut self) {
        let release_all = async {
            for record in self.records.iter_mut().rev() {
                if let Err(error) = record.release(&self.leases, &self.identity).await {
                    tracing::warn!(%error, lease = record.name, "cannot release the lease; it will expire");
                }
            }
        };
        if tokio::time::timeout(self.timings.retry_period, release_all).await.is_err() {
            tracing::warn!("cannot release the leases: the control plane does not respond; they will expire");
        }
    }
}

impl LeaseRecord {
    /// Holder identity in the Lease as it was observed.
    fn holder(&self) -> Option<&str> {
        let spec = self.observed.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_deref())
    }

    fn has_holder(&self, identity: &str) -> bool {
        self.holder() == Some(identity)
    }

    /// Reads the Lease.
    async fn refresh(&mut self, leases: &Api<Lease>) -> Result<(), kube::Error> {
        let found = leases.get_opt(&self.name).await?;
        self.observe(found);
        Ok(())
    }

    /// Acquires or renews the Lease, based on the state that was last observed.
    async fn try_acquire_or_renew(
        &mut self,
        leases: &Api<Lease>,
        identity: &str,
        timings: &Timings,
    ) -> Result<ElectionOutcome, kube::Error> {
        // A conflict is followed by a second attempt, which finds the new holder.
        for _ in 0..2 {
            let now = self.clock.now().mono;
            let spec = self.observed.as_ref();
            let spec = spec.and_then(|(lease, since)| Some((lease.spec.as_ref()?, now.saturating_sub(*since))));
            let next = match next_step(spec, identity, timings, Timestamp::now()) {
                Step::Take(spec) | Step::Renew(spec) => spec,
                Step::Wait(holder) => return Ok(ElectionOutcome::OtherHolder { lease: self.name.clone(), holder }),
            };
            match self.write(leases, next).await {
                Ok(term) => return Ok(ElectionOutcome::Holder { term }),
                Err(kube::Error::Api(status)) if status.code == 409 => self.refresh(leases).await?,
                Err(error) => return Err(error),
            }
        }
        let holder = self.holder().filter(|holder| *holder != identity).unwrap_or("another process").to_owned();
        Ok(ElectionOutcome::OtherHolder { lease: self.name.clone(), holder })
    }

    /// Records a Lease that was read, and when its `spec` last changed.
    fn observe(&mut self, found: Option<Lease>) {
        let spec = |lease: &Lease| lease.spec.clone();
        let is_unchanged = self.observed.as_ref().map(|(observed, _)| spec(observed)) == found.as_ref().map(spec);
        let since = match &self.observed {
            // Metadata may have changed, and the resourceVersion with it.
            Some((_, since)) if is_unchanged => *since,
            _ => self.clock.now().mono,
        };
        self.observed = found.map(|lease| (lease, since));
    }

    /// Writes `spec`, and returns its number of transitions, which is the number of the term.
    async fn write(&mut self, leases: &Api<Lease>, spec: LeaseSpec) -> Result<u64, kube::Error> {
        let term = spec.lease_transitions.and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
        let reader_annotation = (READS_STORED_KINDS.to_owned(), spec.holder_identity.clone().unwrap_or_default());
        let stored = match &self.observed {
            Some((observed, _)) => {
                let mut next = Lease { spec: Some(spec), ..observed.clone() };
                next.metadata.annotations.get_or_insert_default().extend([reader_annotation]);
                leases.replace(&self.name, &PostParams::default(), &next).await?
            }
            None => {
                let annotations = Some([reader_annotation].into());
                let metadata = ObjectMeta { name: Some(self.name.clone()), annotations, ..ObjectMeta::default() };
                leases.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await?
            }
        };
        self.observed = Some((stored, self.clock.now().mono));
        Ok(term)
    }

    async fn release(&mut self, leases: &Api<Lease>, identity: &str) -> Result<(), kube::Error> {
        // An earlier write whose response was lost may have changed the Lease, or may change it while this runs: conflicts are retried.
        loop {
            self.refresh(leases).await?;
            let spec = self.observed.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
            let Some(spec) = spec.filter(|spec| spec.holder_identity.as_deref() == Some(identity)) else {
                return Ok(());
            };
            let next = released_spec(spec, Timestamp::now());
            match self.write(leases, next).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                // The Lease was deleted.
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                result => return result.map(|_| ()),
            }
        }
    }
}

/// Timeout of one attempt. Two attempts fit between a renewal and its deadline, as in client-go's leader election.
pub fn attempt_timeout(timings: &Timings) -> Duration {
    (timings.renew_deadline / 2).max(Duration::from_secs(1))
}

/// Delay between the end of an attempt to take or renew a Lease, which took `elapsed`, and the next attempt. Attempts start
/// one retry period apart, with up to 20% jitter, so that a slow control plane does not make renewals rarer. The delay is
/// at least a quarter of the retry period. `random` is from 0 to 1.
pub fn retry_delay(timings: &Timings, elapsed: Duration, random: f64) -> Duration {
    jitter(timings.retry_period, (0.8, 1.2), random).saturating_sub(elapsed).max(timings.retry_period / 4)
}
