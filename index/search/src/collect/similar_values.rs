//! Suggestions when nothing was found: a query whose misspelled value is replaced with a similar one that has hits, such as
//! `kind:pod` for `kind:pdo`.

use crate::collect::TopHitsRequest;
use crate::collect::terms::{TermsRequest, count_terms};
use crate::execute::{Sources, find};
use crate::plan::predicate::Match;
use crate::plan::{PlanningContext, keyword_column, plan};
use crowsnest_query::{Expr, Field, Pattern, Query, Term, TermKind, Value};
use crowsnest_store::Error;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time limit for all corrections of a query.
const TIMEOUT: Duration = Duration::from_millis(300);
/// Fields with few distinct values, so that a value that does not exist is probably a misspelling of one of them.
const FIELDS: [&str; 6] = ["kind", "status", "reason", "phase", "namespace", "cluster"];
/// Maximum number of values of a query that are corrected.
const MAX_TERMS: usize = 4;
/// Maximum number of existing values of a field that are compared.
const MAX_VALUES: usize = 2_000;
/// Maximum number of similar values that are tried for a misspelled one.
const MAX_CANDIDATES: usize = 4;

/// A value of a field in a query.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldValue {
    field: &'static str,
    value: String,
}

/// Corrected queries with hits that the caller may read, one per misspelled value.
pub async fn correct_values(
    sources: &Sources,
    query: &Query,
    planning_context: &PlanningContext,
) -> Result<Vec<String>, Error> {
    let limited_sources = sources.with_deadline(Instant::now() + TIMEOUT);
    let mut field_values = Vec::new();
    collect_values(&query.filter, &mut field_values);
    let mut corrected = Vec::new();
    for field_value in field_values.into_iter().take(MAX_TERMS) {
        for value in find_similar(
            &field_value.value,
            &existing_values(&limited_sources, field_value.field, planning_context).await?,
        ) {
            if Instant::now() > limited_sources.context.deadline {
                return Ok(corrected);
            }
            let filter = replace_value(&query.filter, &field_value, &value);
            let corrected_query = Query { filter, output: query.output.clone(), notices: Vec::new() };
            if find(&limited_sources, plan(&corrected_query, planning_context), TopHitsRequest::total_only())
                .await?
                .top
                .total
                > 0
            {
                corrected.push(corrected_query.to_string());
                break;
            }
        }
    }
    Ok(corrected)
}

/// The existing values of a field, in lower case.
async fn existing_values(
    sources: &Sources,
    field: &str,
    planning_context: &PlanningContext,
) -> Result<BTreeSet<String>, Error> {
    if field == "kind" {
        return Ok(planning_context.kinds.keys().cloned().collect());
    }
    let Some(keyword) = keyword_column(field) else { return Ok(BTreeSet::new()) };
    let (prefix, substring) = (String::new(), String::new());
    let request = TermsRequest { keyword, prefix, substring, limit: Some(MAX_VALUES), sums: Vec::new() };
    let term_counts = count_terms(sources, &Match::All, None, &request).await?;
    Ok(term_counts.counts.into_iter().map(|(value, _)| value).collect())
}

/// Collects the values that the query requires in one of [`FIELDS`].
fn collect_values(expr: &Expr, field_values: &mut Vec<FieldValue>) {
    match expr {
        Expr::And(parts) | Expr::Or(parts) => parts.iter().for_each(|part| collect_values(part, field_values)),
        Expr::Term(Term { kind: TermKind::Field { field: Field::Definition(field), values, .. }, .. })
            if !values.negated =>
        {
            let Some(field) = FIELDS.into_iter().find(|name| *name == field.name) else { return };
            let words = values.any.iter().filter_map(literal_word);
            field_values.extend(words.map(|word| FieldValue { field, value: word.to_lowercase() }));
        }
        Expr::All | Expr::Not(_) | Expr::Term(_) => {}
    }
}

/// The text of a value without wildcards.
fn literal_word(value: &Value) -> Option<&str> {
    match value {
        Value::Pattern(Pattern::Word(word) | Pattern::Phrase(word)) => Some(word),
        _ => None,
    }
}

/// Returns the expression with `value` in place of `misspelled`.
fn replace_value(expr: &Expr, misspelled: &FieldValue, value: &str) -> Expr {
    let parts =
        |parts: &[Expr]| -> Vec<Expr> { parts.iter().map(|part| replace_value(part, misspelled, value)).collect() };
    match expr {
        Expr::And(all) => Expr::And(parts(all)),
        Expr::Or(all) => Expr::Or(parts(all)),
        Expr::Term(Term { span, kind: TermKind::Field { field: Field::Definition(field), exact, values } })
            if field.name == misspelled.field && !values.negated =>
        {
            let mut values = values.clone();
            for alternative in &mut values.any {
                if literal_word(alternative).is_some_and(|word| word.to_lowercase() == misspelled.value) {
                    *alternative = Value::Pattern(to_pattern(value));
                }
            }
            Expr::Term(Term {
                span: *span,
                kind: TermKind::Field { field: Field::Definition(field), exact: *exact, values },
            })
        }
        Expr::All | Expr::Not(_) | Expr::Term(_) => expr.clone(),
    }
}

fn to_pattern(value: &str) -> Pattern {
    match value.chars().all(|c| c.is_alphanumeric() || "-._/@".contains(c)) {
        true => Pattern::Word(value.to_owned()),
        false => Pattern::Phrase(value.to_owned()),
    }
}

/// Maximum edit distance of a misspelled word from the intended one; None for words that are too short to be corrected.
pub(super) fn max_edits(word: &str) -> Option<u8> {
    match word.chars().count() {
        0..=2 => None,
        3..=5 => Some(1),
        _ => Some(2),
    }
}

/// Existing values within [`max_edits`] of `word`; none if `word` exists itself. They are ordered by distance.
/// At the same distance, values with the same letters in another order come first, because swapped letters are a frequent
/// mistake.
fn find_similar(word: &str, existing: &BTreeSet<String>) -> Vec<String> {
    let Some(max_edits) = max_edits(word).filter(|_| !existing.contains(word)) else { return Vec::new() };
    let letters = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    let word_letters = letters(word);
    let similar = existing.iter().filter_map(|value| {
        let distance = strsim::osa_distance(word, value);
        (distance <= usize::from(max_edits)).then(|| (distance, letters(value) != word_letters, value))
    });
    let similar: BTreeSet<_> = similar.collect();
    similar.into_iter().take(MAX_CANDIDATES).map(|(_, _, value)| value.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_query::{Limits, parse};
    use rstest::rstest;

    const KINDS: &[&str] = &["po", "pod", "pods", "pdb", "deploy", "deployment", "deployments"];
    const STATES: &[&str] = &["running", "pending", "crashloopbackoff", "ready,schedulingdisabled"];

    #[rstest]
    #[case("po", None)]
    #[case("pod", Some(1))]
    #[case("pöd", Some(1))]
    #[case("nodes", Some(1))]
    #[case("deploy", Some(2))]
    fn longer_words_may_have_more_misspellings(#[case] word: &str, #[case] expected: Option<u8>) {
        assert_eq!(max_edits(word), expected);
    }

    #[rstest]
    #[case::swapped("pdo", KINDS, &["pod", "pdb", "po"])]
    #[case::missing_letter("deploment", KINDS, &["deployment", "deployments"])]
    #[case::known("pod", KINDS, &[])]
    #[case::another_word("service", KINDS, &[])]
    #[case::short("p", KINDS, &[])]
    #[case::one_letter("runing", STATES, &["running"])]
    fn similar_values_are_near(#[case] word: &str, #[case] existing: &[&str], #[case] expected: &[&str]) {
        let existing = existing.iter().map(|value| (*value).to_owned()).collect();
        assert_eq!(find_similar(word, &existing), expected);
    }

    #[rstest]
    #[case::kind("kind:pdo app", "pod", "kind:pod app")]
    #[case::one_of_several("kind:deploy,pdo", "pod", "kind:deploy,pod")]
    #[case::in_a_group("(kind:pdo OR kind:node) a", "pod", "(kind:pod OR kind:node) a")]
    #[case::excluded_terms_stay("kind:pdo -kind:pdo", "pod", "kind:pod NOT kind:pdo")]
    #[case::quoted("kind:pdo", "a b", "kind:\"a b\"")]
    fn values_are_replaced(#[case] query: &str, #[case] value: &str, #[case] expected: &str) {
        let query = parse(query, &Limits::default()).unwrap();
        let mut values = Vec::new();
        collect_values(&query.filter, &mut values);
        let field_value = values.iter().find(|field_value| field_value.value == "pdo").unwrap();
        assert_eq!(replace_value(&query.filter, field_value, value).to_string(), expected);
    }
}
