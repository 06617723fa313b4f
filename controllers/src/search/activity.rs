//! Work of the active process: one replica does it, and stops when another one becomes active.

use std::future::{Future, pending};

use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;

/// Work that only the active process does.
pub(super) trait ActiveWork: Send {
    /// Runs until its input has ended.
    fn run(&mut self) -> impl Future<Output = ()> + Send;

    /// Ends the tasks of the work, and removes its metrics.
    fn shut_down(self) -> impl Future<Output = ()> + Send;
}

/// Runs the work while the last item of `activity` is true. Returns after `stop` is cancelled, or `activity` or the
/// work has ended.
pub(super) async fn run_while_active<W: ActiveWork>(
    activity: impl Stream<Item = bool> + Send,
    stop: CancellationToken,
    start: impl Fn() -> W + Send,
) {
    let mut activity = std::pin::pin!(activity);
    let mut is_active = false;
    loop {
        let mut work = is_active.then(&start);
        // The next item that differs from `is_active`, or `None` at the end of `activity`.
        let next = async {
            loop {
                match activity.next().await {
                    Some(next) if next == is_active => {}
                    other => return other,
                }
            }
        };
        let next = tokio::select! {
            () = stop.cancelled() => None,
            next = next => next,
            () = async {
                match &mut work {
                    Some(work) => work.run().await,
                    None => pending().await,
                }
            } => None,
        };
        if let Some(work) = work {
            work.shut_down().await;
        }
        match next {
            Some(next) => is_active = next,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::stream;
    use parking_lot::Mutex;
    use rstest::rstest;

    use super::*;

    /// Work that records its begin and end.
    struct RecordedWork {
        events: Arc<Mutex<Vec<&'static str>>>,
        ends: bool,
    }

    impl ActiveWork for RecordedWork {
        async fn run(&mut self) {
            if !self.ends {
                pending::<()>().await;
            }
        }

        async fn shut_down(self) {
            self.events.lock().push("end");
        }
    }

    #[rstest]
    #[case::never(&[false, false], false, &[])]
    #[case::once(&[false, true, true, false], false, &["begin", "end"])]
    #[case::twice(&[true, false, true], false, &["begin", "end", "begin", "end"])]
    #[case::work_that_ends(&[true], true, &["begin", "end"])]
    #[tokio::test]
    async fn work_is_done_while_the_process_is_active(
        #[case] activity: &'static [bool],
        #[case] ends: bool,
        #[case] expected: &[&str],
    ) {
        let events = Arc::<Mutex<Vec<&str>>>::default();
        let start = || {
            events.lock().push("begin");
            RecordedWork { events: Arc::clone(&events), ends }
        };
        // Work that ends by itself ends before the activity does.
        let activity = stream::iter(activity.iter().copied());
        match ends {
            true => run_while_active(activity.chain(stream::pending()), CancellationToken::new(), start).await,
            false => run_while_active(activity, CancellationToken::new(), start).await,
        }
        assert_eq!(*events.lock(), expected);
    }

    #[tokio::test]
    async fn a_stop_ends_the_work() {
        let events = Arc::<Mutex<Vec<&str>>>::default();
        let stop = CancellationToken::new();
        let start = || {
            // The next poll sees the cancellation.
            stop.cancel();
            RecordedWork { events: Arc::clone(&events), ends: false }
        };
        run_while_active(stream::iter([true]).chain(stream::pending()), stop.clone(), start).await;
        assert_eq!(*events.lock(), ["end"]);
    }
}
