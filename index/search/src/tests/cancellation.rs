//! Counts of a response that is no longer needed.

use super::{context, segments};
use crate::collect::TopHitsRequest;
use crate::collect::terms::TermsRequest;
use crate::document::columns::{Facet, Keyword};
use crate::plan::predicate::Match;
use crate::tantivy::reader::collector;
use crate::tantivy::reader::lookup::SegmentLookup;
use crowsnest_apimachinery::user::UserInfo;
use rstest::rstest;
use std::sync::Arc;

#[rstest]
#[case::needed(false)]
#[case::dropped(true)]
fn counting_stops_when_the_response_is_dropped(#[case] is_dropped: bool) {
    let (corpus, _) = segments();
    let context = context(&Arc::default(), &UserInfo::system());
    let response = context.cancellation.clone().drop_guard();
    let request = TopHitsRequest { facets: vec![Facet::Namespace], ..TopHitsRequest::total_only() };
    let (_, docs) = collector::find_hits(&corpus.text, &context, &Match::All, &request).unwrap();
    let _response = (!is_dropped).then_some(response);
    let counts = collector::count(&corpus.text, &context, &docs, &request).unwrap();
    assert_eq!((counts.incomplete, counts.facets[0].is_empty()), (is_dropped, is_dropped));
    let (keyword, prefix, substring) = (Keyword::Name, String::new(), String::new());
    let terms_request = TermsRequest { keyword, prefix, substring, limit: None, sums: Vec::new() };
    let terms = SegmentLookup::new(&corpus.text, &context).terms(&Match::All, &terms_request).unwrap();
    assert_eq!((terms.incomplete, terms.counts.len() == 90), (is_dropped, !is_dropped));
}
