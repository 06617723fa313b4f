//! Decides how a session continues a graph. Has no side effects.

use crate::generation::GraphState;
use crate::visibility::RuleDigests;

/// Beginning of a load. A later session of the process can continue the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadStart {
    pub generation: u64,
    /// Time at which the generation began, in Unix milliseconds, as stored in the graph.
    pub started_at_ms: i64,
    /// Seq of the newest change when the load began.
    pub seq: u64,
    /// Digests of the RBAC rules when the load began.
    pub rule_digests: RuleDigests,
}

impl LoadStart {
    /// Position from which a load continues after a read that ended at `next`; None if all of its objects were read.
    ///
    /// A load reads objects in order of their last change. All changes up to `seq` were committed before the load began, so
    /// no object can be added there. An object that is changed or deleted during the load has a later change, which is
    /// followed after the load.
    pub fn next_position(&self, next: Option<u64>) -> Option<u64> {
        next.filter(|next| *next < self.seq)
    }
}

/// A load, and the seq up to which its objects are in the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Load {
    pub start: LoadStart,
    pub position: u64,
}

/// Source and history of this process, with which the state of a graph is compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContinuationInput<'i> {
    pub store: &'i str,
    /// Digest of the selection.
    pub selection: &'i str,
    /// Seq of the newest change of the store.
    pub latest: u64,
    /// True if all objects must be written again.
    pub needs_reload: bool,
    /// The last load that this process began, unless it is complete.
    pub load: Option<&'i LoadStart>,
}

/// Continuation of a graph by a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// Follows the changes after the position of the graph.
    Follow(GraphState),
    /// Continues a load of an earlier session.
    ResumeLoad(GraphState, LoadStart),
    /// Writes everything in a new generation.
    NewGeneration,
}

impl Continuation {
    /// Chooses the continuation by the state of the graph. A load also continues at the position in the graph, not at the
    /// last one known to this process: a transaction may have been committed without a response, and transactions may be
    /// missing in a restored database.
    pub fn new(state: Option<GraphState>, input: ContinuationInput<'_>) -> Self {
        let is_current = |state: &GraphState| {
            !input.needs_reload
                && state.store == input.store
                && state.selection == input.selection
                && state.seq <= input.latest
        };
        let Some(state) = state.filter(is_current) else { return Self::NewGeneration };
        if state.is_complete {
            return Self::Follow(state);
        }
        // Another process may have begun a generation with the same number in a restored database.
        let is_same = |start: &&LoadStart| {
            start.generation == state.generation && state.loaded_at_ms == Some(start.started_at_ms)
        };
        match input.load.filter(is_same).cloned() {
            Some(start) => Self::ResumeLoad(state, start),
            None => Self::NewGeneration,
        }
    }

    /// The state that is continued; None for a new generation.
    pub fn state(&self) -> Option<&GraphState> {
        match self {
            Self::Follow(state) | Self::ResumeLoad(state, _) => Some(state),
            Self::NewGeneration => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::collections::BTreeSet;

    fn state(is_complete: bool) -> GraphState {
        GraphState {
            store: "store".to_owned(),
            selection: "all".to_owned(),
            generation: 3,
            seq: 7,
            is_complete,
            undecided_clusters: BTreeSet::new(),
            rule_digests: None,
            loaded_at_ms: Some(1_000),
        }
    }

    fn start() -> LoadStart {
        LoadStart { generation: 3, started_at_ms: 1_000, seq: 9, rule_digests: RuleDigests::new() }
    }

    fn input(load: Option<&LoadStart>) -> ContinuationInput<'_> {
        ContinuationInput { store: "store", selection: "all", latest: 12, needs_reload: false, load }
    }

    #[rstest]
    #[case::complete(state(true), "follow")]
    #[case::interrupted(state(false), "resume")]
    #[case::of_another_store(GraphState { store: "other".to_owned(), ..state(true) }, "new")]
    #[case::of_another_selection(GraphState { selection: "other".to_owned(), ..state(false) }, "new")]
    #[case::newer_than_the_store(GraphState { seq: 13, ..state(true) }, "new")]
    #[case::generation_of_another_process(GraphState { generation: 4, ..state(false) }, "new")]
    #[case::restored_database(GraphState { loaded_at_ms: Some(900), ..state(false) }, "new")]
    #[case::time_unknown(GraphState { loaded_at_ms: None, ..state(false) }, "new")]
    fn the_state_of_the_graph_decides(#[case] state: GraphState, #[case] expected: &str) {
        let start = start();
        let continuation = Continuation::new(Some(state), input(Some(&start)));
        let name = match continuation {
            Continuation::Follow(_) => "follow",
            Continuation::ResumeLoad(..) => "resume",
            Continuation::NewGeneration => "new",
        };
        assert_eq!(name, expected);
    }

    #[rstest]
    #[case::new_graph(None, false, true)]
    #[case::reload(Some(state(true)), true, true)]
    #[case::reload_of_an_interrupted_load(Some(state(false)), true, true)]
    #[case::load_of_an_earlier_process(Some(state(false)), false, false)]
    fn a_new_generation_begins_if_nothing_can_be_continued(
        #[case] state: Option<GraphState>,
        #[case] needs_reload: bool,
        #[case] has_load: bool,
    ) {
        let start = start();
        let input = ContinuationInput { needs_reload, ..input(has_load.then_some(&start)) };
        assert_eq!(Continuation::new(state, input), Continuation::NewGeneration);
    }

    #[rstest]
    #[case::more_objects(Some(8), Some(8))]
    #[case::last_object(Some(9), None)]
    #[case::changed_during_the_load(Some(10), None)]
    #[case::no_more_objects(None, None)]
    fn a_load_ends_at_the_change_at_which_it_began(#[case] next: Option<u64>, #[case] expected: Option<u64>) {
        assert_eq!(start().next_position(next), expected);
    }
}
