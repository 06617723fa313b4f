//! Property tests of selectors: they match like Kubernetes, and any text is handled.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::{FieldSelector, Selector};

/// A requirement with its expected meaning.
#[derive(Debug, Clone)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[ab]", "[xy1]{0,2}", 0..3)
}

/// Requirements in their string form, with the expected meaning.
fn requirement() -> impl Strategy<Value = (String, Requirement)> {
    let (key, value) = ("[ab]", "[xy1]{1,2}");
    let values = || prop::collection::btree_set("[xy1]{1,2}", 1..3);
    let joined = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
    prop_oneof![
        (key, value, prop::sample::select(vec!["=", "==", " = "]))
            .prop_map(|(k, v, is)| (format!("{k}{is}{v}"), Requirement::In(k, BTreeSet::from([v])))),
        (key, value).prop_map(|(k, v)| (format!("{k}!={v}"), Requirement::NotIn(k, BTreeSet::from([v])))),
        (key, values()).prop_map(move |(k, v)| (format!("{k} in ({})", joined(&v)), Requirement::In(k, v))),
        (key, values()).prop_map(move |(k, v)| (format!("{k} notin ({})", joined(&v)), Requirement::NotIn(k, v))),
        key.prop_map(|k| (k.clone(), Requirement::Exists(k))),
        key.prop_map(|k| (format!("!{k}"), Requirement::Absent(k))),
        (key, 0..30_i64).prop_map(|(k, n)| (format!("{k}>{n}"), Requirement::Greater(k, n))),
        (key, 0..30_i64).prop_map(|(k, n)| (format!("{k}<{n}"), Requirement::Less(k, n))),
    ]
}

/// True if the labels satisfy a requirement by Kubernetes' definition.
fn is_satisfied(requirement: &Requirement, labels: &BTreeMap<String, String>) -> bool {
    let number = |key: &String| labels.get(key).and_then(|value| value.parse::<i64>().ok());
    match requirement {
        Requirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
        Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
        Requirement::Exists(key) => labels.contains_key(key),
        Requirement::Absent(key) => !labels.contains_key(key),
        Requirement::Greater(key, n) => number(key).is_some_and(|value| value > *n),
        Requirement::Less(key, n) => number(key).is_some_and(|value| value < *n),
    }
}

proptest! {
    #[test]
    fn selectors_match_like_their_requirements(all in prop::collection::vec(requirement(), 0..4), labels in labels()) {
        let text = all.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(",");
        let selector = Selector::parse(&text).unwrap();
        let expected = all.iter().all(|(_, requirement)| is_satisfied(requirement, &labels));
        prop_assert_eq!(selector.matches_json(Some(&json!(labels))), expected, "{}", text);
        let printed = Selector::parse(&selector.to_string()).unwrap();
        prop_assert_eq!(printed.matches_json(Some(&json!(labels))), expected, "{} printed as {}", text, selector);
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in prop_oneof!["[ab=!(),<> in\\\\]{0,24}", any::<String>()]) {
        if let Ok(selector) = Selector::parse(&text) {
            selector.matches_json(Some(&json!({"a": "b"})));
            prop_assert!(Selector::parse(&selector.to_string()).is_ok(), "{} of {}", selector, text);
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            selector.matches_with(|_| None);
        }
    }
}
