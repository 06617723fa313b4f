//! Converts the writer's progress for the status of the cache.

use crate::engine::{RefusedDocument, WriterState, WriterStatus};
use crate::opensearch::writer::{ChangeSource, State, Writer};
use crowsnest_store::Seq;

impl<S: ChangeSource> Writer<S> {
    pub(super) fn report(&self) -> WriterStatus {
        let progress = self.progress();
        let refused = self.dead_letters().into_iter();
        WriterStatus {
            index: progress.index,
            state: match progress.state {
                State::Connecting => WriterState::Connecting,
                State::Following => WriterState::Following,
                State::Rebuilding => WriterState::Rebuilding,
                State::Standby => WriterState::Standby,
                State::Waiting { .. } => WriterState::Waiting,
            },
            position: Seq(progress.position),
            written: progress.written,
            superseded: progress.superseded,
            retried: progress.retried,
            refused: progress.dead_letters,
            rebuilds: progress.rebuilds,
            refused_documents: refused
                .map(|letter| RefusedDocument { id: letter.id, seq: Seq(letter.seq), reason: letter.reason })
                .collect(),
            rounds: progress.rounds,
            round_microseconds: progress.round_microseconds,
        }
    }
}
