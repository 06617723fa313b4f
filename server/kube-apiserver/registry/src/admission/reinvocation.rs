//! The second round of mutating admission, as kube-apiserver goes it: when webhooks or policies changed an object, the whole
//! chain mutates once more, and of webhooks and policies those that asked for it and saw the object before it changed.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use serde_json::Value;

/// What one write's mutating admission has come to.
#[derive(Debug, Default)]
pub struct Reinvocation(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    second: bool,
    wanted: bool,
    steps: BTreeMap<&'static str, Step>,
}

/// Of the webhooks, or of the policies.
#[derive(Debug, Default)]
struct Step {
    /// The object as this step left it.
    left: Option<Value>,
    /// Who may be asked again, and was asked since the last change.
    asked: BTreeSet<String>,
    /// Who is asked in the second round.
    again: BTreeSet<String>,
}

impl Step {
    fn changed(&mut self) {
        self.again.append(&mut self.asked);
    }
}

impl Reinvocation {
    /// Whether there is to be a second round, which begins by this; there is no third.
    pub fn begin_second(&self) -> bool {
        let mut state = self.0.lock();
        let begins = state.wanted && !state.second;
        state.second |= begins;
        begins
    }

    /// A step begins.
    pub fn enter(&self, step: &'static str, object: Option<&Value>) {
        let mut state = self.0.lock();
        let second = state.second;
        let step = state.steps.entry(step).or_default();
        if second && step.left.as_ref() != object {
            step.changed();
        }
    }

    /// Whether somebody of a step is asked in this round.
    pub fn asks(&self, step: &'static str, who: &str) -> bool {
        let state = self.0.lock();
        !state.second || state.steps.get(step).is_some_and(|step| step.again.contains(who))
    }

    /// Somebody of a step was asked.
    pub fn asked(&self, step: &'static str, who: &str, changed: bool, may_be_asked_again: bool) {
        let mut state = self.0.lock();
        state.wanted |= changed;
        let step = state.steps.entry(step).or_default();
        if changed {
            step.changed();
        }
        if may_be_asked_again {
            step.asked.insert(who.to_owned());
        }
    }

    /// A step ends.
    pub fn leave(&self, step: &'static str, object: Option<&Value>) {
        self.0.lock().steps.entry(step).or_default().left = object.cloned();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_saw_the_object_before_it_changed_is_asked_again() {
        let round = Reinvocation::default();
        let (before, after) = (json!({"a": 1}), json!({"a": 2}));
        round.enter("webhooks", Some(&before));
        round.asked("webhooks", "first", false, true);
        round.asked("webhooks", "never", false, false);
        round.asked("webhooks", "changes", true, true);
        round.leave("webhooks", Some(&after));
        assert!(round.begin_second());
        round.enter("webhooks", Some(&after));
        let asked = ["first", "never", "changes"].map(|who| round.asks("webhooks", who));
        assert_eq!(asked, [true, false, false]);
        assert!(!round.begin_second(), "there is no third round");
    }

    #[test]
    fn what_other_steps_change_is_seen_too() {
        let round = Reinvocation::default();
        let object = json!({"a": 1});
        round.enter("policies", Some(&object));
        round.asked("policies", "p", false, true);
        round.leave("policies", Some(&object));
        assert!(!round.begin_second(), "nothing changed");
        round.asked("webhooks", "w", true, false);
        assert!(round.begin_second());
        round.enter("policies", Some(&json!({"a": 2})));
        assert!(round.asks("policies", "p"));
        assert!(!round.asks("policies", "q"));
    }
}
