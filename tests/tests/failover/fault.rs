//! What goes wrong with a member, as outsiders see it. Its own loops go on: whatever it runs keeps running.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crowsnest_sim::member::{Member, Outage};
use http::StatusCode;

/// The first delay of a member that dies slowly, and the last: nobody waits that long for an answer.
const SLOW: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Between two growths of it.
const GROWTH: Duration = Duration::from_millis(500);
/// About as long as the control plane looks away.
const FLAP: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nobody listens any more.
    Death,
    /// Each answer takes twice as long as a moment before.
    SlowDeath,
    /// Each side hears nothing of the other, and no connection ends.
    Partition,
    /// Requests are taken and never answered.
    Silence,
    /// There and not there, in turn.
    Flapping,
    /// It says that it is not well, and does everything.
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

    /// What goes on by itself once it has begun, if anything does.
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

    /// Ends whatever it is, once nothing makes it worse any more.
    pub async fn mend(member: &Arc<Member>) -> Result<()> {
        if !member.faults().delay().is_zero() {
            // Whoever is so slow is started again: what it had begun is not waited for.
            member.pause().await;
        }
        member.faults().set_delay(Duration::ZERO);
        member.faults().set_readyz(None);
        Ok(member.resume().await?)
    }
}
