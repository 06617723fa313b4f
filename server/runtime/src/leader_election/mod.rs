//! Which of several processes runs the controllers: the one that holds all of their Leases in the control plane. They are
//! Karmada's own by name, so that none of ours acts while Karmada's components do, nor they while ours do.
//!
//! Written by the one task that steers (`steering`). The number of a term is the Lease's count of holders: it grows whenever
//! another process takes over.

mod plan;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use crowsnest_api::constants::annotation::READS_STORED_KINDS;
use crowsnest_component_base::retry::jitter;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;

pub use plan::Times;
use plan::{Step, left, step};

/// How to stand for election.
#[derive(Clone)]
pub struct Election {
    /// With connections of its own, so that no other request delays a renewal.
    pub control_plane: kube::Client,
    pub namespace: String,
    /// Taken in this order, given back in the opposite one.
    pub leases: Vec<String>,
    /// This process, unlike any other.
    pub me: String,
    pub times: Times,
}

/// What came of asking once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// All of them are held, until the times say otherwise.
    Held { term: u64 },
    /// This one is somebody else's.
    Elsewhere { lease: String, holder: String },
}

/// An election as seen from here.
pub struct Campaign {
    leases: Api<Lease>,
    me: String,
    times: Times,
    seats: Vec<Seat>,
}

/// One Lease, and since when it has been as it is.
struct Seat {
    name: String,
    seen: Option<(Lease, Instant)>,
}

impl Campaign {
    pub fn new(election: &Election) -> Self {
        let seat = |name: &String| Seat { name: name.clone(), seen: None };
        Self {
            leases: Api::namespaced(election.control_plane.clone(), &election.namespace),
            me: election.me.clone(),
            times: election.times,
            seats: election.leases.iter().map(seat).collect(),
        }
    }

    /// Renews what is held and takes what is free. Leases that are all held are renewed at once, each by one update of the object that
    /// the last answer had.
    pub async fn ask(&mut self) -> Result<Asked, kube::Error> {
        let Self { leases, me, times, seats } = self;
        if seats.iter().all(|seat| seat.is_held_by(me)) {
            let renewals = seats.iter_mut().map(|seat| seat.ask(leases, me, times));
            // None is dropped while it is under way because another one has failed.
            let renewed = futures::future::join_all(renewals).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            let elsewhere = renewed.iter().find(|asked| matches!(asked, Asked::Elsewhere { .. }));
            return Ok(elsewhere.or_else(|| renewed.first()).cloned().unwrap_or(Asked::Held { term: 0 }));
        }
        // All of them, also those behind one that is somebody's: how long each has been as it is counts from its first look, and
        // they would run out one after the other.
        futures::future::try_join_all(seats.iter_mut().map(|seat| seat.look(leases))).await?;
        let mut term = None;
        for seat in seats {
            match seat.ask(leases, me, times).await? {
                Asked::Held { term: number } => {
                    term.get_or_insert(number);
                }
                elsewhere @ Asked::Elsewhere { .. } => return Ok(elsewhere),
            }
        }
        Ok(Asked::Held { term: term.unwrap_or_default() })
    }

    /// Gives back what is held. What can't be given back runs out.
    pub async fn leave(&mut self) {
        let leaving = async {
            for seat in self.seats.iter_mut().rev() {
                if let Err(error) = seat.leave(&self.leases, &self.me).await {
                    tracing::warn!(%error, lease = seat.name, "the lease is not given back, it will run out");
                }
            }
        };
        if tokio::time::timeout(self.times.retry, leaving).await.is_err() {
            tracing::warn!("the control plane does not answer: leases are not given back, they will run out");
        }
    }
}

impl Seat {
    /// As far as this process knows.
    fn is_held_by(&self, me: &str) -> bool {
        let spec = self.seen.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
        spec.is_some_and(|spec| spec.holder_identity.as_deref() == Some(me))
    }

    async fn look(&mut self, leases: &Api<Lease>) -> Result<(), kube::Error> {
        let found = leases.get_opt(&self.name).await?;
        self.see(found);
        Ok(())
    }

    /// By what was seen of it.
    async fn ask(&mut self, leases: &Api<Lease>, me: &str, times: &Times) -> Result<Asked, kube::Error> {
        // Once more where somebody else was faster: it says who.
        for _ in 0..2 {
            let spec = self.seen.as_ref().and_then(|(lease, since)| Some((lease.spec.as_ref()?, since.elapsed())));
            let next = match step(spec, me, times, Timestamp::now()) {
                Step::Take(spec) | Step::Renew(spec) => spec,
                Step::Wait(holder) => return Ok(Asked::Elsewhere { lease: self.name.clone(), holder }),
            };
            match self.write(leases, next).await {
                Ok(term) => return Ok(Asked::Held { term }),
                Err(kube::Error::Api(status)) if status.code == 409 => self.look(leases).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(Asked::Elsewhere { lease: self.name.clone(), holder: "somebody faster".to_owned() })
    }

    fn see(&mut self, found: Option<Lease>) {
        let spec = |lease: &Lease| lease.spec.clone();
        let same = self.seen.as_ref().map(|(seen, _)| spec(seen)) == found.as_ref().map(spec);
        let since = match &self.seen {
            // Its version may have changed without it.
            Some((_, since)) if same => *since,
            _ => Instant::now(),
        };
        self.seen = found.map(|lease| (lease, since));
    }

    async fn write(&mut self, leases: &Api<Lease>, spec: LeaseSpec) -> Result<u64, kube::Error> {
        let term = spec.lease_transitions.and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
        let reader = (READS_STORED_KINDS.to_owned(), spec.holder_identity.clone().unwrap_or_default());
        let written = match &self.seen {
            Some((known, _)) => {
                let mut next = Lease { spec: Some(spec), ..known.clone() };
                next.metadata.annotations.get_or_insert_default().extend([reader]);
                leases.replace(&self.name, &PostParams::default(), &next).await?
            }
            None => {
                let annotations = Some([reader].into());
                let metadata = ObjectMeta { name: Some(self.name.clone()), annotations, ..ObjectMeta::default() };
                leases.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await?
            }
        };
        self.seen = Some((written, Instant::now()));
        Ok(term)
    }

    async fn leave(&mut self, leases: &Api<Lease>, me: &str) -> Result<(), kube::Error> {
        // It may have been taken, or renewed, by a request whose answer did not come - or that is still under way: then once more.
        loop {
            self.look(leases).await?;
            let spec = self.seen.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
            let Some(spec) = spec.filter(|spec| spec.holder_identity.as_deref() == Some(me)) else { return Ok(()) };
            let next = left(spec, Timestamp::now());
            match self.write(leases, next).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                // Somebody has taken it away.
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                written => return written.map(|_| ()),
            }
        }
    }
}

/// Time that one attempt may take: two fit between a renewal and its deadline, as in client-go's leader election.
pub fn attempt(times: &Times) -> Duration {
    (times.renew / 2).max(Duration::from_secs(1))
}

/// Delay between two attempts to take or renew a Lease. `chance` is a random number from 0 to 1.
pub fn pause(times: &Times, chance: f64) -> Duration {
    jitter(times.retry, (0.8, 1.2), chance)
}
