//! Faults in the connection to a member. The member's own controllers and workloads continue to run.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crowsnest_sim::member::{Member, Outage};
use http::StatusCode;

/// First delay of responses of a member that becomes slow.
const MIN_DELAY: Duration = Duration::from_millis(250);
/// Last delay of responses of a member that becomes slow, longer than all timeouts.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Interval at which the delay doubles.
const DOUBLING_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which a flapping member changes its state; similar to the interval of the control plane's probes.
const FLAP_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Connections are refused.
    ConnectionRefused,
    /// The delay of responses doubles at intervals until all requests time out.
    IncreasingDelay,
    /// Partition: no data in either direction, and connections stay open.
    Partition,
    /// Requests are accepted and get no response.
    NoResponse,
    /// Alternates between available and unavailable.
    Flapping,
    /// `/readyz` fails; all other requests succeed.
    NotReady,
}

impl Fault {
    /// Starts the fault. [`Fault::progress`] changes it afterwards.
    pub async fn inject(self, member: &Arc<Member>) -> Result<()> {
        match self {
            Fault::ConnectionRefused => member.pause().await,
            Fault::IncreasingDelay => member.faults().set_delay(MIN_DELAY),
            Fault::Partition => member.start_outage(Outage::Partitioned).await?,
            Fault::NoResponse => member.start_outage(Outage::Silent).await?,
            Fault::Flapping => member.flap(FLAP_INTERVAL).await?,
            Fault::NotReady => member.faults().set_readyz(Some(StatusCode::INTERNAL_SERVER_ERROR)),
        }
        Ok(())
    }

    /// Task that changes the fault over time; `None` for a constant fault.
    pub fn progress(self, member: &Arc<Member>) -> Option<impl Future<Output = ()> + Send + use<>> {
        let faults = (self == Fault::IncreasingDelay).then(|| member.faults().clone())?;
        Some(async move {
            let mut delay = MIN_DELAY;
            while delay < MAX_DELAY {
                tokio::time::sleep(DOUBLING_INTERVAL).await;
                delay = (delay * 2).min(MAX_DELAY);
                faults.set_delay(delay);
            }
        })
    }

    /// Ends all faults of a member. The task of [`Fault::progress`] must have been stopped.
    pub async fn end_all(member: &Arc<Member>) -> Result<()> {
        if !member.faults().delay().is_zero() {
            // The restart makes delayed requests in progress fail immediately.
            member.pause().await;
        }
        member.faults().set_delay(Duration::ZERO);
        member.faults().set_readyz(None);
        Ok(member.resume().await?)
    }
}
