//! Compares the translation of a query with the direct evaluation of each object, without an engine: the
//! interpreter replaces it.

use super::interpreter::score;
use super::samples::{object, query};
use crate::document::Document;
use crate::execute::evaluate::DocumentEvaluator;
use crate::opensearch::document::EngineDocument;
use crate::opensearch::dsl::{TranslationInputs, translate};
use crate::opensearch::model::Match;
use crate::plan::plan;
use crate::plan::relations::resolve;
use crate::tests::ReadableDocuments;
use crate::tests::corpus::planning_context;
use crowsnest_query::{Limits, parse};
use crowsnest_store::fixtures::stored;
use futures::executor::block_on;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Scores of the documents that an engine finds, by id.
fn score_documents(matches: &Match, documents: &[(Document, Value)]) -> BTreeMap<u64, f32> {
    let all = |query: &Value| {
        let found = documents.iter().filter_map(|(document, engine)| Some((document.id, score(query, engine)?)));
        found.collect::<BTreeMap<u64, f32>>()
    };
    let first = translate(matches, &TranslationInputs::default()).unwrap();
    let to_read = first.candidates.map(|candidates| all(&candidates.filter())).unwrap_or_default();
    let read = documents.iter().filter(|(document, _)| to_read.contains_key(&document.id));
    let examined = read
        .filter(|(document, _)| DocumentEvaluator::new(document).is_match(matches))
        .map(|(document, _)| document.id);
    let inputs = TranslationInputs { examined: Some(Arc::new(examined.collect())), ..TranslationInputs::default() };
    all(&translate(matches, &inputs).unwrap().query.to_scored_json())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn queries_find_and_score_what_direct_evaluation_does(
        objects in prop::collection::vec(object(), 1..12),
        queries in prop::collection::vec(query(), 8),
    ) {
        let documents = objects.iter().enumerate().map(|(nth, object)| {
            let document = Document::from_object(&stored("member1", nth as u64, object)).unwrap();
            let engine = serde_json::to_value(EngineDocument::from_document(&document)).unwrap();
            (document, engine)
        });
        let documents: Vec<_> = documents.collect();
        for query in queries {
            let mut readable = ReadableDocuments(documents.iter().map(|(document, _)| document).collect());
            let planned = plan(&parse(&query, &Limits::default()).unwrap(), &planning_context());
            let matches = block_on(resolve(planned.matches, &mut readable)).unwrap();
            let expected = documents.iter().filter(|(document, _)| DocumentEvaluator::new(document).is_match(&matches));
            // Scores are those of the condition without its paths.
            let scored = matches.without_paths();
            let expected: BTreeMap<u64, f32> =
                expected.map(|(document, _)| (document.id, DocumentEvaluator::new(document).score(&scored))).collect();
            let found = score_documents(&matches, &documents);
            prop_assert!(found.keys().eq(expected.keys()), "{} finds {:?}, not {:?}: {:?}", query, found, expected, matches);
            prop_assert!(found == expected, "{} scores {:?}, not {:?}: {:?}", query, found, expected, matches);
        }
    }
}
