//! Sums over several segments of the text index, with deleted documents and within permissions.

use super::corpus::reader_rules;
use super::segments;
use crate::authorization::RbacRules;
use crate::collect::TopHitsRequest;
use crate::collect::sums::SumsRequest;
use crate::document::columns::{Facet, Number};
use crate::plan::predicate::Match;
use crate::{SearchRequest, resolve_group, resolve_sums};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Limits, parse};
use rstest::rstest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Each pod requests as many millicores as its id less one.
#[rstest]
#[case::everyone(Arc::default(), UserInfo::system(), None)]
#[case::reader_of_a_namespace(reader_rules("member1", "team-3"), UserInfo::new("ann", ["staff"]), Some("team-3"))]
#[case::reader_of_another_cluster(reader_rules("member2", "team-3"), UserInfo::new("ann", ["staff"]), Some("none"))]
fn segments_are_summed_within_permissions(
    #[case] rbac_rules: Arc<RbacRules>,
    #[case] caller: UserInfo,
    #[case] readable: Option<&str>,
) {
    let (corpus, pods) = segments();
    let sums = Some(SumsRequest { facet: Facet::Namespace, numbers: vec![Number::CpuRequest, Number::Restarts] });
    let request = TopHitsRequest { facets: vec![Facet::Namespace], sums, ..TopHitsRequest::total_only() };
    let found = corpus.find_top_hits(Match::All, &rbac_rules, &caller, &request);
    let mut expected: BTreeMap<&str, i64> = BTreeMap::new();
    for (id, pod) in &pods {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap();
        if readable.is_none_or(|readable| readable == namespace) {
            *expected.entry(namespace).or_default() += i64::try_from(*id).unwrap() - 1;
        }
    }
    let by_value = |nth: usize| found.sums[nth].iter().map(|(value, sum)| (&**value, *sum)).collect::<BTreeMap<_, _>>();
    assert_eq!(by_value(0), expected);
    assert_eq!(by_value(1), expected.keys().map(|namespace| (*namespace, 0)).collect());
}

#[rstest]
#[case::amounts("cpu.req,restarts,cpu.req", Ok(vec![Number::CpuRequest, Number::Restarts]))]
#[case::none("", Ok(vec![]))]
#[case::a_time("cpu.req,created", Err("\"created\" cannot be summed"))]
#[case::a_text("status", Err("\"status\" cannot be summed"))]
fn only_amounts_are_accepted(#[case] fields: &str, #[case] expected: Result<Vec<Number>, &str>) {
    let mut request = SearchRequest::new("kind:pod group:node", UserInfo::system());
    let result = request.set_sums(fields.split(',').filter(|field| !field.is_empty()));
    match expected {
        Ok(numbers) => assert_eq!((result, request.counts.sums), (Ok(()), numbers)),
        Err(problem) => {
            let names = "restarts, replicas, ready, count, cpu.req, cpu.limit, mem.req, mem.limit";
            assert_eq!(result, Err(format!("{problem}; fields that can be summed are {names}")));
        }
    }
}

#[rstest]
#[case::column("kind:pod group:node", 1, None)]
#[case::property_of_clusters("kind:pod group:region", 1, None)]
#[case::label("kind:pod group:label:app", 1, None)]
#[case::no_group("kind:pod", 0, Some("sums are computed per group; add group: to the query"))]
fn sums_need_groups(#[case] query: &str, #[case] summed: usize, #[case] expected: Option<&str>) {
    let mut notices = Vec::new();
    let query = parse(query, &Limits::default()).unwrap();
    let group = resolve_group(&query, &mut |_, _| {});
    let sums = resolve_sums(&[Number::CpuRequest], group.as_ref(), &mut |_, message| notices.push(message));
    assert_eq!((sums.len(), notices.first().map(String::as_str)), (summed, expected));
}
