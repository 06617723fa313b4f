//! Decides when GraphSinks are checked. Has no side effects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crowsnest_api::sink::GraphSink;
use crowsnest_apimachinery::names::NamespacedName;
use tokio::time::Instant;

/// Interval at which a sink is checked again: Secrets, ServiceAccounts and names can change without a change of its
/// spec.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of concurrent checks.
const MAX_CHECKS: usize = 32;
/// Maximum number of concurrent checks of the sinks of one namespace, so that a tenant whose name server does not
/// respond does not delay others.
const MAX_CHECKS_OF_NAMESPACE: usize = 4;

/// Identity and generation of a GraphSink, which change with its spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpecRevision {
    uid: Option<String>,
    generation: Option<i64>,
}

impl SpecRevision {
    pub fn of(sink: &GraphSink) -> Self {
        Self { uid: sink.metadata.uid.clone(), generation: sink.metadata.generation }
    }
}

/// Times at which GraphSinks are checked.
#[derive(Debug, Default)]
pub(super) struct CheckSchedule {
    /// Next checks of sinks whose spec remains the same.
    next_checks: BTreeMap<NamespacedName, NextCheck>,
    /// Sinks that are being checked.
    pending: BTreeSet<NamespacedName>,
    /// Pending checks whose results are discarded.
    outdated: BTreeSet<NamespacedName>,
}

#[derive(Debug)]
struct NextCheck {
    revision: SpecRevision,
    at: Instant,
}

impl CheckSchedule {
    /// Starts the checks that are due, within the limits: new and changed sinks first, then those that are due longest.
    pub fn start_due(&mut self, sinks: &BTreeMap<NamespacedName, GraphSink>, now: Instant) -> Vec<NamespacedName> {
        self.next_checks.retain(|name, _| sinks.contains_key(name));
        let due_since = |(name, sink): (&NamespacedName, &GraphSink)| {
            let unchanged = self.next_checks.get(name).filter(|next| next.revision == SpecRevision::of(sink));
            let at = unchanged.map(|next| next.at);
            (!self.pending.contains(name) && at.is_none_or(|at| at <= now)).then(|| (at, name.clone()))
        };
        let mut due: Vec<(Option<Instant>, NamespacedName)> = sinks.iter().filter_map(due_since).collect();
        due.sort();
        let mut started = Vec::new();
        for (_, name) in due {
            let of_namespace = self.pending.iter().filter(|pending| pending.namespace == name.namespace).count();
            if self.pending.len() < MAX_CHECKS && of_namespace < MAX_CHECKS_OF_NAMESPACE {
                self.pending.insert(name.clone());
                started.push(name);
            }
        }
        started
    }

    /// Ends the check of a sink in this revision. Returns false if its result must be discarded: the sink was changed
    /// or postponed meanwhile. `current` is the sink's current revision.
    pub fn finish(
        &mut self,
        name: &NamespacedName,
        checked: &SpecRevision,
        current: Option<&SpecRevision>,
        now: Instant,
    ) -> bool {
        self.pending.remove(name);
        let is_outdated = self.outdated.remove(name);
        if is_outdated || current != Some(checked) {
            return false;
        }
        self.next_checks.insert(name.clone(), NextCheck { revision: checked.clone(), at: now + CHECK_INTERVAL });
        true
    }

    /// Checks a sink after the usual interval, unless its spec changes. The result of a pending check is discarded.
    pub fn postpone(&mut self, name: &NamespacedName, revision: SpecRevision, now: Instant) {
        self.next_checks.insert(name.clone(), NextCheck { revision, at: now + CHECK_INTERVAL });
        if self.pending.contains(name) {
            self.outdated.insert(name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(namespace: &str, name: &str) -> NamespacedName {
        NamespacedName::new(namespace, name)
    }

    fn sink(generation: i64) -> GraphSink {
        let mut sink = GraphSink::default();
        sink.metadata.generation = Some(generation);
        sink
    }

    fn sinks<'n>(names: impl IntoIterator<Item = &'n NamespacedName>) -> BTreeMap<NamespacedName, GraphSink> {
        names.into_iter().map(|name| (name.clone(), sink(1))).collect()
    }

    #[test]
    fn a_sink_is_checked_when_it_is_new_when_it_changes_and_at_intervals() {
        let (now, graph) = (Instant::now(), name("team", "graph"));
        let (first, second) = (SpecRevision::of(&sink(1)), SpecRevision::of(&sink(2)));
        let mut schedule = CheckSchedule::default();
        let sinks_by_name = sinks([&graph]);
        assert_eq!(schedule.start_due(&sinks_by_name, now), std::slice::from_ref(&graph));
        assert!(schedule.start_due(&sinks_by_name, now).is_empty(), "a check is pending");
        assert!(schedule.finish(&graph, &first, Some(&first), now));
        assert!(schedule.start_due(&sinks_by_name, now).is_empty());
        let changed = BTreeMap::from([(graph.clone(), sink(2))]);
        assert_eq!(schedule.start_due(&changed, now), std::slice::from_ref(&graph));
        assert!(schedule.finish(&graph, &second, Some(&second), now));
        assert_eq!(schedule.start_due(&changed, now + CHECK_INTERVAL), [graph]);
    }

    #[test]
    fn results_for_an_earlier_spec_are_discarded() {
        let (now, graph) = (Instant::now(), name("team", "graph"));
        let (first, second) = (SpecRevision::of(&sink(1)), SpecRevision::of(&sink(2)));
        let mut schedule = CheckSchedule::default();
        schedule.start_due(&sinks([&graph]), now);
        assert!(!schedule.finish(&graph, &first, Some(&second), now));
        assert_eq!(schedule.start_due(&BTreeMap::from([(graph.clone(), sink(2))]), now), std::slice::from_ref(&graph));
        assert!(!schedule.finish(&graph, &second, None, now), "the sink was deleted");
    }

    #[test]
    fn a_postponed_sink_is_checked_later_unless_its_spec_changes() {
        let (now, graph) = (Instant::now(), name("team", "graph"));
        let first = SpecRevision::of(&sink(1));
        let mut schedule = CheckSchedule::default();
        let sinks_by_name = sinks([&graph]);
        schedule.start_due(&sinks_by_name, now);
        schedule.postpone(&graph, first.clone(), now);
        assert!(!schedule.finish(&graph, &first, Some(&first), now), "the check began before");
        assert!(schedule.start_due(&sinks_by_name, now).is_empty());
        assert_eq!(schedule.start_due(&BTreeMap::from([(graph.clone(), sink(2))]), now), std::slice::from_ref(&graph));
        assert!(schedule.finish(&graph, &first, Some(&first), now));
        assert_eq!(schedule.start_due(&sinks_by_name, now + CHECK_INTERVAL), [graph]);
    }

    #[test]
    fn one_namespace_does_not_delay_others() {
        let now = Instant::now();
        let slow: Vec<NamespacedName> = (0..10).map(|number| name("a", &format!("slow-{number}"))).collect();
        let other = name("b", "graph");
        let sinks_by_name = sinks(slow.iter().chain([&other]));
        let mut schedule = CheckSchedule::default();
        let started = schedule.start_due(&sinks_by_name, now);
        assert_eq!(started, [&slow[..MAX_CHECKS_OF_NAMESPACE], std::slice::from_ref(&other)].concat());
        let revision = SpecRevision::of(&sink(1));
        assert!(schedule.finish(&slow[0], &revision, Some(&revision), now));
        assert_eq!(schedule.start_due(&sinks_by_name, now), [slow[MAX_CHECKS_OF_NAMESPACE].clone()]);
    }

    #[test]
    fn the_number_of_concurrent_checks_is_limited() {
        let names: Vec<NamespacedName> = (0..100).map(|number| name(&format!("team-{number}"), "graph")).collect();
        assert_eq!(CheckSchedule::default().start_due(&sinks(&names), Instant::now()).len(), MAX_CHECKS);
    }
}
