//! Progress indicator: in a terminal, a spinner with a status text on standard error while an operation takes longer
//! than `SPINNER_DELAY`.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Delay before the spinner appears.
const SPINNER_DELAY: Duration = Duration::from_millis(500);
const FRAME_INTERVAL: Duration = Duration::from_millis(100);
const FRAMES: [char; 4] = ['|', '/', '-', '\\'];
/// Returns to the start of the line and erases it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Runs `work` and shows `status` with a spinner until it is done.
pub(crate) async fn with_spinner<T>(status: impl Fn() -> String, work: impl Future<Output = T>) -> T {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    match io::stderr().is_terminal() && !is_dumb {
        true => {
            run_with_spinner(
                &mut io::stderr(),
                interval_at(Instant::now() + SPINNER_DELAY, FRAME_INTERVAL),
                status,
                work,
            )
            .await
        }
        false => work.await,
    }
}

async fn run_with_spinner<T>(
    err: &mut impl Write,
    mut ticks: Interval,
    status: impl Fn() -> String,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut frames = 0_usize;
    let output = loop {
        tokio::select! {
            output = &mut work => break output,
            _ = ticks.tick() => {
                let frame = FRAMES[frames % FRAMES.len()];
                // The indicator is best effort: a closed terminal must not fail the work.
                let _ = write!(err, "{CLEAR_LINE}{frame} {}", status()).and_then(|()| err.flush());
                frames += 1;
            }
        }
    };
    if frames > 0 {
        let _ = write!(err, "{CLEAR_LINE}").and_then(|()| err.flush());
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    const LATER: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn quick_work_shows_no_spinner() {
        let mut err = Vec::new();
        let ticks = interval_at(Instant::now() + LATER, LATER);
        assert_eq!(run_with_spinner(&mut err, ticks, || "searching".to_owned(), async { 42 }).await, 42);
        assert!(err.is_empty(), "{err:?}");
    }

    #[tokio::test]
    async fn spinner_is_erased_when_the_work_is_done() {
        let (mut err, seen) = (Vec::new(), Notify::new());
        let status = || {
            seen.notify_one();
            "1/2 clusters responded".to_owned()
        };
        run_with_spinner(&mut err, interval_at(Instant::now(), LATER), status, seen.notified()).await;
        let shown = String::from_utf8(err).unwrap();
        assert_eq!(shown, format!("{CLEAR_LINE}| 1/2 clusters responded{CLEAR_LINE}"));
    }
}
