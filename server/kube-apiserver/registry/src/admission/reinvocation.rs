//! Reinvocation of mutating admission, as in kube-apiserver: when a webhook or policy has changed the object, the
//! chain runs a second time. Webhooks and policies run again only if their `reinvocationPolicy` is `IfNeeded` and
//! the object has changed since their first call.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use serde_json::Value;

/// Reinvocation state of one write.
#[derive(Debug, Default)]
pub struct Reinvocation(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_second_round: bool,
    /// True after a change of the object.
    has_changed: bool,
    steps: BTreeMap<&'static str, Step>,
}

/// State of one step: the webhooks, or the policies.
#[derive(Debug, Default)]
struct Step {
    /// The object after this step.
    result: Option<Value>,
    /// Webhooks or policies with `IfNeeded` that have been called since the last change.
    invoked: BTreeSet<String>,
    /// Webhooks or policies to be called in the second round.
    to_reinvoke: BTreeSet<String>,
}

impl Step {
    fn schedule_reinvocation(&mut self) {
        self.to_reinvoke.append(&mut self.invoked);
    }
}

impl Reinvocation {
    /// Starts the second round if it is necessary. There is no third round.
    pub fn begin_second(&self) -> bool {
        let mut state = self.0.lock();
        let should_begin = state.has_changed && !state.is_second_round;
        state.is_second_round |= should_begin;
        should_begin
    }

    /// The current round: 0, or 1 for the second.
    pub fn round(&self) -> u8 {
        u8::from(self.0.lock().is_second_round)
    }

    /// Records the object at the start of a step.
    pub fn enter(&self, step: &'static str, object: Option<&Value>) {
        let mut state = self.0.lock();
        let is_second_round = state.is_second_round;
        let step = state.steps.entry(step).or_default();
        if is_second_round && step.result.as_ref() != object {
            step.schedule_reinvocation();
        }
    }

    /// True if this webhook or policy is called in the current round.
    pub fn should_invoke(&self, step: &'static str, name: &str) -> bool {
        let state = self.0.lock();
        !state.is_second_round || state.steps.get(step).is_some_and(|step| step.to_reinvoke.contains(name))
    }

    /// Records the call of a webhook or policy, and whether it changed the object.
    pub fn record_invocation(&self, step: &'static str, name: &str, changed: bool, is_reinvocable: bool) {
        let mut state = self.0.lock();
        state.has_changed |= changed;
        let step = state.steps.entry(step).or_default();
        if changed {
            step.schedule_reinvocation();
        }
        if is_reinvocable {
            step.invoked.insert(name.to_owned());
        }
    }

    /// Records the object at the end of a step.
    pub fn leave(&self, step: &'static str, object: Option<&Value>) {
        self.0.lock().steps.entry(step).or_default().result = object.cloned();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reinvocable_webhooks_run_again_after_a_change() {
        let round = Reinvocation::default();
        let (before, after) = (json!({"a": 1}), json!({"a": 2}));
        round.enter("webhooks", Some(&before));
        round.record_invocation("webhooks", "first", false, true);
        round.record_invocation("webhooks", "never", false, false);
        round.record_invocation("webhooks", "changes", true, true);
        round.leave("webhooks", Some(&after));
        assert_eq!((round.round(), round.begin_second(), round.round()), (0, true, 1));
        round.enter("webhooks", Some(&after));
        let reinvoked = ["first", "never", "changes"].map(|name| round.should_invoke("webhooks", name));
        assert_eq!(reinvoked, [true, false, false]);
        assert!(!round.begin_second(), "there is no third round");
    }

    #[test]
    fn changes_of_other_steps_trigger_reinvocation() {
        let round = Reinvocation::default();
        let object = json!({"a": 1});
        round.enter("policies", Some(&object));
        round.record_invocation("policies", "p", false, true);
        round.leave("policies", Some(&object));
        assert!(!round.begin_second(), "nothing changed");
        round.record_invocation("webhooks", "w", true, false);
        assert!(round.begin_second());
        round.enter("policies", Some(&json!({"a": 2})));
        assert!(round.should_invoke("policies", "p"));
        assert!(!round.should_invoke("policies", "q"));
    }
}
