//! One container's log for as long as its pod is there: through restarts and broken connections, no line twice.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt, unfold};
use tokio::sync::watch;
use tokio::time::Instant;

use super::LogSource;
use super::line::Cursor;
use super::pod::{Pod, State};
use super::read::{Log, Reach, Refusal, Said};
use super::select::From;

/// Between two tries of a log that ended while its container runs.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// What a pod that is gone said last is still on its way.
const GRACE: Duration = Duration::from_secs(5);

const GONE: &str = "the pod was deleted, does not match any more, or may not be read";
const FINISHED: &str = "the pod has finished";

/// What is known of a pod.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub pod: Pod,
    pub gone: bool,
}

enum Step {
    /// The container has not begun yet.
    Waiting,
    Asking,
    Reading(Box<Log>),
    Pausing,
    Over,
}

struct Followed {
    reach: Reach,
    source: Arc<LogSource>,
    pod: watch::Receiver<Known>,
    from: From,
    cursor: Cursor,
    step: Step,
    joined: bool,
    /// How the container was when its log was asked for.
    asked_of: State,
    /// Told, and not to be told again.
    refused: Option<Refusal>,
    pause: Duration,
}

/// Follows a log from somewhere.
pub fn followed(
    reach: Reach,
    source: Arc<LogSource>,
    pod: watch::Receiver<Known>,
    from: From,
) -> BoxStream<'static, Said> {
    let followed = Followed {
        reach,
        source,
        pod,
        from,
        cursor: Cursor::default(),
        step: Step::Waiting,
        joined: false,
        asked_of: State::default(),
        refused: None,
        pause: PAUSES.0,
    };
    unfold(followed, |mut followed| async move { followed.next().await.map(|said| (said, followed)) }).boxed()
}

impl Followed {
    async fn next(&mut self) -> Option<Said> {
        loop {
            match &mut self.step {
                Step::Over => return None,
                Step::Waiting => {
                    if !self.begun().await {
                        return None;
                    }
                    self.step = Step::Asking;
                    self.joined = true;
                    return Some(Said::Joined);
                }
                Step::Asking => {
                    if let Some(refusal) = self.ask().await {
                        return Some(Said::Refused(refusal));
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
                            if self.cursor.takes(&line) && self.reach.request.lines.takes(&line.text) {
                                return Some(Said::Line(line));
                            }
                        }
                        // One that broke off is asked for again, and says so when that does not help.
                        Ok(None) | Err(_) => self.step = Step::Pausing,
                    }
                }
                Step::Pausing => match self.paused().await {
                    Some(why) => {
                        self.step = Step::Over;
                        return Some(Said::Left(why));
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

    /// Waits until the container has begun; false: it never will.
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

    /// Asks for the log; tells a refusal that was not told before.
    async fn ask(&mut self) -> Option<Refusal> {
        (_, self.asked_of) = self.state();
        let from = match self.cursor.resume() {
            Some(last) => From { since: Some(last), tail: None },
            None => self.from,
        };
        let asked = tokio::select! {
            biased;
            asked = self.reach.ask(&self.source, from) => asked,
            () = lost(&mut self.pod) => {
                self.step = Step::Pausing;
                return None;
            }
        };
        match asked {
            Ok(log) => {
                self.refused = None;
                self.step = Step::Reading(Box::new(log));
                None
            }
            Err(refusal) => {
                self.step = Step::Pausing;
                let told = self.refused.replace(refusal.clone());
                (told.as_ref() != Some(&refusal)).then_some(refusal)
            }
        }
    }

    /// Waits until it is worth asking again; or says why it will never be.
    async fn paused(&mut self) -> Option<&'static str> {
        let again = Instant::now() + self.pause;
        loop {
            let (known, state) = self.state();
            if known.gone {
                return Some(GONE);
            }
            // It may have said more since, or runs anew.
            if state != self.asked_of && state.started {
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

/// The pod is gone, and has been for a while.
async fn lost(pod: &mut watch::Receiver<Known>) {
    if pod.wait_for(|known| known.gone).await.is_err() {
        tracing::trace!("nobody follows the pod any more, which is the same");
    }
    tokio::time::sleep(GRACE).await;
}
