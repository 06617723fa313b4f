//! Follows the log of one container until its pod is deleted, across restarts and broken connections, without
//! duplicate lines.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt, unfold};
use tokio::sync::watch;
use tokio::time::Instant;

use super::LogSource;
use super::line::Cursor;
use super::pod::{Pod, State};
use super::read::{Log, LogReader, Refusal, SourceEvent};
use super::select::LogStart;

/// Minimum and maximum delay before a log that ended while its container runs is requested again.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Maximum wait for the last lines of a removed pod.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(5);

const POD_REMOVED: &str = "the pod was deleted, no longer matches, or may no longer be read";
const POD_FINISHED: &str = "the pod has finished";

/// Last known state of a pod.
#[derive(Debug, Clone, Default)]
pub struct PodSnapshot {
    pub pod: Pod,
    /// True if the pod was deleted, no longer matches the request, or is no longer readable.
    pub is_removed: bool,
}

/// Step of following a log.
enum Step {
    /// The container has not started yet.
    NotStarted,
    /// The log is requested.
    Opening,
    Reading(Box<Log>),
    /// The log ended or was refused while the pod exists.
    RetryWait,
    Ended,
}

struct LogFollower {
    reader: LogReader,
    source: Arc<LogSource>,
    pod: watch::Receiver<PodSnapshot>,
    start: LogStart,
    cursor: Cursor,
    step: Step,
    /// State of the container when its log was requested.
    opened_state: State,
    /// The last refusal sent; it is not repeated.
    last_refusal: Option<Refusal>,
    retry_delay: Duration,
}

/// Follows a log from a start position.
pub fn follow_log(
    reader: LogReader,
    source: Arc<LogSource>,
    pod: watch::Receiver<PodSnapshot>,
    start: LogStart,
) -> BoxStream<'static, SourceEvent> {
    let follower = LogFollower {
        reader,
        source,
        pod,
        start,
        cursor: Cursor::default(),
        step: Step::NotStarted,
        opened_state: State::default(),
        last_refusal: None,
        retry_delay: MIN_RETRY_DELAY,
    };
    unfold(follower, |mut follower| async move { follower.next().await.map(|event| (event, follower)) }).boxed()
}

impl LogFollower {
    async fn next(&mut self) -> Option<SourceEvent> {
        loop {
            match &mut self.step {
                Step::Ended => return None,
                Step::NotStarted => {
                    if !self.wait_until_started().await {
                        return None;
                    }
                    self.step = Step::Opening;
                    return Some(SourceEvent::Started);
                }
                Step::Opening => {
                    if let Some(refusal) = self.open_log().await {
                        return Some(SourceEvent::Refused(refusal));
                    }
                }
                Step::Reading(log) => {
                    let next = tokio::select! {
                        biased;
                        next = log.next() => next,
                        () = last_lines_timeout(&mut self.pod) => Ok(None),
                    };
                    match next {
                        Ok(Some(line)) => {
                            self.retry_delay = MIN_RETRY_DELAY;
                            if self.cursor.accept(&line) && self.reader.request.lines.matches(&line.text) {
                                return Some(SourceEvent::Line(line));
                            }
                        }
                        // An interrupted log is requested again; the error is sent only if that fails as well.
                        Ok(None) | Err(_) => self.step = Step::RetryWait,
                    }
                }
                Step::RetryWait => match self.wait_before_retry().await {
                    Some(reason) => {
                        self.step = Step::Ended;
                        return Some(SourceEvent::Ended(reason));
                    }
                    None => self.step = Step::Opening,
                },
            }
        }
    }

    fn state(&mut self) -> (PodSnapshot, State) {
        let snapshot = self.pod.borrow_and_update().clone();
        let state = snapshot.pod.state(&self.source.container);
        (snapshot, state)
    }

    /// Waits until the container has started; false if it never will.
    async fn wait_until_started(&mut self) -> bool {
        loop {
            let (snapshot, state) = self.state();
            if state.has_started {
                return true;
            }
            if snapshot.is_removed || snapshot.pod.has_finished || self.pod.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Requests the log. Returns a refusal only if it differs from the last one.
    async fn open_log(&mut self) -> Option<Refusal> {
        (_, self.opened_state) = self.state();
        let start = match self.cursor.resume() {
            Some(last) => LogStart { since: Some(last), tail: None },
            None => self.start,
        };
        let opened = tokio::select! {
            biased;
            opened = self.reader.open(&self.source, start) => opened,
            () = last_lines_timeout(&mut self.pod) => {
                self.step = Step::RetryWait;
                return None;
            }
        };
        match opened {
            Ok(log) => {
                self.last_refusal = None;
                self.step = Step::Reading(Box::new(log));
                None
            }
            Err(refusal) => {
                self.step = Step::RetryWait;
                let previous = self.last_refusal.replace(refusal.clone());
                (previous.as_ref() != Some(&refusal)).then_some(refusal)
            }
        }
    }

    /// Waits until the log can be requested again. Returns the reason if it cannot.
    async fn wait_before_retry(&mut self) -> Option<&'static str> {
        let retry_at = Instant::now() + self.retry_delay;
        loop {
            let (snapshot, state) = self.state();
            if snapshot.is_removed {
                return Some(POD_REMOVED);
            }
            // The container may have written more since, or may have restarted.
            if state != self.opened_state && state.has_started {
                return None;
            }
            if snapshot.pod.has_finished {
                return Some(POD_FINISHED);
            }
            tokio::select! {
                changed = self.pod.changed() => if changed.is_err() {
                    return Some(POD_REMOVED);
                },
                () = tokio::time::sleep_until(retry_at), if state.is_running || self.last_refusal.is_some() => {
                    self.retry_delay = (2 * self.retry_delay).min(MAX_RETRY_DELAY);
                    return None;
                }
            }
        }
    }
}

/// Completes [`LAST_LINES_TIMEOUT`] after the pod was removed.
async fn last_lines_timeout(pod: &mut watch::Receiver<PodSnapshot>) {
    if pod.wait_for(|snapshot| snapshot.is_removed).await.is_err() {
        tracing::trace!("the follower of the pod has ended; treating the pod as removed");
    }
    tokio::time::sleep(LAST_LINES_TIMEOUT).await;
}
