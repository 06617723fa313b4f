//! Merges several logs in the order of their timestamps. Holds at most one line of each.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::stream::{FuturesUnordered, unfold};
use futures::{FutureExt, Stream, StreamExt};
use jiff::Timestamp;

/// An item with a timestamp.
pub trait Timed {
    /// Time of the item; `None` means that of the item before it.
    fn time(&self) -> Option<Timestamp>;
}

struct Merger<S: Stream> {
    /// Streams whose next item is not available yet.
    waiting: FuturesUnordered<Next<S>>,
    /// The next item of each other stream, by stream number.
    heads: Vec<Option<(S::Item, S)>>,
    /// Their order: by time, then by number.
    order: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// The time of the last item of each stream.
    reached: Vec<Timestamp>,
}

/// The next item of a stream, with the stream.
struct Next<S> {
    number: usize,
    stream: Option<S>,
}

impl<S: Stream + Unpin> Future for Next<S> {
    type Output = (usize, Option<(S::Item, S)>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        let item = ready!(stream.poll_next_unpin(context));
        let stream = self.stream.take();
        Poll::Ready((self.number, item.zip(stream)))
    }
}

/// Merges streams that are ordered by time. Yields each item with the number of its stream.
pub fn merge_by_time<S>(streams: Vec<S>) -> impl Stream<Item = (usize, S::Item)>
where
    S: Stream + Unpin,
    S::Item: Timed,
{
    let mut merger = Merger {
        waiting: FuturesUnordered::new(),
        heads: streams.iter().map(|_| None).collect(),
        order: BinaryHeap::new(),
        reached: vec![Timestamp::MIN; streams.len()],
    };
    for (number, stream) in streams.into_iter().enumerate() {
        merger.wait(number, stream);
    }
    unfold(merger, |mut merger| async move { merger.next().await.map(|item| (item, merger)) })
}

impl<S> Merger<S>
where
    S: Stream + Unpin,
    S::Item: Timed,
{
    async fn next(&mut self) -> Option<(usize, S::Item)> {
        // The first item is known once every stream has an item or has ended.
        while let Some((number, next)) = self.waiting.next().await {
            if let Some((item, stream)) = next {
                self.insert(number, item, stream);
            }
        }
        let Reverse((_, number)) = self.order.pop()?;
        let (item, mut stream) = self.heads.get_mut(number)?.take()?;
        match stream.next().now_or_never() {
            Some(Some(next)) => self.insert(number, next, stream),
            Some(None) => {}
            None => self.wait(number, stream),
        }
        Some((number, item))
    }

    fn wait(&mut self, number: usize, stream: S) {
        self.waiting.push(Next { number, stream: Some(stream) });
    }

    fn insert(&mut self, number: usize, item: S::Item, stream: S) {
        let (Some(reached), Some(head)) = (self.reached.get_mut(number), self.heads.get_mut(number)) else { return };
        *reached = item.time().unwrap_or(*reached);
        self.order.push(Reverse((*reached, number)));
        *head = Some((item, stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream::{self, BoxStream};
    use proptest::prelude::*;

    impl Timed for (Option<i64>, usize) {
        fn time(&self) -> Option<Timestamp> {
            self.0.and_then(|second| Timestamp::from_second(second).ok())
        }
    }

    /// A stream in which every `pause`-th item is delayed.
    fn slow(items: Vec<(Option<i64>, usize)>, pause: usize) -> BoxStream<'static, (Option<i64>, usize)> {
        let items = items.into_iter().enumerate();
        let wait = move |(nth, item): (usize, (Option<i64>, usize))| async move {
            if nth % pause == 0 {
                tokio::task::yield_now().await;
            }
            item
        };
        stream::iter(items).then(wait).boxed()
    }

    proptest! {
        /// Merging sorted logs equals sorting all their lines, and keeps the order within each log.
        #[test]
        fn merged_logs_are_sorted_by_time(
            logs in proptest::collection::vec((proptest::collection::vec(0..20_i64, 0..30), 1..4_usize), 0..8)
        ) {
            let logs: Vec<(Vec<(Option<i64>, usize)>, usize)> = logs.into_iter().map(|(mut times, pause)| {
                times.sort_unstable();
                (times.into_iter().enumerate().map(|(nth, time)| (Some(time), nth)).collect(), pause)
            }).collect();
            let mut sorted: Vec<(Option<i64>, usize, usize)> = Vec::new();
            for (number, (log, _)) in logs.iter().enumerate() {
                sorted.extend(log.iter().map(|(time, nth)| (*time, number, *nth)));
            }
            sorted.sort_unstable();
            let streams = logs.into_iter().map(|(log, pause)| slow(log, pause)).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let merged: Vec<_> = runtime.block_on(merge_by_time(streams).collect());
            let order: Vec<_> = merged.into_iter().map(|(number, (time, nth))| (time, number, nth)).collect();
            prop_assert_eq!(order, sorted);
        }
    }

    #[tokio::test]
    async fn lines_without_a_timestamp_keep_their_position() {
        let first_log = vec![(None, 0), (Some(1), 1), (None, 2), (Some(5), 3)];
        let second_log = vec![(Some(2), 0), (Some(3), 1)];
        let order: Vec<_> = merge_by_time(vec![slow(first_log, 1), slow(second_log, 2)])
            .map(|(number, (_, nth))| (number, nth))
            .collect()
            .await;
        assert_eq!(order, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 3)]);
    }
}
