//! Conditions as queries of an engine.

use crate::opensearch::dsl::{DslError, TranslationInputs, phrase_ends, translate};
use crate::opensearch::model::{Key, Keyword, Match, Number, Test};
use crate::opensearch::order::Order;
use crate::plan::{PlanningContext, plan};
use crowsnest_query::{Limits, parse};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn plan_matches(query: &str) -> Match {
    plan(
        &parse(query, &Limits::default()).unwrap(),
        &PlanningContext { now: 1_790_000_000, ..PlanningContext::default() },
    )
    .matches
}

/// Queries of the language, by the feature that they show.
const QUERIES: [(&str, &str); 34] = [
    ("nothing", ""),
    ("equals", "name:Web-0"),
    ("one of", "ns:shop,team status:Running"),
    ("exact", "status:=Running"),
    ("has", "image:*"),
    ("part", "image:nginx:1.27"),
    ("regex", "name:/^(web|api)-[0-9]+$/"),
    ("glob", "name:we?-*"),
    ("refused regex", "name:/a$b/"),
    ("near", "name:checkuot~2"),
    ("near, short", "name:ab~1"),
    ("number", "restarts:>3"),
    ("number, one", "ready:1"),
    ("not this number", "restarts:!=3"),
    ("age", "age:<1h"),
    ("content", "content:\"host Network\" content:ab"),
    ("message, one word", "message:back"),
    ("message, phrase", "message:\"back-off restarting fail\""),
    ("message, ends short", "message:\"back-off re\""),
    ("bare", "web"),
    ("bare, short", "we"),
    ("bare, with a slash", "shop/web-0"),
    ("bare glob", "*shop/we*"),
    ("bare fuzzy", "checkuot~1"),
    ("mixed", "web OR kind:pod -ns:shop"),
    ("label", "label:app=web label:!canary"),
    ("label glob", "label:a*=w*"),
    ("path", ".spec.replicas:3"),
    ("path exists", ".metadata.labels[app.kubernetes.io/name]:*"),
    ("path compares", ".spec.replicas:>=3"),
    ("path between", ".spec.replicas:1..5"),
    ("path, not", "-.spec.paused:true web"),
    ("path by place", ".spec.containers[0].image:nginx*"),
    ("path, exactly", ".spec.strategy.type:=Recreate"),
];

/// Conditions that no query leads to directly, or only after its relations were resolved.
fn leaves() -> Vec<(&'static str, Match)> {
    let numbers = |numbers: &[u64]| Arc::new(numbers.iter().copied().collect::<BTreeSet<_>>());
    vec![
        ("no hits", Match::None),
        ("clusters", Match::Clusters(["m1", "m2"].map(str::to_owned).into())),
        ("no clusters", Match::Clusters(BTreeSet::new())),
        ("keys", Match::keys(&[Key::Owner, Key::Uses], [1, u64::MAX].into())),
        ("ids", Match::Ids(numbers(&[1, 2])).negated()),
        ("because", Match::WithReason("has".into(), "x".into(), Box::new(plan_matches("web")))),
        ("changed, unresolved", Match::Changed("spec".into())),
        ("relation, unresolved", plan_matches("related:deploy/web depth:2")),
        ("number without ends", Match::Number(Number::Ready, None, None)),
        ("number from behind its end", Match::Number(Number::Ready, Some(2), Some(1))),
        ("beginning within edits", Match::Keyword(Keyword::Name, Test::Fuzzy("web".into(), 1, true))),
        ("long part", Match::Keyword(Keyword::Name, Test::Contains("x".repeat(129)))),
        ("no words", Match::Message(Vec::new())),
        ("long chunk", Match::Message(vec!["a".repeat(129), "b".into()])),
    ]
}

/// Adds the kinds of conditions in a plan.
fn collect_kinds(matches: &Match, kinds: &mut BTreeSet<String>) {
    let found = std::cell::RefCell::new(BTreeSet::new());
    matches.contains(&|part| {
        let text = format!("{part:?}");
        found.borrow_mut().insert(text.split(['(', ' ']).next().unwrap().to_owned());
        false
    });
    kinds.extend(found.into_inner());
}

#[test]
fn every_condition_is_a_query() {
    let (mut shown, mut covered) = (BTreeMap::new(), BTreeSet::new());
    for (name, matches) in QUERIES.map(|(name, query)| (name, plan_matches(query))).into_iter().chain(leaves()) {
        collect_kinds(&matches, &mut covered);
        let translated = translate(&matches, &TranslationInputs::default()).unwrap();
        let mut golden = json!({"query": translated.query.to_scored_json()});
        if let Some(examine) = translated.candidates {
            golden["examine"] = examine.filter();
        }
        if !translated.notices.is_empty() {
            golden["notices"] = translated.notices.into_iter().map(Value::from).collect();
        }
        shown.insert(name, golden);
    }
    let all = [
        "All",
        "None",
        "And",
        "Or",
        "Not",
        "Keyword",
        "Exact",
        "Number",
        "Content",
        "Message",
        "Bare",
        "BareRegex",
        "Fuzzy",
        "Clusters",
        "Path",
        "Relation",
        "Changed",
        "Keys",
        "Ids",
        "WithReason",
    ];
    assert_eq!(covered, all.map(str::to_owned).into());
    insta::assert_yaml_snapshot!("queries", shown);
}

#[test]
fn phrases_with_too_many_expansions_match_in_any_order() {
    let matches = plan_matches("message:\"back-off restart\" OR \"pulling ima\" OR message:one");
    let ends = phrase_ends(&matches);
    assert_eq!(ends, ["ima", "restart"].map(str::to_owned).into());
    let inputs = TranslationInputs { broad_phrase_ends: ["restart".to_owned()].into(), ..TranslationInputs::default() };
    let translated = translate(&matches, &inputs).unwrap();
    assert_eq!(translated.notices.len(), 1, "{:?}", translated.notices);
    let text = translated.query.filter().to_string();
    assert!(
        text.contains(r#"{"prefix":{"message":"restart"}}"#) && text.contains(r#""query":"pulling\nima""#),
        "{text}"
    );
}

#[test]
fn excessive_queries_are_refused() {
    let words = (0..256).map(|nth| format!("w{nth}")).collect::<Vec<_>>().join(" OR ");
    let refused = |matches: &Match| translate(matches, &TranslationInputs::default()).unwrap_err();
    assert_eq!(refused(&plan_matches(&words)), DslError::Clauses(256 * 5));
    let deep = (0..30).fold(plan_matches("web"), |inner, nth| match nth % 2 {
        0 => Match::Or(vec![inner, plan_matches("ns:a")]),
        _ => Match::And(vec![inner, plan_matches("ns:b")]),
    });
    assert_eq!(refused(&deep), DslError::Depth(31));
    let ids = Match::Ids(Arc::new((0..=crate::opensearch::template::MAX_TERMS as u64).collect()));
    assert!(matches!(refused(&ids), DslError::Terms(_)));
    // Values of one column are one clause.
    let values = (0..256).map(|nth| format!("ns:n{nth}")).collect::<Vec<_>>().join(" OR ");
    assert_eq!(translate(&plan_matches(&values), &TranslationInputs::default()).unwrap().query.clauses(), 1);
}

#[test]
fn examined_records_are_added() {
    let matches = plan_matches("web .spec.replicas:3");
    let inputs = TranslationInputs { examined: Some(Arc::new([7].into())), ..TranslationInputs::default() };
    let translated = translate(&matches, &inputs).unwrap();
    let order = Order::new(&[crate::opensearch::model::Sort::RELEVANCE], &PlanningContext::default()).unwrap();
    insta::assert_yaml_snapshot!("examined", order.query(&translated.query, None));
}
