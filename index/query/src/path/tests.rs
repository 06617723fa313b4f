//! Tests of the parser and printer: accepted forms, errors with byte offsets, and round trips.

use super::*;
use proptest::prelude::*;
use rstest::rstest;

fn canonical(text: &str) -> String {
    text.parse::<PathPattern>().map_or_else(|error| error.to_string(), |pattern| pattern.to_string())
}

#[rstest]
#[case::node("(:Pod)", "(:Pod)")]
#[case::any("()", "()")]
#[case::variable("(p)", "(p)")]
#[case::properties(r#"(p:Pod {namespace: 'shop', name: "web-0"})"#, r#"(p:Pod {name: "web-0", namespace: "shop"})"#)]
#[case::properties_alone("({uid:'u'})", r#"({uid: "u"})"#)]
#[case::escapes(r#"(:Pod {q: "message:\"a\\b\""})"#, r#"(:Pod {q: "message:\"a\\b\""})"#)]
#[case::group("(:`Deployment.apps`)", r#"(:Deployment {apiGroup: "apps"})"#)]
#[case::right("(:A)-[:OWNS]->(:B)", "(:A)-[:OWNS]->(:B)")]
#[case::left("(:A)<-[r:USES]-(:B)", "(:A)<-[r:USES]-(:B)")]
#[case::both("(:A)-[:USES]-(:B)", "(:A)-[:USES]-(:B)")]
#[case::both_heads("(:A)<-[:USES]->(:B)", "(:A)-[:USES]-(:B)")]
#[case::bare_arrows("(:A)-->(:B)<--(:C)--(:D)", "(:A)-[]->(:B)<-[]-(:C)-[]-(:D)")]
#[case::types("(:A)-[:USES|:OWNS | ROUTES_TO]->()", "(:A)-[:OWNS|ROUTES_TO|USES]->()")]
#[case::steps("(:A)-[*]->()-[:OWNS*..2]->()", "(:A)-[*1..5]->()-[:OWNS*1..2]->()")]
#[case::exact_steps("(:A)-[*3]->()-[*0..1]->()", "(:A)-[*3]->()-[*0..1]->()")]
#[case::from_steps("(:A)-[*6..]->()", "(:A)-[*6]->()")]
#[case::spaces(" ( a :A ) - [ :OWNS * 1 .. 3 ] -> ( ) ", "(a:A)-[:OWNS*1..3]->()")]
#[case::short(
    "secret/shop/db <-USES- deploy -OWNS*..3-> pod",
    r#"(:secret {name: "db", namespace: "shop"})<-[:USES]-(:deploy)-[:OWNS*1..3]->(:pod)"#
)]
#[case::short_group("deployments.apps/web --> *", r#"(:deployments {apiGroup: "apps", name: "web"})-[]->()"#)]
#[case::short_dashes(
    "svc/web-api -ROUTES_TO|SELECTS-> pod/web-0",
    r#"(:svc {name: "web-api"})-[:ROUTES_TO|SELECTS]->(:pod {name: "web-0"})"#
)]
#[case::short_steps("node/n1 <-RUNS_ON- pod <-*2- *", r#"(:node {name: "n1"})<-[:RUNS_ON]-(:pod)<-[*2]-()"#)]
#[case::mixed("deploy -OWNS*-> (p:Pod {status: 'Failed'})", r#"(:deploy)-[:OWNS*1..5]->(p:Pod {status: "Failed"})"#)]
#[case::cluster_role(
    "clusterrole/system:node <-ROLE_REF- *",
    r#"(:clusterrole {name: "system:node"})<-[:ROLE_REF]-()"#
)]
fn patterns_have_one_printed_form(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(canonical(text), expected);
    assert_eq!(canonical(expected), expected);
}

#[rstest]
#[case::empty("", "byte 0: expected a node, such as (:Pod) or pod/shop/web-0, found the end")]
#[case::no_node("->", "byte 0: expected a node, such as (:Pod) or pod/shop/web-0, found '-'")]
#[case::open("(:Pod", "byte 5: expected \")\", found the end")]
#[case::kind("(:)", "byte 2: expected a kind, found ')'")]
#[case::two_kinds("(:A:B)", "byte 3: an object has one kind")]
#[case::property(
    "(:A {color: 'x'})",
    "byte 5: unknown property \"color\"; properties are apiGroup, cluster, name, namespace, q, status, uid"
)]
#[case::property_twice("(:A {name: 'x', name: 'y'})", "byte 16: the property name is stated twice")]
#[case::value("(:A {name: x})", "byte 11: expected a string in quotes, found 'x'")]
#[case::quote("(:A {name: 'x})", "byte 11: the quote is not closed")]
#[case::escape(r"(:A {name: '\x'})", "byte 13: unknown escape")]
#[case::arrow("(:A) (:B)", "byte 5: expected an arrow, such as -[:OWNS]-> or <-USES-, found '('")]
#[case::arrow_end("(:A)-[:OWNS](:B)", "byte 12: expected \"-\", found '('")]
#[case::last_node("(:A)-->", "byte 7: expected a node, such as (:Pod) or pod/shop/web-0, found the end")]
#[case::edge_type(
    "(:A)-[:LIKES]->(:B)",
    "byte 7: unknown type \"LIKES\"; types are ABOUT, CONTAINS, OWNS, PROPAGATED_TO, ROLE_REF, ROUTES_TO, RUNS_ON, SELECTS, SUBJECT, USES"
)]
#[case::steps("(:A)-[*3..1]->(:B)", "byte 6: 3 is more than 1")]
#[case::no_steps("(:A)-[*0]->(:B)", "byte 6: a hop has 1 to 8 steps")]
#[case::many_steps("(:A)-[*1..9]->(:B)", "byte 6: a hop has 1 to 8 steps")]
#[case::huge_steps("(:A)-[*999]->(:B)", "byte 7: 999 steps are more than 8")]
#[case::sum_of_steps("(:A)-[*]->(:B)-[*4]->(:C)", "byte 14: the pattern has more than 8 steps")]
#[case::variable_twice("(a)-->(a)", "byte 7: the variable a is used twice")]
#[case::glob(
    "pod/web-* --> *",
    "byte 8: a reference cannot contain globs; use a query, such as (:Pod {q: \"name:web-*\"})"
)]
#[case::no_spaces("pod-->svc", "byte 3: expected a space between a node and an arrow, as in pod --> service")]
#[case::no_space("pod/web-0<-USES- *", "byte 9: expected a space between a node and an arrow, as in pod --> service")]
#[case::any_without_space(
    "*-[:USES]->pod",
    "byte 1: expected a space between a node and an arrow, as in pod --> service"
)]
#[case::parts("a/b/c/d --> *", "byte 0: \"a/b/c/d\" is not KIND, KIND/NAME or KIND/NAMESPACE/NAME")]
#[case::name("pod/ --> *", "byte 0: \"pod/\" has an empty name")]
#[case::letters("(:Ä)", "byte 2: expected a kind, found 'Ä'")]
fn errors_state_the_byte_offset(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(canonical(text), expected);
}

#[test]
fn long_patterns_are_refused() {
    let error = format!("(:A {{q: '{}'}})", "x".repeat(MAX_BYTES)).parse::<PathPattern>().unwrap_err();
    assert_eq!(error.at, MAX_BYTES);
}

#[test]
fn hops_without_types_do_not_follow_hubs() {
    let pattern: PathPattern = "(:A)-->(:B)".parse().unwrap();
    let types = pattern.hops[0].0.effective_types();
    assert!(types.contains(&EdgeType::Uses) && !types.contains(&EdgeType::RunsOn));
}

#[rstest]
#[case::any_type("(:A)-[*]->(:B)", "(:A)-[:OWNS|PROPAGATED_TO|ROLE_REF|ROUTES_TO|SELECTS|SUBJECT|USES*1..5]->(:B)")]
#[case::stated("(:A)<-[:CONTAINS|USES]-(:B)", "(:A)<-[:CONTAINS|USES]-(:B)")]
fn types_can_be_stated(#[case] text: &str, #[case] expected: &str) {
    let pattern: PathPattern = text.parse().unwrap();
    let stated = pattern.clone().with_stated_types();
    assert_eq!(stated.to_string(), expected);
    let types = |pattern: &PathPattern| pattern.hops.iter().map(|(hop, _)| hop.effective_types()).collect::<Vec<_>>();
    assert_eq!(types(&stated), types(&pattern));
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z_][a-zA-Z0-9_]{0,5}", "[ -~]{1,6}", "\\PC{1,4}"]
}

fn node() -> impl Strategy<Value = NodePattern> {
    let properties = prop::collection::btree_map(prop::sample::select(Property::ALL.to_vec()), "\\PC{0,8}", 0..3);
    // A dot in a label separates the group, which is a property.
    let label = prop::option::of(name().prop_map(|label| label.replace('.', "_")));
    (label, properties).prop_map(|(label, properties)| NodePattern {
        variable: None,
        label,
        properties: properties.into_iter().collect(),
    })
}

fn hop() -> impl Strategy<Value = HopPattern> {
    let types = prop::collection::btree_set(prop::sample::select(EdgeType::ALL.to_vec()), 0..3);
    let direction = prop::sample::select(vec![Direction::Out, Direction::In, Direction::Both]);
    (types, direction, 0..2u8, 1..3u8).prop_map(|(types, direction, min_steps, max_steps)| HopPattern {
        variable: None,
        types,
        direction,
        min_steps,
        max_steps,
    })
}

fn any_pattern() -> impl Strategy<Value = PathPattern> {
    (node(), prop::collection::vec((hop(), node()), 0..4)).prop_map(|(first, hops)| PathPattern { first, hops })
}

proptest! {
    #[test]
    fn printed_patterns_parse_to_themselves(pattern in any_pattern()) {
        prop_assert_eq!(pattern.to_string().parse::<PathPattern>(), Ok(pattern));
    }

    #[test]
    fn inverting_twice_changes_nothing(pattern in any_pattern()) {
        prop_assert_eq!(pattern.inverse().inverse(), pattern);
    }

    #[test]
    fn parsing_never_panics(text in "[a-z(){}\\[\\]<>:*|'\"`/. -]{0,24}") {
        let parsed = text.parse::<PathPattern>();
        prop_assert!(parsed.is_ok() || parsed.is_err_and(|error| error.at <= text.len()));
    }
}
