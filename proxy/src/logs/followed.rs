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
use super::select::From;

/// Shortest and longest delay between attempts to read a log that ended while its container runs.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Maximum wait for the last lines of a deleted pod.
const GRACE: Duration = Duration::from_secs(5);

const GONE: &str = "the pod was deleted, no longer matches, or may no longer be read";
const FINISHED: &str = "the pod has finished";

/// Last known state of a pod.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub pod: Pod,
    pub gone: bool,
}

enum Step {
    /// The container has not started yet.
    Waiting,
    Asking,
    Reading(Box<Log>),
    Pausing,
    Over,
}

struct Followed {
    reader: LogReader,
    source: Arc<LogSource>,
    pod: watch::Receiver<Known>,
    from: From,
    cursor: Cursor,
    step: Step,
    joined: bool,
    /// State of the container when its log was requested.
    opened_state: State,
    /// The last refusal sent; it is not repeated.
    refused: Option<Refusal>,
    pause: Duration,
}

/// Follows a log from a start position.
pub fn followed(
    reader: LogReader,
    source: Arc<LogSource>,
    pod: watch::Receiver<Known>,
    from: From,
) -> BoxStream<'static, SourceEvent> {
    let followed = Followed {
        reader,
        source,
        pod,
        from,
        cursor: Cursor::default(),
        step: Step::Waiting,
        joined: false,
        opened_state: State::default(),
        refused: None,
        pause: PAUSES.0,
    };
    unfold(followed, |mut followed| async move { followed.next().await.map(|event| (event, followed)) }).boxed()
}

impl Followed {
    async fn next(&mut self) -> Option<SourceEvent> {
        loop {
            match &mut self.step {
                Step::Over => return None,
                Step::Waiting => {
                    if !self.begun().await {
                        return None;
                    }
                    self.step = Step::Asking;
                    self.joined = true;
                    return Some(SourceEvent::Joined);
                }
                Step::Asking => {
                    if let Some(refusal) = self.ask().await {
                        return Some(SourceEvent::Refused(refusal));
                    }
                }
                Step::Reading(log) => {
                    let next = tokio::select! {
                        biased;
                        next = log.next() => next,
                        () = lost(&mut self.pod) => Ok(None),
                    };
                    match next {
                        Ok(Some(line)) => {
                            self.pause = PAUSES.0;
                            if self.cursor.takes(&line) && self.reader.request.lines.takes(&line.text) {
                                return Some(SourceEvent::Line(line));
                            }
                        }
                        // An interrupted log is requested again; the error is sent only if that fails as well.
                        Ok(None) | Err(_) => self.step = Step::Pausing,
                    }
                }
                Step::Pausing => match self.paused().await {
                    Some(why) => {
                        self.step = Step::Over;
                        return Some(SourceEvent::Left(why));
                    }
                    None => self.step = Step::Asking,
                },
            }
        }
    }

    fn state(&mut self) -> (Known, State) {
        let known = self.pod.borrow_and_update().clone();
        let state = known.pod.state(&self.source.container);
        (known, state)
    }

    /// Waits until the container has started; false if it never will.
    async fn begun(&mut self) -> bool {
        loop {
            let (known, state) = self.state();
            if state.started {
                return true;
            }
            if known.gone || known.pod.finished || self.pod.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Requests the log. Returns a refusal only if it differs from the last one.
    async fn ask(&mut self) -> Option<Refusal> {
        (_, self.opened_state) = self.state();
        let from = match self.cursor.resume() {
            Some(last) => From { since: Some(last), tail: None },
            None => self.from,
        };
        let opened = tokio::select! {
            biased;
            opened = self.reader.open(&self.source, from) => opened,
            () = lost(&mut self.pod) => {
                self.step = Step::Pausing;
                return None;
            }
        };
        match opened {
            Ok(log) => {
                self.refused = None;
                self.step = Step::Reading(Box::new(log));
                None
            }
            Err(refusal) => {
                self.step = Step::Pausing;
                let previous = self.refused.replace(refusal.clone());
                (previous.as_ref() != Some(&refusal)).then_some(refusal)
            }
        }
    }

    /// Waits until the log can be requested again; returns the reason if it never can.
    async fn paused(&mut self) -> Option<&'static str> {
        let again = Instant::now() + self.pause;
        loop {
            let (known, state) = self.state();
            if known.gone {
                return Some(GONE);
            }
            // The container may have written more since, or may have restarted.
            if state != self.opened_state && state.started {
                return None;
            }
            if known.pod.finished {
                return Some(FINISHED);
            }
            tokio::select! {
                changed = self.pod.changed() => if changed.is_err() {
                    return Some(GONE);
                },
                () = tokio::time::sleep_until(again), if state.running || self.refused.is_some() => {
                    self.pause = (2 * self.pause).min(PAUSES.1);
                    return None;
                }
            }
        }
    }
}

/// Completes some time after the pod was deleted.
async fn lost(pod: &mut watch::Receiver<Known>) {
    if pod.wait_for(|known| known.gone).await.is_err() {
        tracing::trace!("the follower of the pod has ended; treating the pod as deleted");
    }
    tokio::time::sleep(GRACE).await;
}
