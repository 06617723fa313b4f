//! Faults of a member, as seen from outside. Its own controllers and workloads keep running.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crowsnest_sim::member::{Member, Outage};
use http::StatusCode;

/// The first and the last delay of a member that becomes slow; the last one exceeds all timeouts.
const SLOW: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Interval between increases of the delay.
const GROWTH: Duration = Duration::from_millis(500);
/// About the interval of the control plane's probes.
const FLAP: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Connections are refused.
    Death,
    /// The delay of responses doubles in steps.
    SlowDeath,
    /// Partition: no data in either direction, and connections stay open.
    Partition,
    /// Requests are accepted and never answered.
    Silence,
    /// Alternates between available and unavailable.
    Flapping,
    /// readyz fails, everything else works.
    Unwell,
}

impl Fault {
    pub async fn begin(self, member: &Arc<Member>) -> Result<()> {
        match self {
            Fault::Death => member.pause().await,
            Fault::SlowDeath => member.faults().set_delay(SLOW.0),
            Fault::Partition => member.cut_off(Outage::Partitioned).await?,
            Fault::Silence => member.cut_off(Outage::Silent).await?,
            Fault::Flapping => member.flap(FLAP).await?,
            Fault::Unwell => member.faults().set_readyz(Some(StatusCode::INTERNAL_SERVER_ERROR)),
        }
        Ok(())
    }

    /// Progress of the fault over time, if any.
    pub fn worsen(self, member: &Arc<Member>) -> Option<impl Future<Output = ()> + Send + use<>> {
        let faults = (self == Fault::SlowDeath).then(|| member.faults().clone())?;
        Some(async move {
            let mut delay = SLOW.0;
            while delay < SLOW.1 {
                tokio::time::sleep(GROWTH).await;
                delay = (delay * 2).min(SLOW.1);
                faults.set_delay(delay);
            }
        })
    }

    /// Ends the fault, after its progress has been stopped.
    pub async fn mend(member: &Arc<Member>) -> Result<()> {
        if !member.faults().delay().is_zero() {
            // A slow member is restarted: requests in progress are not awaited.
            member.pause().await;
        }
        member.faults().set_delay(Duration::ZERO);
        member.faults().set_readyz(None);
        Ok(member.resume().await?)
    }
}
